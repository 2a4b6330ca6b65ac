"""What is to be measured: the plans of each command, and how lists of numbers are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from envhive.bench.jobs import Mode
from envhive.errors import ConfigurationError

FULL_SESSIONS: Final = (32, 128, 512, 2048, 4096, 8192, 16384)
FULL_WAITS: Final = (1.0, 5.0, 10.0)
SMALL_SESSIONS: Final = (32, 128, 512)
SMALL_WAITS: Final = (1.0,)
NO_WAITS: Final = (0.0,)
MOST_SESSIONS: Final = 1_000_000
"""More than that is a slip of the finger."""
LONGEST_S: Final = 3600.0


class Cell(msgspec.Struct, frozen=True):
    """One storm."""

    sessions: int
    wait_s: float
    repetition: int


class StormPlan(msgspec.Struct, frozen=True):
    """A grid of storms."""

    sessions: tuple[int, ...] = SMALL_SESSIONS
    waits: tuple[float, ...] = SMALL_WAITS
    repetitions: int = 3
    mode: Mode = "ws"
    timeout_s: float = 120.0
    action: str | None = None
    """JSON of the action; None for the benchmark environment's, which waits."""

    def cells(self) -> Iterator[Cell]:
        """From small to large, so that what breaks a server comes last."""
        for wait_s in self.waits:
            for sessions in sorted(self.sessions):
                for repetition in range(1, self.repetitions + 1):
                    yield Cell(sessions, wait_s, repetition)

    def __len__(self) -> int:
        return len(self.waits) * len(self.sessions) * self.repetitions

    def action_for(self, wait_s: float) -> str:
        return wait_action(wait_s) if self.action is None else self.action


class SteadyPlan(msgspec.Struct, frozen=True):
    """Windows over sessions that stay."""

    sessions: tuple[int, ...] = (64,)
    rate: float | None = None
    think_s: float = 0.0
    seconds: float = 5.0
    warm_up_s: float = 1.0
    repetitions: int = 1
    timeout_s: float = 120.0
    action: str = '{"wait_seconds": 0.0}'
    at_once: int = 64
    """Connections that are being made at any one time."""


class KneePlan(msgspec.Struct, frozen=True):
    """A ramp: doubled until it breaks, then halved between what held and what did not."""

    ramp: str = "sessions"
    start: float = 32
    limit: float = 16384
    sessions: int = 64
    """Of a ramp of rates."""
    think_s: float = 1.0
    """Of a ramp of sessions."""
    p99_limit_s: float = 0.25
    success_goal: float = 0.95
    seconds: float = 4.0
    refinements: int = 2
    action: str = '{"wait_seconds": 0.0}'
    timeout_s: float = 120.0


class ComparePlan(msgspec.Struct, frozen=True):
    """How long to look at each server, and how often."""

    sessions: tuple[int, ...] = (64, 512)
    paced_sessions: int = 64
    paced_rate: float = 500.0
    """Steps/s of a load that leaves servers idle most of the time, as a trainer that waits for its model does."""
    idle_sessions: int = 2048
    rounds: int = 3
    seconds: float = 4.0
    warm_up_s: float = 1.0
    starts: int = 3

    @property
    def counts(self) -> tuple[int, ...]:
        """One session too, for the latency of a step that nothing stands in front of."""
        return (1, *(count for count in self.sessions if count != 1))

    @property
    def loads(self) -> list[tuple[int, float | None]]:
        """Sessions, and steps/s where they do not come one after the other."""
        return [*((count, None) for count in self.counts), (self.paced_sessions, self.paced_rate)]


QUICK_COMPARE: Final = ComparePlan(
    (16, 64), paced_sessions=16, idle_sessions=64, rounds=1, seconds=1.0, warm_up_s=0.3, starts=1
)


def wait_action(wait_s: float) -> str:
    """The benchmark environment's action.

    Example:
        >>> wait_action(1.0)
        '{"wait_seconds": 1.0}'
    """
    return f'{{"wait_seconds": {float(wait_s)!r}}}'


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers of sessions, separated by commas.

    Example:
        >>> parse_counts("32, 128")
        (32, 128)
    """
    numbers = []
    for part in _parts(text):
        if not part.isdecimal() or not 0 < int(part) <= MOST_SESSIONS:
            raise ConfigurationError(f"{part!r} is no number of sessions (1 to {MOST_SESSIONS}), as in 32,128,512.")
        numbers.append(int(part))
    return tuple(dict.fromkeys(numbers))


def parse_waits(text: str) -> tuple[float, ...]:
    """Seconds, separated by commas."""
    numbers = []
    for part in _parts(text):
        try:
            number = float(part)
        except ValueError:
            number = -1.0
        if not 0 <= number <= LONGEST_S:  # also false for nan
            raise ConfigurationError(f"{part!r} is no number of seconds (0 to {LONGEST_S:g}), as in 1,5,10.")
        numbers.append(number)
    return tuple(dict.fromkeys(numbers))


def parse_action(text: str | None) -> str | None:
    """An action in JSON, checked to be an object."""
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--action is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError("""--action must be a JSON object, as in '{"message": "hello"}'.""")
    return text


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigurationError("The list is empty: give numbers separated by commas.")
    return parts
