"""Tells which code holds up the event loop, and so every session of the process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import FrameType
from typing import ClassVar, Final, Self
from weakref import WeakKeyDictionary

from envhive.server.stacks import callers, environments_frame, of_thread

logger: Final = logging.getLogger("envhive.server")

LOOK_EVERY_S: Final = 2.0
"""Longer than the sweeper's longest tick: a loop that did not tick between two looks did nothing else either."""


class LoopWatch:
    """A thread that looks at an event loop's thread now and then. A context manager, which several may enter."""

    _of: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch]] = WeakKeyDictionary()

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._loop_thread = threading.get_ident()
        self._running = callers()
        self._ticked_at = time.monotonic()
        self._users = 0
        self._over = threading.Event()

    @classmethod
    def here(cls) -> LoopWatch:
        """That of the running event loop."""
        loop = asyncio.get_running_loop()
        watch = cls._of.get(loop)
        if watch is None or watch._over.is_set():
            watch = cls._of[loop] = cls(LOOK_EVERY_S)
        return watch

    def __enter__(self) -> Self:
        self._users += 1
        if self._users == 1:
            threading.Thread(target=self._watch, name="envhive-watch", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._users -= 1
        if not self._users:
            self._over.set()

    def tick(self) -> None:
        """The event loop has come round."""
        self._ticked_at = time.monotonic()

    def _watch(self) -> None:
        suspected: tuple[float, FrameType] | None = None
        told_at = 0.0
        looked_at = time.monotonic()
        while not self._over.wait(self._every_s):
            before, looked_at = looked_at, time.monotonic()
            ticked_at = self._ticked_at
            stopped = looked_at - before > 2 * self._every_s  # this thread, too: nobody is to blame
            if stopped or told_at == ticked_at or looked_at - ticked_at < self._every_s:
                suspected = None  # and no look, which takes 0.1 µs for each thread of the process
                continue
            frame = environments_frame(self._loop_thread, self._running)
            if frame is not None and suspected == (ticked_at, frame):
                told_at = ticked_at
                self._tell(looked_at - ticked_at)
            suspected = None if frame is None else (ticked_at, frame)
            del frame  # what it holds is not kept alive from here

    def _tell(self, seconds: float) -> None:
        stack = of_thread(self._loop_thread)
        if not stack:
            return
        outer, inner = stack[0], stack[-1]
        logger.warning(
            "%s has held up the event loop for %.0f s, and with it every session of this process (%s:%d, %s). "
            "Await what takes long; or a plain `def`, without BLOCKING = False, gets a thread of its own.",
            outer["function"],
            seconds,
            inner["file"],
            inner["line"],
            inner["code"] or inner["function"],
        )
