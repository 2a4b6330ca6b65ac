"""A mark for tests after which a connection is left to the garbage collector.

Two of the client's known faults do that: a handshake that is given up, and a refused connection that is replaced,
are forgotten rather than closed. So does a client whose event loop ends before it is closed, which is its user's fault.
The mark keeps the warning out of whichever test happens to run when the collector does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])


def leaks_a_socket(test: Test) -> Test:
    ignored: Test = pytest.mark.filterwarnings("ignore::ResourceWarning")(test)
    collected: Test = pytest.mark.usefixtures("leaked_sockets_collected")(ignored)
    return collected
