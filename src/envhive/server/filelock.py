"""A lock on a file between processes, which the system takes back from one that dies with it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time
import weakref
from collections.abc import Callable
from typing import Final

from envhive.server.forks import forget_descriptor, keep_descriptor

_FIRST_PAUSE_S: Final = 20e-6
_LONGEST_PAUSE_S: Final = 1e-3


class FileLock:
    """A context manager, for one thread of each process.

    It belongs to the file as each process has opened it. A lock of the whole process (`lockf`) would be refused as a
    deadlock where an environment waits for one of its own on another file: the system knows no threads there.

    It is asked for with Python's own lock in hand. `fcntl.flock` gives that back, and an environment that then keeps it
    for seconds would keep every worker waiting, as this one has the file and cannot run.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._opened = -1
        try:
            self._opened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        except OSError:  # only Linux opens a file anew by its descriptor
            return
        keep_descriptor(self._opened)  # a process that an environment forks would hold it on
        self._close = weakref.finalize(self, _close, self._opened)
        self._flock: Callable[[int, int], int] = ctypes.PyDLL(None, use_errno=True).flock

    def __enter__(self) -> None:
        if self._opened < 0:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            return
        pause = _FIRST_PAUSE_S
        while self._flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if (number := ctypes.get_errno()) not in (errno.EWOULDBLOCK, errno.EINTR):
                raise OSError(number, os.strerror(number))
            time.sleep(pause)  # whoever has it is at work for some microseconds
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def __exit__(self, *exc_info: object) -> None:
        if self._opened < 0:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        else:
            self._flock(self._opened, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._opened >= 0:
            self._close()


def _close(descriptor: int) -> None:
    forget_descriptor(descriptor)
    os.close(descriptor)
