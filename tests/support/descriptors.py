"""How many descriptors are open."""

from __future__ import annotations

import gc
import os


def open_descriptors(pid: int | None = None) -> int:
    """Those of a process, or of this one, without what the garbage of earlier tests holds until it is collected."""
    gc.collect()
    return len(os.listdir("/dev/fd" if pid is None else f"/proc/{pid}/fd"))
