"""The end of a process that runs environments."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process, also with threads that are stuck in some environment's code."""
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # there may be no room for the last words, and nobody to read them
            stream.flush()
    os._exit(code)
