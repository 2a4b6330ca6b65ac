"""For tests that meet a known leak of the client's."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def leaked_sockets_collected() -> Iterator[None]:
    """Collects what the test leaked before the next test begins, so that no other is blamed."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
