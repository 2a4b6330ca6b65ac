"""All sessions of a server process: who gets in, who has been idle too long, and how it all ends."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from envhive import __version__
from envhive.errors import DrainingError, EnvHiveError, SessionCapacityError
from envhive.server.blueprint import Blueprint, session_limit
from envhive.server.calls import Calls
from envhive.server.config import ServerConfig
from envhive.server.heartbeat import Heartbeat
from envhive.server.runner import Runners
from envhive.server.session import GOING_AWAY, Outlet, Session
from envhive.types import HealthStatus, ServerCapacityStatus

logger: Final = logging.getLogger("envhive.server")

LONGEST_TICK: Final = 1.0
"""Seconds between two sweeps, or less where a shorter time is to be kept."""
LAG_DEGRADED: Final = 1.0
LAG_UNHEALTHY: Final = 10.0
_LAG_SAMPLES: Final = 30
_FAILURES_UNHEALTHY: Final = 3
"""Environments that must fail to start in a row before the server calls itself unhealthy."""
_LAST_WAIT: Final = 2.0
"""Seconds that cancelled coroutines and `close()` get after the grace period."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a server is, as `/health` tells it."""

    status: HealthStatus
    reasons: list[str]
    active_sessions: int
    max_sessions: int
    loop_lag_ms: float
    uptime_s: float
    version: str


class Hive:
    """The sessions of one server process, used from the event loop. It needs no start: the first session starts it."""

    def __init__(
        self, blueprint: Blueprint, config: ServerConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.blueprint = blueprint
        self.config = config
        self.mode = config.mode
        self.limit = session_limit(blueprint, config.max_sessions)
        self.sessions: dict[str, Session] = {}
        self.heartbeat = Heartbeat(config.ping_interval, config.ping_timeout)
        self.calls = Calls(blueprint)
        self._tick = min(
            LONGEST_TICK,
            *(
                seconds / 4
                for seconds in (config.ping_interval, config.ping_timeout, config.session_timeout)
                if seconds
            ),
        )
        self._clock = clock
        self._started_at = clock()
        self._runners: Runners | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._draining = False
        self._lags: deque[float] = deque(maxlen=_LAG_SAMPLES)
        self._failures_in_a_row = 0
        self._metadata: bytes | None = None

    # Admission.

    def admit(self, outlet: Outlet | None) -> Session:
        """A new session; raises when there is no place for it. Requests may follow at once: they wait."""
        if self._draining:
            raise DrainingError("The server is shutting down")
        if len(self.sessions) >= self.limit.sessions:
            raise SessionCapacityError(len(self.sessions), self.limit.sessions)
        session_id = str(uuid.uuid4())
        runner = self.start().make(session_id)
        session = Session(session_id, runner, outlet, self, mode=self.mode, clock=self._clock)
        self.sessions[session_id] = session
        session.open()
        return session

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[Session]:
        """A session for the length of one HTTP request; its place is free again when this ends."""
        session = self.admit(None)
        try:
            yield session
        finally:
            session.end()
            await session.wait_closed()

    def session_opened(self, session: Session, error: EnvHiveError | None) -> None:
        self._failures_in_a_row = 0 if error is None else self._failures_in_a_row + 1

    def session_closed(self, session: Session) -> None:
        self.sessions.pop(session.id, None)

    # The clock.

    def start(self) -> Runners:
        """Begin to sweep, if that has not begun on this event loop."""
        loop = asyncio.get_running_loop()
        if self._runners is None or self._runners.loop is not loop:
            # Another loop than before: a test client makes one for each connection.
            self._runners = Runners(self.calls, self.limit.env_cls, loop, self.config.thread_stack_size)
            self._sweeper = loop.create_task(self._sweep_for_ever())
        return self._runners

    async def _sweep_for_ever(self) -> None:
        while True:
            due = time.monotonic() + self._tick
            await asyncio.sleep(self._tick)
            self._lags.append(max(0.0, time.monotonic() - due))
            try:
                self.sweep()
            except Exception:  # without the sweeper places would be lost for ever, so it goes on
                logger.exception("A sweep failed")

    def sweep(self) -> None:
        """Expire the sessions that were idle too long, and ask silent peers whether they are there."""
        now = self._clock()
        self.heartbeat.beat(now)
        limit = self.config.session_timeout
        if limit is None:
            return
        for session in list(self.sessions.values()):
            since = session.idle_since()
            if since is not None and now - since > limit:
                logger.info("Session %s expired: idle for more than %g s", session.id, limit)
                session.expire(limit)

    # What others may know.

    def capacity(self) -> ServerCapacityStatus:
        return ServerCapacityStatus.from_counts(len(self.sessions), self.limit.sessions)

    def health(self) -> Health:
        lag = max(self._lags, default=0.0)
        reasons = []
        status = HealthStatus.HEALTHY
        if self._draining:
            reasons.append("the server is shutting down")
            status = HealthStatus.DEGRADED
        if lag > LAG_DEGRADED:
            reasons.append(
                f"the event loop was blocked for {lag:.1f} s within the last {_LAG_SAMPLES * self._tick:.0f} s"
            )
            status = HealthStatus.UNHEALTHY if lag > LAG_UNHEALTHY else HealthStatus.DEGRADED
        if self._failures_in_a_row:
            reasons.append(f"the last {self._failures_in_a_row} attempt(s) to make an environment failed")
            failing = self._failures_in_a_row >= _FAILURES_UNHEALTHY
            if failing or status is HealthStatus.HEALTHY:
                status = HealthStatus.UNHEALTHY if failing else HealthStatus.DEGRADED
        return Health(
            status=status,
            reasons=reasons,
            active_sessions=len(self.sessions),
            max_sessions=self.limit.sessions,
            loop_lag_ms=round(lag * 1000, 1),
            uptime_s=round(self._clock() - self._started_at, 1),
            version=__version__,
        )

    async def metadata(self) -> bytes:
        """What the environment says about itself; asked once, of an instance made for it."""
        if self._metadata is None:
            async with self.visit() as session:
                self._metadata = await session.ask(self.calls.metadata)
        return self._metadata

    # The end.

    async def shutdown(self) -> None:
        """Let running requests finish within the grace period, then close every environment."""
        self._draining = True
        for session in list(self.sessions.values()):
            session.retire(GOING_AWAY, "server shutting down")
        if not await self._emptied_within(self.config.grace_period):
            for session in list(self.sessions.values()):
                session.end(GOING_AWAY, "server shutting down")
            if not await self._emptied_within(_LAST_WAIT):
                stuck = ", ".join(f"{s.id} ({s.busy_with})" for s in self.sessions.values())
                logger.error("%d session(s) did not end and are left behind: %s", len(self.sessions), stuck)
        if self._sweeper is not None and not self._sweeper.get_loop().is_closed():
            self._sweeper.cancel()
        if self._runners is not None:
            self._runners.stop()

    async def _emptied_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.sessions and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return not self.sessions
