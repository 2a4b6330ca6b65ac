"""What a server process counts. Plain numbers: `exposition` writes them down when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any, Final

from envhive.errors import (
    EnvHiveError,
    EnvironmentFailureError,
    ForbiddenOriginError,
    MessageTooLargeError,
    UnauthorizedError,
)

OUTCOMES: Final = ("ok", "invalid", "env_error", "timeout", "infra_error", "abandoned")
"""What may come of a reset or step. One is abandoned when its session ends before it does."""

TIMED_STEPS: Final = 8
"""One in so many steps of a session is timed. All of them would add 0.4 µs to a step of 15 to 20 µs."""

WORK_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
WAIT_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

gate_refusals: Final[Counter[str]] = Counter()
"""Requests that a gate of this process has refused. A gate does not know which hive they were for."""


def count_refusal_at_gate(error: EnvHiveError) -> None:
    for cls, reason in (
        (ForbiddenOriginError, "origin"),
        (UnauthorizedError, "unauthorized"),
        (MessageTooLargeError, "too_large"),
    ):
        if isinstance(error, cls):
            gate_refusals[reason] += 1
            return


class Histogram:
    """How often something took how long.

    Example:
        >>> waits = Histogram((1.0, 5.0))
        >>> for seconds in (0.5, 1.0, 7.0):
        ...     waits.observe(seconds)
        >>> waits.counts, waits.sum
        ([2, 0, 1], 8.5)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket for itself; the last is for what took longer than the highest bound."""
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def report(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "sum": self.sum}


class Work:
    """Resets or steps: what came of them, and how long those took that did not fail."""

    __slots__ = ("outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.seconds = Histogram(WORK_BOUNDS)

    def report(self, more: int = 0) -> dict[str, Any]:
        """The numbers, with so `more` that are ok."""
        outcomes = {outcome: self.outcomes[outcome] for outcome in OUTCOMES}
        return {"outcomes": {**outcomes, "ok": outcomes["ok"] + more}, "seconds": self.seconds.report()}


class Metrics:
    """What one hive counts."""

    __slots__ = (
        "admissions",
        "crashes",
        "ended",
        "invalid_messages",
        "lag",
        "left_behind",
        "refusals",
        "resets",
        "resumes",
        "steps",
        "waits",
        "work",
    )

    def __init__(self) -> None:
        self.steps = Work()
        """Those that are ok are counted by each session, and added here when that is over."""
        self.resets = Work()
        self.work: Final = {"step": self.steps, "reset": self.resets}
        self.waits = Histogram(WAIT_BOUNDS)
        """Time in the line, of those who were admitted and of those who were turned away."""
        self.lag = Histogram(LAG_BOUNDS)
        self.admissions = 0
        self.resumes = 0
        self.crashes = 0
        """Processes of environments that ended by themselves."""
        self.left_behind = 0
        """Sessions whose code could not be stopped."""
        self.invalid_messages = 0
        self.refusals: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def not_opened(self, error: EnvHiveError) -> None:
        """A session has ended before it began."""
        self.refusals["factory" if isinstance(error, EnvironmentFailureError) else "resources"] += 1

    def report(self, steps: int) -> dict[str, Any]:
        """The numbers, as they travel from worker to worker. Sessions that go on have done so many steps."""
        return {
            "steps": self.steps.report(steps),
            "resets": self.resets.report(),
            "waits": self.waits.report(),
            "lag": self.lag.report(),
            "refusals": dict(self.refusals + gate_refusals),
            "ended": dict(self.ended),
            **{
                name: getattr(self, name)
                for name in ("admissions", "resumes", "crashes", "left_behind", "invalid_messages")
            },
        }
