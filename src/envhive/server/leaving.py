"""The end of a process that runs environments."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from typing import Final, NoReturn

FORCED_EXIT: Final = 1
"""The exit code of a server that was told twice to stop."""


def leave(code: int) -> NoReturn:
    """End the process, also with threads that are stuck in some environment's code."""
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a stream that somebody has closed
            stream.flush()
    os._exit(code)
