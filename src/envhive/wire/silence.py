"""A logger for picows, which would log each connection, and what errors of ours say already."""

from __future__ import annotations

from typing import Any, Final


class _SilentLogger:
    """Making a `Logger` for each connection, as picows does, costs 0.4 kB a session; this one is there once."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return False

    def log(self, *args: Any, **kwargs: Any) -> None:
        pass

    debug = info = warning = error = exception = log


SILENT: Final[Any] = _SilentLogger()
