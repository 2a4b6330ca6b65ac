"""One session: an environment and its life, from the connection that asked for it to its end.

A session knows nothing of sockets. Frames come in through `receive`; replies go out through the `Outlet` that whoever
holds the connection provides. How requests are handled is in `turns`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from envhive.errors import (
    DrainingError,
    EnvHiveError,
    SessionCapacityError,
    SessionError,
    SessionExpiredError,
    SessionNotFoundError,
)
from envhive.server.auth import Owner
from envhive.server.layer2 import Extended
from envhive.server.mcp import About, Peer
from envhive.server.metrics import Metrics
from envhive.server.outlet import GOING_AWAY, INTERNAL_ERROR, NORMAL_CLOSURE, TRY_AGAIN_LATER, Outlet
from envhive.server.phases import BUSY, CLOSED, CLOSING, IDLE, OPENING, OVER, STUCK, Phase
from envhive.server.runner import Runner
from envhive.server.stacks import Stack
from envhive.server.turns import SHUTTING_DOWN, STOPPING_S, Ask, Turns
from envhive.types import ServerMode, SessionInfo

_CLOSING_S: Final = 10.0
"""How long an environment's `close()` may hold its place."""


class Keeper(Protocol):
    """Whoever keeps the session, and wants to know what becomes of it."""

    mcp: About
    """What its sessions have in common in the eyes of agents."""

    def session_opened(self, session: Session, error: EnvHiveError | None) -> None:
        """Its environment has been made, or could not be."""

    def session_ending(self, session: Session) -> None:
        """Its client has left, or it was told to end; its environment is about to be closed."""

    def session_closed(self, session: Session) -> None:
        """The place is free: its environment is closed, or left behind because it cannot be stopped."""

    def session_stuck(self, session: Session, *, stuck: bool) -> None:
        """Its code runs on without it, or has ended at last."""

    def session_detached(self, session: Session) -> None:
        """It waits for its client to come back."""

    def session_back(self, session: Session) -> bool:
        """It waits no longer, if it did; False if its place has gone to another meanwhile."""


