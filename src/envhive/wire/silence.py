"""A logger for picows, which would log each connection, and what errors of ours say already."""

from __future__ import annotations

import sys
from typing import Any, Final


class _SilentLogger:
    """Making a `Logger` for each connection, as picows does, costs 0.4 kB a session; this one is there once."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return False

    def log(self, *args: Any, **kwargs: Any) -> None:
        pass

    def exception(self, *args: Any, **kwargs: Any) -> None:
        """What failed is told elsewhere, and the end of a coroutine is no failure.

        Where a client is forgotten together with its event loop, so is picows's coroutine that pings. It would log
        that, and then speak to the server from whatever thread runs just now: a traceback for nobody.
        """
        if isinstance(error := sys.exc_info()[1], GeneratorExit):
            raise error

    debug = info = warning = error = log


SILENT: Final[Any] = _SilentLogger()
