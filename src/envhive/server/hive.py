"""All sessions of a server process: who gets in, who has been idle too long, and how it all ends."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final
from weakref import WeakSet

from envhive.errors import (
    DrainingError,
    EnvHiveError,
    QuotaExceededError,
    SessionCapacityError,
    SessionError,
    SessionNotFoundError,
)
from envhive.server.admission import Line
from envhive.server.auth import Owner
from envhive.server.away import Away
from envhive.server.blueprint import Blueprint, session_limit
from envhive.server.calls import Calls
from envhive.server.config import ServerConfig
from envhive.server.crew import current_crew
from envhive.server.descriptors import Scarcity
from envhive.server.health import Health
from envhive.server.heartbeat import Heartbeat
from envhive.server.http_sessions import HttpSessions
from envhive.server.instances import Instances
from envhive.server.layer2 import Extended
from envhive.server.mcp import About
from envhive.server.metrics import Metrics
from envhive.server.newcomers import Newcomers, Way
from envhive.server.nursery import nursery_for
from envhive.server.outlet import GOING_AWAY, Outlet
from envhive.server.overview import Overview
from envhive.server.places import LocalPlaces, Places, SharedPlaces
from envhive.server.runner import Runners
from envhive.server.session import Session
from envhive.server.sweeper import Sweeper

logger: Final = logging.getLogger("envhive.server")

_DRAINING: Final = "The server is shutting down and takes no new sessions"
_LAST_WAIT: Final = 2.0
"""Seconds that cancelled coroutines and `close()` get after the grace period."""
_HURRIED_WAIT: Final = 0.5
"""The same for a server that was told twice to stop."""


class Hive(Overview):
    """The sessions of one server process, used from the event loop. It needs no start: the first session starts it."""

    closing_at: ClassVar[float | None] = None
    """When every hive of this process must have ended, once the server has been told to stop; 0 if told twice."""
    all: ClassVar[WeakSet[Hive]] = WeakSet()
    """Those of this process."""

    def __init__(
        self, blueprint: Blueprint, config: ServerConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.all.add(self)
        self.blueprint = blueprint
        self.config = config
        self.mode = config.mode
        self.limit = session_limit(blueprint, config.max_sessions, config.overruled_max_sessions)
        self.sessions: dict[str, Session] = {}
        self.crew = current_crew()
        self.shared: SharedPlaces | None = None
        if self.crew is not None:
            self.shared = self.crew.join(self, self.limit.sessions)
        self._places: Places = self.shared or LocalPlaces(self.limit.sessions)
        self.metrics = Metrics()
        self.mcp = About.of(blueprint, expose_step=config.expose_step)
        self.heartbeat = Heartbeat(config.ping_interval, config.ping_timeout)
        self.calls = Calls(blueprint, config.mode)
        self._nursery = nursery_for(self.calls, self.limit.env_cls, config)
        self._clock = clock
        self._started_at = clock()
        self._runners: Runners | None = None
        limits = (config.ping_interval, config.ping_timeout, config.session_timeout, config.lease)
        self._sweeper = Sweeper([seconds for seconds in limits if seconds], clock, self.metrics.lag.observe)
        self._draining = False
        self._failures_in_a_row = 0
        self._failed_at = 0.0
        self._scarcity = Scarcity()
        self.http = HttpSessions(self._places, config.session_timeout)
        """Sessions that are found by their id."""
        self._away = Away(self._places, self.http)
        self._instances = Instances(self._gives_way) if config.max_sessions is None else None
        """Where somebody has set a limit, sessions may share what the factory hands out."""
        self._successors: dict[Session, Session] = {}
        """Sessions that begin when another has ended, whose place they have."""
        self._leaving: dict[Session, None] = {}
        """Sessions that end, and whose places nobody else has so far."""
        patience = config.admission_timeout
        self.line = None if patience is None else Line(self._places, patience, clock, self.metrics)
        """Where newcomers wait while the server is full."""
        self.stuck: dict[str, Session] = {}
        """Sessions that are over, but whose code could not be stopped and still runs."""
        self._newcomers = Newcomers()
        self._metadata: bytes | None = None

    # Admission.

    def admit(
        self,
        outlet: Outlet | None,
        *,
        owner: Owner | None = None,
        reserved: bool = False,
        layer: int = 1,
        displaces: bool = True,
    ) -> Session:
        """A new session of `owner`; raises when there is no place for it. Requests may follow at once: they wait.

        `reserved` says that its place has been taken already, `layer` which form of the protocol it speaks, `displaces`
        whether it may have the place of a client that has long been away.
        """
        if self._takes_no_more:
            if reserved:
                self._places.give_back(owner)
            self.metrics.refusals["draining"] += 1
            raise DrainingError(_DRAINING)
        predecessor = None if reserved else self._take_place(owner, displaces)
        session_id = self._new_id()
        self.sessions[session_id] = session = Session(
            session_id,
            self.start().make(session_id),
            outlet,
            self,
            owner=owner,
            mode=self.mode,
            require_reset=self.config.require_reset,
            extended=Extended(self.config.lease) if layer == 2 else None,
            step_timeout=self.config.step_timeout,
            metrics=self.metrics,
            clock=self._clock,
        )
        session.greet(self._limits)
        predecessor = predecessor or self.http.make_room() or self._away.make_room()
        if predecessor is None or predecessor.id not in self.sessions:  # it may have closed at once
            session.open()
        else:
            self._successors[predecessor] = session  # their environments might get in each other's way
        self.metrics.admissions += 1
        return session

    def give_back_place(self, owner: Owner | None) -> None:
        """Whoever a place was reserved for has left before there was a session."""
        self._places.give_back(owner)

    @property
    def _is_draining(self) -> bool:
        return self._draining or (self.shared is not None and self.shared.is_draining())

    @property
    def _takes_no_more(self) -> bool:
        return self._is_draining or self.closing_at is not None

    def refusal(self) -> SessionError | None:
        """Why a newcomer would find no place at this moment; None if it would."""
        if self._takes_no_more:
            return DrainingError(_DRAINING)
        taken, limit = self._places.taken(), self._places.limit()
        if taken < limit and not self._places.anyone_waits():
            return None
        return self._explained(SessionCapacityError(taken, limit))

    def _take_place(self, owner: Owner | None, displaces: bool) -> Session | None:
        """Take a place; if it is that of a session that ends, and whose environment still closes, also that session."""
        leaving = None
        try:
            try:
                self._places.take(owner)
            except QuotaExceededError:
                raise
            except SessionCapacityError:
                if self.line is not None or not (self._leaving or displaces):
                    raise
                leaving = next(iter(self._leaving), None)
                if leaving is not None:
                    del self._leaving[leaving]
                    self.http.give_up_place(leaving)
                else:
                    self._away.offer(self._clock())
                self._places.take(owner, displaces=displaces)  # another worker may have been faster
            return leaving
        except QuotaExceededError:
            self.metrics.refusals["quota"] += 1
            raise
        except SessionCapacityError as full:
            if self.line is None:  # else the newcomer goes on to wait there
                self.metrics.refusals["capacity"] += 1
            raise self._explained(full) from None

    def _gives_way(self, session_id: str, newcomer_id: str) -> bool:
        """Whether a session ends, whose environment a newcomer was handed, too: by itself, or as nobody needs it."""
        session, newcomer = self.sessions[session_id], self.sessions.get(newcomer_id)
        if newcomer is None or newcomer.is_over:
            return False  # it needs none any more
        if session.is_over or self.http.give_way(session_id):
            return True
        return newcomer.is_attached and self._away.give_way(session, self._clock())  # a mere look displaces nobody

    def _explained(self, full: SessionCapacityError) -> SessionCapacityError:
        if self._away:
            full.message = f"{full} Kept for clients that lost their connection: {len(self._away)}."
        return full

    def _new_id(self) -> str:
        """A name for a session; among several servers it tells whose it is, and likewise among several workers."""
        name = str(uuid.uuid4()) if self.crew is None else f"{uuid.uuid4()}-{self.crew.index}"
        return name if self.config.replica is None else f"{self.config.replica}.{name}"

    @property
    def _limits(self) -> dict[str, Any]:
        """What a client of layer 2 is told of this server."""
        return {"max_message_size": self.config.max_message_size, "step_timeout_s": self.config.step_timeout}

    def belongs_elsewhere(self, session_id: str) -> bool:
        """Whether another worker, which is at work, has made this session."""
        return self.crew is not None and self.crew.owner_of(session_id) not in (None, self.crew.index)

    def way_to(self, session_id: str | None) -> Way | None:
        """Where to pass an HTTP request on to: another worker that has its session, or room for a new one."""
        if self.crew is None or self.shared is None:
            return None
        if session_id is not None:
            owner = self.crew.owner_of(session_id)
            return None if owner in (None, self.crew.index) else Way(self.crew.path_for_requests(owner))
        worker = self.shared.best_worker(self._newcomers.counts)
        if worker == self.crew.index or not self.crew.reaches(worker):
            self._newcomers.stay(self.crew.index)
            return None
        return Way(self.crew.path_for_requests(worker), self._newcomers.send(worker))

    def resume(self, session_id: str, token: str, outlet: Outlet, owner: Owner | None) -> Session:
        """The session of a client that lost its connection; raises `SessionNotFoundError`, whatever the reason."""
        session = self.sessions.get(session_id)
        try:
            if session is None or session.owner != owner:
                raise SessionNotFoundError("This session is not there, or not yours")
            session.attach(outlet, token, self._limits)
        except SessionNotFoundError:
            self.metrics.refusals["session_not_found"] += 1
            raise
        self.metrics.resumes += 1
        return session

    def adopt(self, session_id: str, outlet: Outlet, owner: Owner | None) -> Session:
        """A session that was made over HTTP, for a connection that names it; raises if there is none."""
        try:
            session = self.http.find(session_id, owner).session
        except SessionNotFoundError:
            raise SessionError(f"Unknown session_id: {session_id}") from None
        session.adopt(outlet)
        return session

    @asynccontextmanager
    async def visit(self, owner: Owner | None) -> AsyncIterator[Session]:
        """A session for the length of one HTTP request; its place is free again when this ends."""
        session = await self.admit_in_turn(owner, displaces=False)
        try:
            yield session
        finally:
            session.end()
            await session.wait_closed()

    async def admit_in_turn(self, owner: Owner | None, *, displaces: bool = True) -> Session:
        """A session without a connection, after waiting for a place if need be."""
        try:
            return self.admit(None, owner=owner, displaces=displaces)
        except QuotaExceededError:
            raise
        except SessionCapacityError:
            if self.line is None:
                raise
            await self.line.wait(owner)
            return self.admit(None, owner=owner, reserved=True)

    def session_opened(self, session: Session, error: EnvHiveError | None) -> None:
        if error is None:
            self._failures_in_a_row = 0
            return
        if isinstance(error, SessionCapacityError):  # it could be made, and is another's
            self.metrics.refusals["capacity"] += 1
            return
        self._failures_in_a_row += 1
        self._failed_at = self._clock()
        self.metrics.not_opened(error)

    def session_ending(self, session: Session) -> None:
        if self.http.has_place(session):
            self._leaving[session] = None

    def session_closed(self, session: Session) -> None:
        self._away.take_back(session)
        self._leaving.pop(session, None)
        if self.sessions.pop(session.id, None) is not None:
            self.metrics.ended[session.ended_because] += 1
            self.metrics.steps.outcomes["ok"] += session.steps
            self.http.forget(session)
            successor = self._successors.pop(session, None)
            if not session.has_begun:
                self._leave_to(session, successor)
            elif successor is not None:
                successor.open()
            if self.line is not None:
                self.line.look()

    def _leave_to(self, waiting: Session, successor: Session | None) -> None:
        """One has ended that waited for another to be closed: its own successor waits on, or that has its place."""
        predecessor = next((each for each, other in self._successors.items() if other is waiting), None)
        if predecessor is None:
            return
        del self._successors[predecessor]
        if successor is not None:
            self._successors[predecessor] = successor
            return
        try:
            self._places.take(predecessor.owner)
        except SessionCapacityError:
            return  # in another worker somebody was faster
        self.http.give_place(predecessor)
        self._leaving[predecessor] = None

    def session_stuck(self, session: Session, *, stuck: bool) -> None:
        if stuck:
            self.metrics.left_behind += 1
            logger.warning(
                "Session %s is over, but its %s runs on and cannot be stopped",
                session.id,
                session.busy_with,
                extra=session.log_fields(),
            )
            self.stuck[session.id] = session
        elif self.stuck.pop(session.id, None) is not None:
            logger.info("What was left of session %s has ended", session.id, extra=session.log_fields())

    def session_detached(self, session: Session) -> None:
        self._away.add(session)

    def session_back(self, session: Session) -> bool:
        return self._away.take_back(session)

    # The clock.

    def start(self) -> Runners:
        """Begin to sweep, if that has not begun on this event loop."""
        loop = asyncio.get_running_loop()
        if self._runners is None or self._runners.loop is not loop:
            # Another loop than before: a test client makes one for each connection.
            if self._runners is not None:
                self._runners.stop()
            self._runners = Runners(
                self.calls,
                self.limit.env_cls,
                loop,
                self.config.thread_stack_size,
                self._nursery,
                self.metrics,
                self._instances,
            )
            self._sweeper.start(self)
        return self._runners

    def excuse(self, seconds: float, now: float) -> None:
        self.heartbeat.excuse(now)
        for session in self.sessions.values():
            session.excuse(seconds, now)

    def sweep(self, now: float) -> None:
        """Expire the sessions that were idle too long, and ask silent peers whether they are there."""
        self.heartbeat.beat(now)
        self.http.sweep(now)
        self._scarcity.look(now)
        self._away.sweep(now)
        limit = self.config.session_timeout
        if limit is None:
            return
        for session in list(self.sessions.values()):
            since = session.idle_since()
            if since is not None and now - since > limit:
                logger.info(
                    "Session %s expired: idle for more than %g s", session.id, limit, extra=session.log_fields()
                )
                session.expire(limit)

    # What others may ask.

    def find(self, session_id: str, owner: Owner | None) -> Session:
        """A session of this process, also one that is stuck; raises if it is not there, or not the owner's."""
        session = self.sessions.get(session_id) or self.stuck.get(session_id)
        if session is None or (owner is not None and session.owner != owner):
            raise SessionNotFoundError("This session is not there, or not yours")
        return session

    async def metadata(self) -> bytes:
        """What the environment says about itself; asked once, of an instance made for it, or of an idle one."""
        if self._metadata is None:
            try:
                async with self.visit(None) as session:
                    self._metadata = await session.ask(self.calls.metadata)
            except SessionCapacityError:
                idle = next((each for each in self.sessions.values() if each.idle_since() is not None), None)
                if idle is None:
                    raise  # nobody is to wait for a step, which may take as long as it likes
                self._metadata = await idle.ask(self.calls.metadata)
        return self._metadata

    # The end.

    def drain(self) -> None:
        """Take no more sessions; those that are there go on."""
        if not self._draining:
            logger.info("Draining: %d session(s) may finish, new ones are refused", len(self.sessions))
        self._draining = True

    async def drain_all(self) -> Health:
        """The same for the whole server."""
        if self.crew is not None and self.shared is not None:
            self.shared.drain()
            await self.crew.ask_all(self.shared.hive, "drain")
        self.drain()
        return await self.health()

    async def shutdown(self) -> None:
        """Let running requests finish within the grace period, then close every environment."""
        await self.end_sessions()
        self._sweeper.stop()
        if self._runners is not None:
            self._runners.shut_down()
        if self._nursery is not None:
            self._nursery.stop()

    async def end_sessions(self) -> None:
        """Let running requests finish within the grace period, then end those that have not."""
        self._draining = True
        for session in list(self.sessions.values()):
            session.retire(GOING_AWAY, "server shutting down")
        if not await self._emptied_before(time.monotonic() + self.config.grace_period):
            for session in list(self.sessions.values()):
                session.end(GOING_AWAY, "server shutting down", because="shutdown")
            if not await self._emptied_before(time.monotonic() + _LAST_WAIT, last=True):
                stuck = ", ".join(f"{s.id} ({s.busy_with})" for s in self.sessions.values())
                logger.error("%d session(s) did not end and are left behind: %s", len(self.sessions), stuck)

    async def _emptied_before(self, deadline: float, *, last: bool = False) -> bool:
        began = time.monotonic()
        while self.sessions and time.monotonic() < deadline:
            if not last and self.closing_at is not None:
                deadline = min(deadline, self.closing_at)  # a part of the grace has passed, or nobody wants to wait
            elif self.closing_at == 0.0:
                deadline = min(deadline, began + _HURRIED_WAIT)
            await asyncio.sleep(0.01)
        return not self.sessions