class Session(Turns):
    """One environment and its clock."""

    __slots__ = (
        "_closed",
        "_created_at",
        "_farewell",
        "_keeper",
        "_peer",
        "has_begun",
        "id",
        "outlives_connections",
        "owner",
    )

    def __init__(
        self,
        session_id: str,
        runner: Runner,
        outlet: Outlet | None,
        keeper: Keeper,
        *,
        owner: Owner | None = None,
        mode: ServerMode = ServerMode.SIMULATION,
        require_reset: bool = False,
        extended: Extended | None = None,
        step_timeout: float | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            runner,
            outlet,
            mode=mode,
            require_reset=require_reset,
            extended=extended,
            step_timeout=step_timeout,
            metrics=metrics,
            clock=clock,
        )
        self.id = session_id
        self.owner = owner
        """Who made it, where tokens are asked for."""
        self.has_begun = False
        """Whether its environment is, or has been, made: it may have to wait until another is closed."""
        self.outlives_connections = False
        self._created_at = self.last_active
        self._keeper = keeper
        self._farewell = (NORMAL_CLOSURE, "")
        self._closed: asyncio.Future[None] | None = None
        self._peer: Peer | None = None

    # What a connection does with a session.

    def open(self) -> None:
        """Make the environment. Requests that come meanwhile wait."""
        self.has_begun = True
        try:
            self._runner.open(self._opened)
        except RuntimeError as error:  # no thread can be started: the system's limit is reached
            self._opened(None, SessionError(f"The session could not be started: {error}"))

    def adopt(self, outlet: Outlet) -> None:
        """Let a connection use a session that is found by its id, and goes on when the connection is gone."""
        if self._outlet is not None or self._phase in OVER:
            raise SessionError("The session is over, or another WebSocket is attached to it")
        self._outlet, self.outlives_connections = outlet, True
        self._held = self._reading_paused = False

    def detach(self) -> None:
        """The connection is gone. A session with a lease waits for its client; any other ends, if it was only this."""
        self._outlet = None
        if self.outlives_connections:
            self._held = self._reading_paused = False
            self._pump()
            return
        extended = self._extended
        if extended is None or not extended.lease_s or self._phase in OVER:
            self.end()
            return
        self._held = self._reading_paused = False
        extended.detached_at = self._clock()
        self._keeper.session_detached(self)
        self._pump()

    def attach(self, outlet: Outlet, token: str, limits: dict[str, Any]) -> None:
        """The client is back, on a new connection; raises if it is not the one that the session belongs to."""
        extended = self._extended
        if extended is None or self._phase in OVER or not extended.admits(token):
            raise SessionNotFoundError("This session is not there, or not yours")
        if not self._keeper.session_back(self):
            self.end(because="displaced")
            raise SessionNotFoundError("This session has ended: its place went to another while its client was away")
        before, self._outlet = self._outlet, outlet
        if before is not None:
            before.drop()  # the server had not noticed yet that it was lost
        extended.detached_at = None
        self._held = self._reading_paused = False
        self.last_active = self._clock()
        outlet.send(extended.hello(self.id, limits, resumed=True))
        self._pump()

    def greet(self, limits: dict[str, Any]) -> None:
        """Tell a client of layer 2 which session it has."""
        if self._extended is not None and self._outlet is not None:
            self._outlet.send(self._extended.hello(self.id, limits, resumed=False))

    def leave(self) -> None:
        if self.outlives_connections and self._outlet is not None:
            self._outlet.close(NORMAL_CLOSURE, "")
        else:
            self.end()

    def excuse(self, seconds: float, now: float) -> None:
        """The server was not running for so long: that is no idleness, and does not count for the lease."""
        self.last_active = min(now, self.last_active + seconds)
        if self._extended is not None and self._extended.detached_at is not None:
            self._extended.detached_at = min(now, self._extended.detached_at + seconds)

    def away_since(self) -> float | None:
        """Since when it waits for its client to come back; None if it does not."""
        return None if self._extended is None else self._extended.detached_at

    def lapse(self, now: float) -> None:
        """End if the client has been away for too long."""
        extended = self._extended
        if extended is not None and extended.detached_at is not None and now - extended.detached_at > extended.lease_s:
            self.end(because="lease_over")

    # How a session ends.

    def end(self, code: int = NORMAL_CLOSURE, reason: str = "", *, because: str = "closed") -> None:
        """End now: running code is told to stop, and left behind if it does not; then the environment closes."""
        if self._phase in OVER:
            return
        was = self._phase
        self._phase = CLOSING
        self._farewell = (code, reason)
        self.ended_because = because
        self._drop_inbox()
        if self._extended is not None:
            self._keeper.session_back(self)
        self._keeper.session_ending(self)
        if was is IDLE or not self.has_begun:
            self._close_environment()
        else:
            self._wait_for(STOPPING_S, self._insist)
            if not self._runner.cancel() and was is BUSY and because == "shutdown":
                # A server that ends may not be there any more when the step is.
                self._reply(None, DrainingError(SHUTTING_DOWN))
                self._asker = _nobody

    def _insist(self) -> None:
        """It was told to stop, and did not."""
        if self._runner.interrupt():
            self._wait_for(STOPPING_S, self._leave_behind)
        else:
            self._leave_behind()

    def _leave_behind(self) -> None:
        """The code cannot be stopped: the session is over without it. It is closed if it ever ends."""
        if self._patience is not None:
            self._wait_no_more(self._patience)
        if self._phase is CLOSING:
            self._note("abandoned")
        self._phase = STUCK
        self._runner.leave_behind()
        self._keeper.session_stuck(self, stuck=True)
        self._let_go()

    def _give_up(self) -> None:
        error = self._overruled
        assert error is not None
        self._reply(None, error)
        self._note(error.outcome)
        self.ended_because = "timeout"
        self._ended_by = SessionError(f"The session has ended: {error}, and could not be stopped")
        self._farewell = (INTERNAL_ERROR, error.code)
        self._drop_inbox()
        self._leave_behind()

    def retire(self, code: int, reason: str) -> None:
        """End as soon as the running request, if any, has been answered."""
        if self._phase in (OPENING, BUSY):
            self._drop_inbox()
            self._inbox = deque([Ask(lambda: self.end(code, reason, because="shutdown"), lambda error: None)])
        else:
            self.end(code, reason, because="shutdown")

    def expire(self, idle_limit: float) -> None:
        self._ended_by = SessionExpiredError(f"Session expired: idle for more than {idle_limit:g} s")
        if self._outlet is not None:
            self._outlet.send(self._error_reply(self._ended_by))
        self.end(GOING_AWAY, str(self._ended_by), because="expired")

    def kill(self) -> None:
        """End at the wish of whoever runs the server; the client is told."""
        if self._phase in OVER:
            return
        self._ended_by = error = SessionError("The session was ended by whoever runs the server")
        outlet = self._outlet
        if self._phase is BUSY:
            self._reply(None, error)
        elif outlet is not None:
            outlet.send(self._error_reply(error))
        self._outlet = None  # what comes of a running request is nobody's any more
        self.end(because="killed")
        if outlet is not None:
            outlet.close(GOING_AWAY, "ended by the server")

    @property
    def peer(self) -> Peer:
        """Who speaks JSON-RPC with it."""
        if self._peer is None:
            self._peer = Peer(self._keeper.mcp, self.id)
        return self._peer

    async def stack(self) -> Stack:
        """What its code is doing at this moment; empty if it does nothing."""
        return await self._runner.stack() if self.busy_with else []

    def idle_since(self) -> float | None:
        """When it last did something; None while it is doing something. A busy session is never idle."""
        return self.last_active if self._phase is IDLE and not self._inbox else None

    async def wait_closed(self) -> None:
        """Wait until the environment is closed and the place is free."""
        if self._phase not in (CLOSED, STUCK):
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._closed)

    async def wait_opened(self) -> None:
        """Wait until the environment is there; raises why not."""
        await self._ask("opening", lambda: self._answered(b"", None))

    @property
    def ended_by(self) -> EnvHiveError | None:
        """What ended it, if it was not its client."""
        return self._ended_by

    @property
    def is_over(self) -> bool:
        return self._phase in OVER

    @property
    def is_busy(self) -> bool:
        return self._phase is BUSY

    @property
    def is_attached(self) -> bool:
        """Whether a connection holds it."""
        return self._outlet is not None

    @property
    def environment(self) -> Any:
        """Its environment, if that is in this process."""
        return getattr(self._runner, "env", None)

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_detached(self) -> bool:
        """Whether it waits for its client to come back."""
        return self._extended is not None and self._extended.detached_at is not None

    # What others see of it.

    def info(self) -> SessionInfo:
        return SessionInfo(
            session_id=self.id,
            created_at=self._time_of(self._created_at),
            last_activity_at=self._time_of(self.last_active),
            step_count=self.steps,
            environment_type=self._runner.env_name,
        )

    def _time_of(self, moment: float) -> float:
        """A moment of this session's clock by the wall's, which may be set: it is shown, and nothing depends on it."""
        return time.time() - max(0.0, self._clock() - moment)

    def summary(self, now: float) -> dict[str, Any]:
        """What to show of it in a list of sessions."""
        return {
            "session_id": self.id,
            "owner": None if self.owner is None else self.owner.name,
            "age_s": round(max(0.0, now - self._created_at), 1),
            "idle_s": 0.0 if self.busy_with else round(max(0.0, now - self.last_active), 1),
            "busy_s": round(max(0.0, now - self.last_active), 1) if self.busy_with else 0.0,
            "steps": self.steps,
            "doing": self._doing(),
            **({} if self._runner.env_pid is None else {"env_pid": self._runner.env_pid}),
        }

    def log_fields(self) -> dict[str, Any]:
        """For the `extra` of what is logged about it."""
        return self._runner.tag.fields()

    def _doing(self) -> str:
        if self._phase is CLOSED:
            return "over"
        if self._phase is STUCK:
            return f"stuck in {self.busy_with}"
        if self.is_detached:
            return "waiting for its client" if not self.busy_with else f"{self.busy_with}, without its client"
        return self.busy_with or "idle"

    # Opening and closing.

    def _opened(self, env: Any, error: EnvHiveError | None) -> None:
        if self._phase is OPENING or error is None:
            self._keeper.session_opened(self, error)  # what fails when nobody waits for it was only taken back, perhaps
        self.last_active = self._clock()
        self.busy_with = ""
        if self._patience is not None:
            self._wait_no_more(self._patience)
        if self._phase is not OPENING:
            self._close_environment()
        elif error is not None:
            outlet, self._outlet = self._outlet, None
            asked = bool(self._inbox)
            self._phase = CLOSING
            self._ended_by, self.ended_because = error, "not_opened"
            self._drop_inbox()
            self._close_environment()
            if outlet is not None:
                is_taken = isinstance(error, SessionCapacityError)
                outlet.refuse(error, TRY_AGAIN_LATER if is_taken else INTERNAL_ERROR, asked=asked)
        else:
            self._phase = IDLE
            self._pump()

    def _close_environment(self) -> None:
        self.busy_with = "closing"
        if self._phase is CLOSING:
            self._wait_for(_CLOSING_S, self._leave_behind)
        try:
            self._runner.close(self._environment_closed)
        except RuntimeError as error:  # no thread is left that could close it
            self._environment_closed(None, SessionError(str(error)))

    def _environment_closed(self, result: Any, error: EnvHiveError | None) -> None:
        if self._patience is not None:
            self._wait_no_more(self._patience)
        self.busy_with = ""
        if self._phase is STUCK:
            self._keeper.session_stuck(self, stuck=False)
        else:
            self._phase = CLOSED
            self._let_go()

    def _let_go(self) -> None:
        """The session is over for whoever is connected or waits, and its place is free."""
        outlet, self._outlet = self._outlet, None
        if self._deadline is not None:
            self._deadline.stop()
        self._keeper.session_closed(self)
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if outlet is not None:
            outlet.close(*self._farewell)


def _nobody(reply: Any, error: EnvHiveError | None) -> None:
    """Who waits for an answer that has been given."""
