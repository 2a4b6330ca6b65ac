"""The load generator as the lab sees it: several processes that begin at the same moment, and their own CPU time."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

import msgspec

from envhive.bench.crew import Crew, OnProgress
from envhive.bench.jobs import (
    Close,
    Closed,
    Cut,
    Drive,
    Driven,
    Mode,
    Open,
    Opened,
    Storm,
    Stormed,
    clock,
    durations,
    unpack,
)
from envhive.bench.limits import Budget
from envhive.bench.stats import median

BUSY: Final = 0.9
"""A load process that used more of a core than this was the bottleneck, and not the server."""
DIED: Final = "load process died"

_LEAD_S: Final = 0.1
_LEAD_PER_SESSION_S: Final = 5e-5
_CLOSE_S: Final = 20.0
_SHORTEST_S: Final = 0.5
"""A window of less tells nothing."""


class StormOutcome(msgspec.Struct, frozen=True):
    sessions: int
    connect: array[float]
    reset: array[float]
    step: array[float]
    whole: array[float]
    errors: dict[str, int]
    wall_s: float
    load_cpu: float
    """The share of a core that the busiest load process used, the time apart for which steps sleep."""
    load_cpu_s: float
    """CPU time of all load processes together."""
    said: dict[str, str] = {}
    """The server's own words for each kind of error."""


class OpenOutcome(msgspec.Struct, frozen=True):
    opened: int
    errors: dict[str, int]
    wall_s: float
    said: dict[str, str] = {}


class DriveOutcome(msgspec.Struct, frozen=True):
    steps: int
    seconds: float
    latencies: array[float]
    errors: dict[str, int]
    well: int
    failed: int
    unanswered: int
    lost: int
    """Sessions."""
    load_cpu: float
    lag: array[float]
    said: dict[str, str] = {}
    cut_short: bool = False
    """Whether Ctrl-C ended the window, after `seconds`."""


