"""The clock of a server process: it looks after everything every so often, and sees how late it comes to it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from envhive.server.watch import LoopWatch

logger: Final = logging.getLogger("envhive.server")

LONGEST_TICK: Final = 1.0
"""Seconds between two looks, or less where a shorter time is to be kept."""
_SAMPLES: Final = 30


class Swept(Protocol):
    """What is looked after."""

    def sweep(self, now: float) -> None:
        """It is time to look after everything."""

    def excuse(self, seconds: float, now: float) -> None:
        """The event loop was held up, or this process: nobody could be heard, so nobody is blamed for that time."""


class Sweeper:
    """Looks after something at every tick, and knows how late it came to it lately.

    Args:
        kept: The time limits that have to be kept, in seconds.
        clock: What time it is.
        on_lag: Told how late each tick was.
    """

    def __init__(self, kept: list[float], clock: Callable[[], float], on_lag: Callable[[float], None]) -> None:
        self._tick = min([LONGEST_TICK, *(seconds / 4 for seconds in kept)])
        self._clock = clock
        self._on_lag = on_lag
        self._lags: deque[float] = deque(maxlen=_SAMPLES)
        self._task: asyncio.Task[None] | None = None

    @property
    def lag(self) -> float:
        """How late the latest of the last ticks was, in seconds."""
        return max(self._lags, default=0.0)

    @property
    def window(self) -> float:
        """How far back `lag` looks, in seconds."""
        return _SAMPLES * self._tick

    def start(self, swept: Swept) -> None:
        """Begin on the running event loop, which alone keeps `swept` alive for it."""
        self._task = asyncio.get_running_loop().create_task(self._run(swept))

    def stop(self) -> None:
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()

    async def _run(self, swept: Swept) -> None:
        with LoopWatch.here() as watch:
            looked_at = self._clock()
            while True:
                await asyncio.sleep(self._tick)
                watch.tick()
                # One look at the clock for all: this process may be stopped anywhere, also in the middle of a sweep.
                looked_at, before = self._clock(), looked_at
                lag = max(0.0, looked_at - before - self._tick)
                self._lags.append(lag)
                self._on_lag(lag)
                try:
                    if lag > self._tick:
                        logger.info("The event loop stood still for %.1f s; silence in that time does not count", lag)
                        swept.excuse(lag, looked_at)
                    swept.sweep(looked_at)
                except Exception:  # without the sweeper places would be lost for ever, so it goes on
                    logger.exception("A sweep failed")
