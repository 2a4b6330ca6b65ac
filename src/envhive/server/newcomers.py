"""Newcomers over HTTP who were sent to a worker just now, and have no place there yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_COMING_S: Final = 0.05
"""How long one may take until its session has a place, if nobody says that it has."""


class Way(NamedTuple):
    """To another worker, for one HTTP request."""

    path: Path
    arrived: Callable[[], None] = lambda: None
    """To be called when the worker answers: from then on a newcomer counts there."""


class Newcomers:
    """How many are on their way to each worker: of a burst, all would else be sent to the same."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def stay(self, worker: int) -> None:
        """One begins its session here, at once."""
        self.counts[worker] += 1
        asyncio.get_running_loop().call_soon(self.counts.subtract, (worker,))

    def send(self, worker: int) -> Callable[[], None]:
        """One is sent to another worker; returns what to call when it has got there."""
        self.counts[worker] += 1
        is_coming = True

        def arrived() -> None:
            nonlocal is_coming
            if is_coming:
                is_coming = False
                self.counts.subtract((worker,))

        asyncio.get_running_loop().call_later(_COMING_S, arrived)
        return arrived