class LoadFleet:
    """Load processes, started when they are needed and ended with the block. A context manager."""

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self._crew = Crew(cores)
        self._open: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._crew.__exit__(*exc_info)

    def muster(self, processes: int) -> None:
        """Have so many processes ready."""
        self._crew.muster(processes)

    def storm(
        self,
        url: str,
        budget: Budget,
        action: str,
        mode: Mode,
        patience_s: float,
        wait_s: float,
        on_progress: OnProgress,
    ) -> StormOutcome:
        """N sessions at once, each connect, reset, step, close. The step itself is known to take `wait_s`."""
        self.muster(len(budget.shares))
        timeout_s = patience_s + wait_s
        begin_at = _beginning(max(budget.shares))
        jobs = [
            Storm(url, share, action, mode, begin_at, timeout_s, _rotated(budget.sources, place))
            for place, share in enumerate(budget.shares)
        ]
        results = self._crew.run(jobs, Stormed, begin_at + timeout_s, on_progress)
        done = [result for result in results if result is not None]
        errors = _added(result.errors for result in done)
        errors.update(_never_answered(budget.shares, results))
        wall_s = max((result.ended_at for result in done), default=clock()) - begin_at
        steps = _joined([result.step for result in done])
        slept = min(wait_s, median(steps)) if len(steps) else 0.0
        return StormOutcome(
            sessions=sum(budget.shares),
            connect=_joined([result.connect for result in done]),
            reset=_joined([result.reset for result in done]),
            step=steps,
            whole=_joined([result.whole for result in done]),
            errors=dict(errors),
            wall_s=max(wall_s, 1e-9),
            # Nothing is to be done while all steps sleep: that time would hide a load process that was too slow.
            load_cpu=min(max((result.cpu_s for result in done), default=0.0) / max(wall_s - slept, 1e-9), 1.0),
            load_cpu_s=sum(result.cpu_s for result in done),
            said=_first_words(result.said for result in done),
        )

    def open(self, url: str, budget: Budget, at_once: int, timeout_s: float, on_progress: OnProgress) -> OpenOutcome:
        """Open sessions that stay, until `close`."""
        shares, number = budget.shares, len(budget.shares)
        jobs = [
            Open(url, share, max(at_once // number, 1), timeout_s, _rotated(budget.sources, place))
            for place, share in enumerate(shares)
        ]
        self._crew.muster(number)
        begin_at = clock()
        results = self._crew.run(jobs, Opened, begin_at + timeout_s, on_progress)
        done = [result for result in results if result is not None]
        errors = _added(result.errors for result in done)
        errors.update(_never_answered(budget.shares, results))
        self._open = [0 if result is None else len(result.durations) // durations().itemsize for result in results]
        wall_s = max((result.ended_at for result in done), default=clock()) - begin_at
        said = _first_words(result.said for result in done)
        return OpenOutcome(sum(self._open), dict(errors), max(wall_s, 1e-9), said)

    def drive(
        self,
        action: str,
        warm_up_s: float,
        seconds: float,
        on_progress: OnProgress,
        at_begin: Callable[[], None],
        at_end: Callable[[], None],
        think_s: float = 0.0,
        rate: float | None = None,
        drain_s: float = 5.0,
    ) -> DriveOutcome:
        """Step the open sessions for a window; the callbacks are called, as nearly as can be, at its two ends."""
        opened = max(sum(self._open), 1)
        warm_up_at = _beginning(max(self._open, default=0))
        begin_at = warm_up_at + warm_up_s
        jobs = [
            Drive(
                action,
                warm_up_at,
                begin_at,
                seconds,
                think_s,
                rate=None if rate is None else rate * share / opened,
                first_at=0.0 if rate is None else place / rate,
                drain_s=drain_s,
            )
            for place, share in enumerate(self._open)
        ]
        moments = [(begin_at, at_begin), (begin_at + seconds, at_end)]
        cut_at: list[float] = []

        def cut() -> Cut | None:
            """What was measured until Ctrl-C is kept, if it is anything to speak of."""
            if (now := clock()) < begin_at + _SHORTEST_S:
                return None
            cut_at.append(now)
            return Cut(now)

        results = self._crew.run(jobs, Driven, begin_at + seconds + drain_s, on_progress, moments, cut)
        seconds = min([seconds, *(at - begin_at for at in cut_at)])
        done = [result for result in results if result is not None]
        errors = _added(result.errors for result in done)
        errors.update(_never_answered(self._open, results))
        return DriveOutcome(
            steps=sum(result.steps for result in done),
            seconds=seconds,
            latencies=_joined([result.latencies for result in done]),
            errors=dict(errors),
            well=sum(result.well for result in done),
            failed=sum(result.failed for result in done),
            unanswered=sum(result.unanswered for result in done),
            lost=sum(
                share if result is None else result.lost for share, result in zip(self._open, results, strict=True)
            ),
            load_cpu=max((result.cpu_s for result in done), default=0.0) / seconds,
            lag=_joined([result.lag for result in done]),
            said=_first_words(result.said for result in done),
            cut_short=bool(cut_at),
        )

    def close(self) -> None:
        """Close the sessions that are open, and wait for the server to let go of them."""
        self._crew.run([Close(_CLOSE_S) for _ in self._open], Closed, clock() + _CLOSE_S, lambda done, failed: None)
        self._open = []


def _beginning(sessions: int) -> float:
    """A moment soon enough, and late enough for the processes to have got ready for so many sessions."""
    return clock() + _LEAD_S + sessions * _LEAD_PER_SESSION_S


def _rotated(sources: list[str], place: int) -> list[str]:
    """Each process begins with another address, so that all are used alike."""
    if not sources:
        return []
    start = place % len(sources)
    return sources[start:] + sources[:start]


def _joined(parts: Sequence[bytes]) -> array[float]:
    return unpack(b"".join(parts))


def _never_answered(shares: Sequence[int], results: Sequence[object]) -> dict[str, int]:
    """The sessions of load processes that left no result."""
    lost = sum(share for share, result in zip(shares, results, strict=True) if result is None)
    return {DIED: lost} if lost else {}


def _first_words(of_each: Iterable[dict[str, str]]) -> dict[str, str]:
    said: dict[str, str] = {}
    for words in of_each:
        said = words | said
    return said


def _added(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total
