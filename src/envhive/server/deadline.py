"""When the request that is running is overdue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """A time limit for one request after the other.

    A timer made for each step and cancelled after it took a fifth of the CPU of a step of a plain environment. Here the
    timer of an earlier request stays, and when it goes off looks how much time the running one has left.
    """

    __slots__ = ("_at", "_clock", "_on_overdue", "_timer", "_timer_at", "loop", "seconds")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_overdue: Callable[[], None]
    ) -> None:
        self.loop = loop
        self._clock = clock
        self._on_overdue = on_overdue
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.seconds = 0.0
        """What the last request was given."""

    def set(self, seconds: float, began: float) -> None:
        """A request that began then, perhaps a while ago, may take so long."""
        self.seconds = seconds
        self._at = at = began + seconds
        if self._timer is None:
            self._start_timer(at)
        elif at < self._timer_at:
            self._timer.cancel()
            self._start_timer(at)

    def clear(self) -> None:
        """The request is over, or nobody waits for it any more."""
        self._at = None

    def stop(self) -> None:
        """There will be no more requests."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, at: float) -> None:
        self._timer_at = at
        self._timer = self.loop.call_later(at - self._clock(), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._at > self._clock():
            self._start_timer(self._at)
        else:
            self._at = None
            self._on_overdue()
