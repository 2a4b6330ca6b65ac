"""What a server process, and the whole server, tell of themselves: health, sessions, numbers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from envhive import __version__
from envhive.server.admission import Line
from envhive.server.auth import Owner
from envhive.server.blueprint import Blueprint, Limit
from envhive.server.crew import Crew
from envhive.server.health import FAILURES_FORGOTTEN_S, Health, judge, merged, report_of
from envhive.server.http_sessions import HttpSessions
from envhive.server.metrics import Metrics
from envhive.server.phases import Phase
from envhive.server.places import Places, SharedPlaces
from envhive.server.session import Session
from envhive.server.sweeper import Sweeper
from envhive.types import ServerCapacityStatus

STATES: Final = ("opening", "idle", "busy", "closing", "detached", "stuck")
"""What a session may be doing, as metrics tell it."""
_PROBING_S: Final = 0.5
"""How long `/health` waits for other workers: whoever asks gives up after a second, and may restart them all."""


class Overview(ABC):
    """The part of a hive that only looks."""

    blueprint: Blueprint
    sessions: dict[str, Session]
    stuck: dict[str, Session]
    http: HttpSessions
    limit: Limit
    line: Line | None
    crew: Crew | None
    shared: SharedPlaces | None
    metrics: Metrics
    _places: Places
    _sweeper: Sweeper
    _clock: Callable[[], float]
    _started_at: float
    _failed_at: float
    _failures_in_a_row: int
    _draining: bool

    @property
    @abstractmethod
    def _is_draining(self) -> bool:
        """Whether the whole server takes no more sessions."""

    @abstractmethod
    def drain(self) -> None:
        """Take no more sessions."""

    @property
    def active_sessions(self) -> int:
        """The sessions of this process that somebody uses."""
        return len(self.sessions) - self.http.on_offer()

    def capacity(self) -> ServerCapacityStatus:
        return ServerCapacityStatus.from_counts(self._places.taken(), self.limit.sessions)

    def own_health(self) -> Health:
        """How this process is."""
        lag = self._sweeper.lag
        failed_lately = self._clock() - self._failed_at < FAILURES_FORGOTTEN_S
        status, reasons = judge(
            draining=self._is_draining,
            lag=lag,
            window=self._sweeper.window,
            failures_in_a_row=self._failures_in_a_row if failed_lately else 0,
        )
        return Health(
            status=status,
            reasons=reasons,
            active_sessions=self.active_sessions,
            max_sessions=self.limit.sessions,
            loop_lag_ms=round(lag * 1000, 1),
            uptime_s=round(self._clock() - self._started_at, 1),
            version=__version__,
        )

    async def health(self) -> Health:
        """How the whole server is."""
        own = self.own_health()
        if self.crew is None or self.shared is None:
            return own
        return merged(own, self.shared.taken(), await self.crew.ask_all(self.shared.hive, "health", _PROBING_S))

    async def list_sessions(self, owner: Owner | None) -> tuple[list[dict[str, Any]], list[int]]:
        """The sessions of the whole server that are `owner`'s, all if nobody owns any; and who has told of none."""
        silent: list[int] = []
        if self.crew is None or self.shared is None:
            listed = self._own_sessions()
        else:
            reports = await self.crew.ask_all(self.shared.hive, "sessions")
            listed = [session for sessions in reports.values() for session in sessions or ()]
            silent = [worker for worker, sessions in reports.items() if sessions is None]
        return [session for session in listed if owner is None or session["owner"] == owner.name], silent

    def report(self, what: str) -> Any:
        """What another worker wants to know of this one, or to have done."""
        if what == "drain":
            self.drain()
        if what == "sessions":
            return self._own_sessions()
        return self.own_metrics() if what == "metrics" else report_of(self.own_health())

    def own_metrics(self) -> dict[str, Any]:
        """The numbers of this process."""
        states = Counter(state_of(session) for session in self.sessions.values())
        return {
            **self.metrics.report(sum(session.steps for session in self.sessions.values())),
            "env": self.blueprint.env_name,
            "pid": os.getpid(),
            "limit": self.limit.sessions,
            "sessions": {**dict.fromkeys(STATES, 0), **states, "stuck": len(self.stuck)},
            "waiting": 0 if self.line is None else len(self.line),
            "lag_max": self._sweeper.lag,
            "draining": self._draining,
        }

    async def all_metrics(self) -> dict[int, dict[str, Any] | None]:
        """The numbers of each worker; None of one that is down."""
        if self.crew is None or self.shared is None:
            return {0: self.own_metrics()}
        return await self.crew.ask_all(self.shared.hive, "metrics")

    def _own_sessions(self) -> list[dict[str, Any]]:
        return [self.summary_of(session) for session in [*self.sessions.values(), *self.stuck.values()]]

    def summary_of(self, session: Session) -> dict[str, Any]:
        """What to show of a session in a list."""
        summary = {**session.summary(self._clock()), "pid": os.getpid()}
        if self.http.is_on_offer(session.id):
            summary["doing"] = "waiting for its first request"
        return summary


def state_of(session: Session) -> str:
    """One of `STATES`."""
    over = session.phase in (Phase.CLOSING, Phase.CLOSED)
    return "detached" if session.is_detached and not over else session.phase.name.lower()
