"""The end of a process that runs environments."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process, also with threads that are stuck in some environment's code."""
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
