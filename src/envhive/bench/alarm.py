"""A clock that wakes the event loop to the tenth of a millisecond: uvloop's own timers count whole milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final, Self

from envhive.bench.jobs import clock

_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Calls `ring` at a moment that is set again and again. A context manager."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._fd = -1
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rang)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._handle is not None:
            self._handle.cancel()

    def set(self, moment: float) -> None:
        """Ring then, or at once if that is past."""
        if self._fd < 0 or self._libc is None:
            self._handle = self._loop.call_later(max(moment - clock(), 0), self._ring)
            return
        nanoseconds = max(int(moment * 1e9), 1)  # 0 would switch it off
        spec = _Itimerspec(value=_Timespec(*divmod(nanoseconds, 1_000_000_000)))
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
            self._ring()
