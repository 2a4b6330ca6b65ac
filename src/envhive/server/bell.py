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
_NOWHERE: Final = -1


class Bell:
    """Calls `answer`, a method, on the event loop soon after any thread has rung.

    `loop.call_soon_threadsafe` wakes the loop while the thread holds the interpreter's lock: the loop finds it taken,
    sleeps, and is woken again. `os.write` lets go of the lock first. With 64 plain sessions at 2,000 steps a second:
    3.7 changes from thread to thread a step instead of 5.5, 2 futex calls instead of 5, a fifth less CPU.
    """

    __slots__ = ("_ear", "_hand", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], Any]) -> None:
        self._loop = loop
        if sys.platform == "linux":
            self._ear = self._hand = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._ear, self._hand = os.pipe()
            os.set_blocking(self._ear, False)
        loop.add_reader(self._ear, _hear, self._ear, weakref.WeakMethod(answer))

    def ring(self) -> None:
        """Called on any thread."""
        if (hand := self._hand) != _NOWHERE:
            os.write(hand, _RING)

    def stop(self) -> None:
        """Nobody listens any more. Called on the event loop."""
        hand, self._hand = self._hand, _NOWHERE
        if hand != _NOWHERE:
            _take_down(self._loop, self._ear, hand)

    def __del__(self) -> None:
        """A loop that was left for another goes on listening for as long as anybody may ring."""
        if self._hand == _NOWHERE:
            return
        try:
            self._loop.call_soon_threadsafe(_take_down, self._loop, self._ear, self._hand)
        except RuntimeError:  # the loop is closed, and listens to nothing
            _take_down(None, self._ear, self._hand)


def _hear(ear: int, answer: weakref.WeakMethod[Callable[[], Any]]) -> None:
    os.read(ear, _LONGEST_RING)
    if (method := answer()) is not None:
        method()


def _take_down(loop: asyncio.AbstractEventLoop | None, ear: int, hand: int) -> None:
    if loop is not None:
        loop.remove_reader(ear)
    for descriptor in {ear, hand}:
        os.close(descriptor)
