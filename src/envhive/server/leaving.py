"""The end of a process that runs environments."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import sys
import time
from typing import Final, NoReturn

logger: Final = logging.getLogger("envhive.server")

FORCED_EXIT: Final = 1
"""The exit code of a server that was told twice to stop."""


_GOODBYES_S: Final = 10.0
"""How long what others have left to be done at the end may take."""


def leave(code: int) -> NoReturn:
    """End the process, also with threads that are stuck in some environment's code."""
    with contextlib.suppress(RuntimeError):  # the system has no more threads
        _thread.start_new_thread(_leave_without, (code,))
    atexit._run_exitfuncs()
    _end(code)


def _leave_without(code: int) -> None:
    time.sleep(_GOODBYES_S)
    logger.error("What is to be done at the end (atexit) took longer than %g s: left undone", _GOODBYES_S)
    _end(code)


def _end(code: int) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a stream that somebody has closed
            stream.flush()
    os._exit(code)
