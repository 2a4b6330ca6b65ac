"""One session: an environment, its runner, its clock, and the line of requests before it.

A session knows nothing of sockets. Frames come in through `receive`; replies go out through the
`Outlet` that whoever holds the connection provides. Requests are handled one at a time, in order.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Final, Protocol

from envhive.errors import (
    DrainingError,
    EnvHiveError,
    InvalidJSONError,
    RequestError,
    SessionError,
    SessionExpiredError,
    SessionNotFoundError,
    StepTimeoutError,
    UnknownTypeError,
)
from envhive.server.auth import Owner
from envhive.server.layer2 import Extended
from envhive.server.mcp import About, Peer, Plan, conclude
from envhive.server.metrics import TIMED_STEPS, Metrics
from envhive.server.outlet import GOING_AWAY, INTERNAL_ERROR, NORMAL_CLOSURE, Outlet
from envhive.server.runner import Runner
from envhive.server.stacks import Stack
from envhive.server.threads import Done
from envhive.types import ServerMode, SessionInfo
from envhive.wire.codec import (
    NOT_A_STEP,
    decode_extended_request,
    decode_object,
    decode_request,
    decode_step,
    encode_error_reply,
    encode_mcp_reply,
    id_of,
    payload_of,
)
from envhive.wire.jsonrpc import JsonRpcError, encode_error, encode_result, parse_request

INBOX_LIMIT: Final = 64
"""Requests that may wait before the session asks its outlet to stop reading."""

_CONTROL: Final = frozenset({"reset", "step", "state"})
_NO_KEYWORDS: Final[dict[str, Any]] = {}

_STOPPING_S: Final = 2.0
"""How long code that is told to stop may take until the session goes on without it."""
_CLOSING_S: Final = 10.0
"""How long an environment's `close()` may hold its place."""


class Keeper(Protocol):
    """Whoever keeps the session, and wants to know what becomes of it."""

    mcp: About
    """What its sessions have in common in the eyes of agents."""

    def session_opened(self, session: Session, error: EnvHiveError | None) -> None:
        """Its environment has been made, or could not be."""

    def session_closed(self, session: Session) -> None:
        """The place is free: its environment is closed, or left behind because it cannot be stopped."""

    def session_stuck(self, session: Session, *, stuck: bool) -> None:
        """Its code runs on without it, or has ended at last."""

    def session_detached(self, session: Session, *, detached: bool) -> None:
        """It waits for its client to come back, or waits no longer."""


class Phase(Enum):
    OPENING = auto()
    IDLE = auto()
    BUSY = auto()
    CLOSING = auto()
    CLOSED = auto()
    STUCK = auto()
    """Closed for all others, but its code still runs."""


# A name of the module is found in a tenth of the time that a member of an enum takes: 1 µs a step.
_OPENING: Final = Phase.OPENING
_IDLE: Final = Phase.IDLE
_BUSY: Final = Phase.BUSY
_CLOSING: Final = Phase.CLOSING
_CLOSED: Final = Phase.CLOSED
_STUCK: Final = Phase.STUCK
_OVER: Final = (_CLOSING, _CLOSED, _STUCK)


class Ask:
    """A request that did not come as a frame."""

    __slots__ = ("fail", "turn")

    def __init__(self, turn: Callable[[], None], fail: Callable[[EnvHiveError], None]) -> None:
        self.turn = turn
        """Called when it is its turn."""
        self.fail = fail
        """Called instead when the session ends first."""


class Session:
    """One environment and its clock."""

    __slots__ = (
        "_asker",
        "_clock",
        "_closed",
        "_created_at",
        "_deadline",
        "_ended_by",
        "_extended",
        "_farewell",
        "_held",
        "_inbox",
        "_keeper",
        "_metrics",
        "_outlet",
        "_overruled",
        "_peer",
        "_phase",
        "_plain",
        "_production",
        "_pumping",
        "_reading_paused",
        "_requests",
        "_runner",
        "_step_timeout",
        "_was_reset",
        "busy_with",
        "ended_because",
        "id",
        "last_active",
        "outlives_connections",
        "owner",
        "steps",
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
        extended: Extended | None = None,
        step_timeout: float | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = session_id
        self.owner = owner
        """Who made it, where tokens are asked for."""
        self.steps = 0
        self.busy_with = "opening"
        self.last_active = clock()
        """When the last request ended, or the running one began."""
        self.outlives_connections = False
        self.ended_because = "closed"
        """Why it is over, in a word, once it is."""
        self._created_at = self.last_active
        self._clock = clock
        self._production = mode is ServerMode.PRODUCTION
        self._extended = extended
        self._step_timeout = step_timeout
        self._plain = not self._production and extended is None and step_timeout is None
        self._runner = runner
        self._outlet = outlet
        self._keeper = keeper
        self._metrics = metrics or Metrics()
        self._phase = _OPENING
        self._inbox: deque[str | bytes | Ask] | None = None  # made when first needed: 0.8 kB that few sessions need
        self._farewell = (NORMAL_CLOSURE, "")
        self._closed: asyncio.Future[None] | None = None
        self._ended_by: EnvHiveError | None = None
        self._requests = 0  # that may be overdue: a time-out must not hit the next one
        self._deadline: asyncio.TimerHandle | None = None
        self._overruled: EnvHiveError | None = None
        self._asker: Done | None = None
        self._held = False
        self._was_reset = False
        self._peer: Peer | None = None
        self._pumping = False
        self._reading_paused = False

    # What a connection does with a session.

    def open(self) -> None:
        """Make the environment. Requests that come meanwhile wait."""
        try:
            self._runner.open(self._opened)
        except RuntimeError as error:  # no thread can be started: the system's limit is reached
            self._opened(None, SessionError(f"The session could not be started: {error}"))

    def receive(self, frame: str) -> None:
        """Take a text frame from the client. Its reply goes to the outlet, in order."""
        if self._phase is not _IDLE or self._inbox or self._held:
            self._enqueue(frame)
            return
        if not self._plain:
            self._handle(frame)
            return
        try:
            action = bytes(decode_step(frame).data)
        except NOT_A_STEP:
            self._handle(frame)
        else:
            self._phase, self.busy_with = _BUSY, "step"
            self.last_active = self._clock()
            self._runner.step(action, _NO_KEYWORDS, self._answered)

    def receive_binary(self, frame: bytes) -> None:
        """Take a binary frame, which gets an error for an answer."""
        self._enqueue(frame)

    def hold(self) -> None:
        """The client does not read its replies: handle nothing more until `unhold`."""
        self._held = True

    def unhold(self) -> None:
        self._held = False
        self._pump()

    def adopt(self, outlet: Outlet) -> None:
        """Let a connection use a session that is found by its id, and goes on when the connection is gone."""
        if self._outlet is not None or self._phase in _OVER:
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
        if extended is None or not extended.lease_s or self._phase in _OVER:
            self.end()
            return
        self._held = self._reading_paused = False
        extended.detached_at = self._clock()
        self._keeper.session_detached(self, detached=True)
        self._pump()

    def attach(self, outlet: Outlet, token: str, limits: dict[str, Any]) -> None:
        """The client is back, on a new connection; raises if it is not the one that the session belongs to."""
        extended = self._extended
        if extended is None or self._phase in _OVER or not extended.admits(token):
            raise SessionNotFoundError("This session is not there, or not yours")
        before, self._outlet = self._outlet, outlet
        if before is not None:
            before.drop()  # the server had not noticed yet that it was lost
        extended.detached_at = None
        self._held = self._reading_paused = False
        self._keeper.session_detached(self, detached=False)
        self.last_active = self._clock()
        outlet.send(extended.hello(self.id, limits, resumed=True))
        self._pump()

    def greet(self, limits: dict[str, Any]) -> None:
        """Tell a client of layer 2 which session it has."""
        if self._extended is not None and self._outlet is not None:
            self._outlet.send(self._extended.hello(self.id, limits, resumed=False))

    def excuse(self, seconds: float, now: float) -> None:
        """The server was not running for so long: that is no idleness, and does not count for the lease."""
        self.last_active = min(now, self.last_active + seconds)
        if self._extended is not None and self._extended.detached_at is not None:
            self._extended.detached_at = min(now, self._extended.detached_at + seconds)

    def lapse(self, now: float) -> None:
        """End if the client has been away for too long."""
        extended = self._extended
        if extended is not None and extended.detached_at is not None and now - extended.detached_at > extended.lease_s:
            self.end(because="lease_over")

    # How a session ends.

    def end(self, code: int = NORMAL_CLOSURE, reason: str = "", *, because: str = "closed") -> None:
        """End now: running code is told to stop, and left behind if it does not; then the environment closes."""
        if self._phase in _OVER:
            return
        was = self._phase
        self._phase = _CLOSING
        self._farewell = (code, reason)
        self.ended_because = because
        self._drop_inbox()
        if self._extended is not None:
            self._keeper.session_detached(self, detached=False)
        if was is _IDLE:
            self._close_environment()
        else:
            self._set_deadline(_STOPPING_S, self._insist)
            self._runner.cancel()

    def _insist(self) -> None:
        """It was told to stop, and did not."""
        if self._runner.interrupt():
            self._set_deadline(_STOPPING_S, self._leave_behind)
        else:
            self._leave_behind()

    def _leave_behind(self) -> None:
        """The code cannot be stopped: the session is over without it. It is closed if it ever ends."""
        if self._deadline is not None:
            self._clear_deadline(self._deadline)
        if self._phase is _CLOSING:
            self._note("abandoned")
        self._phase = _STUCK
        self._keeper.session_stuck(self, stuck=True)
        self._let_go()

    def retire(self, code: int, reason: str) -> None:
        """End as soon as the running request, if any, has been answered."""
        if self._phase in (_OPENING, _BUSY):
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
        if self._phase in _OVER:
            return
        self._ended_by = error = SessionError("The session was ended by whoever runs the server")
        outlet = self._outlet
        if self._phase is _BUSY:
            self._reply(None, error)
        elif outlet is not None:
            outlet.send(self._error_reply(error))
        self._outlet = None  # what comes of a running request is nobody's any more
        self.end(because="killed")
        if outlet is not None:
            outlet.close(GOING_AWAY, "ended by the server")

    async def stack(self) -> Stack:
        """What its code is doing at this moment; empty if it does nothing."""
        return await self._runner.stack() if self.busy_with else []

    def idle_since(self) -> float | None:
        """When it last did something; None while it is doing something. A busy session is never idle."""
        return self.last_active if self._phase is _IDLE and not self._inbox else None

    async def wait_closed(self) -> None:
        """Wait until the environment is closed and the place is free."""
        if self._phase not in (_CLOSED, _STUCK):
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._closed)

    async def wait_opened(self) -> None:
        """Wait until the environment is there; raises why not."""
        await self._ask("opening", lambda: self._answered(b"", None))

    @property
    def is_over(self) -> bool:
        return self._phase in _OVER

    @property
    def is_busy(self) -> bool:
        return self._phase is _BUSY

    @property
    def is_attached(self) -> bool:
        """Whether a connection holds it."""
        return self._outlet is not None

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_detached(self) -> bool:
        """Whether it waits for its client to come back."""
        return self._extended is not None and self._extended.detached_at is not None

    # Requests that come by another way than frames.

    async def ask_reset(self, keywords: dict[str, Any], timeout_s: float | None = None) -> bytes:
        timeout_s = timeout_s or self._step_timeout
        start = functools.partial(self._runner.reset, keywords, timeout_s, self._answered)
        self._was_reset = True
        return payload_of(await self._ask("reset", start, timeout_s))

    async def ask_step(self, action: bytes, keywords: dict[str, Any], timeout_s: float | None = None) -> bytes:
        timeout_s = timeout_s or self._step_timeout
        given = keywords if timeout_s is None else {**keywords, "timeout_s": timeout_s}
        return payload_of(await self._ask("step", lambda: self._runner.step(action, given, self._answered), timeout_s))

    async def ask_state(self) -> bytes:
        return payload_of(await self._ask("state", lambda: self._runner.state(self._answered)))

    async def ask(self, job: Callable[[Any], Any]) -> Any:
        """Run `job(environment)` where the environment's code runs."""
        return await self._ask("job", lambda: self._runner.call(job, self._answered))

    async def ask_async(self, job: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run the coroutine function `job(environment)`; the session is busy with it, so it does not expire."""
        return await self._ask("job", lambda: self._runner.call_async(job, self._answered))

    async def _ask(self, what: str, start: Callable[[], None], timeout_s: float | None = None) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any, error: EnvHiveError | None) -> None:
            if not answer.done():
                answer.set_result(result) if error is None else answer.set_exception(error)

        def turn() -> None:
            if answer.cancelled():
                return
            self._asker = settle
            self._begin(what, start, timeout_s)

        if self._phase in _OVER:
            raise self._why_over()
        self._enqueue(Ask(turn, lambda error: settle(None, error)))
        try:
            return await answer
        except asyncio.CancelledError:
            if self._asker is settle and self._phase is _BUSY:
                self._runner.cancel()  # nobody wants to know what comes of it
            raise

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
        if self._phase is _CLOSED:
            return "over"
        if self._phase is _STUCK:
            return f"stuck in {self.busy_with}"
        if self.is_detached:
            return "waiting for its client" if not self.busy_with else f"{self.busy_with}, without its client"
        return self.busy_with or "idle"

    # The line of requests.

    def _enqueue(self, item: str | bytes | Ask) -> None:
        if self._phase in _OVER:
            return
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(item)
        if len(self._inbox) >= INBOX_LIMIT and not self._reading_paused and self._outlet is not None:
            self._reading_paused = True
            self._outlet.pause_reading()
        self._pump()

    def _pump(self) -> None:
        """Handle requests until one has to be waited for. A loop: ten thousand frames nest no deeper than one."""
        if self._pumping or self._inbox is None:
            return
        self._pumping = True
        try:
            while self._inbox and self._phase is _IDLE and not self._held:
                item = self._inbox.popleft()
                if isinstance(item, Ask):
                    item.turn()
                else:
                    self._handle(item)
        finally:
            self._pumping = False
        waiting = len(self._inbox) if self._inbox else 0
        if not waiting:
            self._inbox = None
        if self._reading_paused and waiting < INBOX_LIMIT // 2:
            self._reading_paused = False
            if self._outlet is not None:
                self._outlet.resume_reading()

    def _drop_inbox(self) -> None:
        dropped, self._inbox = self._inbox, None
        for item in dropped or ():
            if isinstance(item, Ask):
                item.fail(self._why_over())

    @property
    def ended_by(self) -> EnvHiveError | None:
        """What ended it, if it was not its client."""
        return self._ended_by

    def _why_over(self) -> EnvHiveError:
        return self._ended_by or SessionError("The session has ended")

    def _handle(self, frame: str | bytes) -> None:
        try:
            if isinstance(frame, bytes):
                raise InvalidJSONError("Invalid JSON: binary frames are not understood, send JSON as text")
            timeout_s = self._step_timeout
            if self._extended is None:
                message = decode_request(frame)
            else:
                request = message = decode_extended_request(frame)
                if (kept := self._extended.kept_reply(request.id)) is not None:
                    if self._outlet is not None:
                        self._outlet.send(kept)
                    return
                self._extended.request_id = request.id
                timeout_s = _within(request.timeout_s, timeout_s)
            kind = message.type
            if self._production and kind in _CONTROL:
                raise UnknownTypeError(f"{kind!r} is not available in production mode")
            if kind == "step":
                action, keywords = bytes(message.data), _NO_KEYWORDS if timeout_s is None else {"timeout_s": timeout_s}
                self._begin(kind, lambda: self._runner.step(action, keywords, self._answered), timeout_s)
            elif kind == "reset":
                start = functools.partial(self._runner.reset, decode_object(message.data), timeout_s, self._answered)
                self._was_reset = True
                self._begin(kind, start, timeout_s)
            elif kind == "state":
                self._begin(kind, lambda: self._runner.state(self._answered), None)
            elif kind == "mcp":
                self._begin_call(decode_object(message.data), timeout_s)
            elif self.outlives_connections and self._outlet is not None:
                self._outlet.close(NORMAL_CLOSURE, "")
            else:
                self.end()
        except (RequestError, SessionError) as error:
            if self._extended is not None and self._extended.request_id is None:
                self._extended.refused_id = id_of(frame)
            self._metrics.invalid_messages += 1
            self._phase = _BUSY
            self._answered(None, error)

    def _begin_call(self, document: dict[str, Any], timeout_s: float | None) -> None:
        """A JSON-RPC call, which is answered in JSON-RPC."""
        try:
            request = parse_request(document)
            plan = self.peer.plan(request)
            reply = encode_result(plan, request.id) if isinstance(plan, dict) else b""
        except JsonRpcError as error:
            plan, reply = {}, encode_error(error)
        if isinstance(plan, dict):
            self._begin("mcp", lambda: self._answered(encode_mcp_reply(reply), None), None)
            return

        def settle(answer: Any, error: EnvHiveError | None) -> None:
            self._send(encode_mcp_reply(conclude(plan, request, answer, error)))

        self._asker = settle  # so that a time-out, too, is answered in JSON-RPC
        self._begin(plan.what, lambda: self._start(plan, self._answered), timeout_s)

    def _start(self, plan: Plan, done: Done) -> None:
        begun, self._was_reset = self._was_reset, self._was_reset or plan.begins
        plan.start(self._runner, done, begun=begun)

    @property
    def peer(self) -> Peer:
        """Who speaks JSON-RPC with it."""
        if self._peer is None:
            self._peer = Peer(self._keeper.mcp, self.id)
        return self._peer

    async def carry_out(self, plan: Plan) -> Any:
        """Do what a JSON-RPC call asks for; raises what goes wrong."""
        return await self._ask(plan.what, lambda: self._start(plan, self._answered), self._step_timeout)

    def _begin(self, what: str, start: Callable[[], None], timeout_s: float | None) -> None:
        self._phase, self.busy_with = _BUSY, what
        self.last_active = self._clock()
        self._requests += 1
        number = self._requests
        start()
        if timeout_s is not None and self._phase is _BUSY and number == self._requests:
            self._set_deadline(timeout_s, lambda: self._overdue(what, timeout_s))

    def _overdue(self, what: str, timeout_s: float) -> None:
        """Answer for a request that takes too long. What stops when told to goes on; what does not is left behind."""
        self._overruled = StepTimeoutError(f"{what} took longer than {timeout_s:g} s")
        self._set_deadline(_STOPPING_S, self._give_up)
        if not self._runner.interrupt() and not self._runner.cancel():
            self._give_up()

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

    def _answered(self, reply: Any, error: EnvHiveError | None) -> None:
        """A request is done with: answer it, note it, and go on to the next, or to the end."""
        if self._overruled is not None:
            reply, error, self._overruled = None, self._overruled, None
        if self._deadline is not None:
            self._clear_deadline(self._deadline)
        if self._asker is None and self._extended is None and reply is not None and self._phase is not _STUCK:
            if self._outlet is not None:
                self._outlet.send(reply)  # as `_reply` would, two calls later
        elif self._phase is not _STUCK:
            if error is not None and self._phase is _CLOSING and self.ended_because == "shutdown":
                error = DrainingError("The server is shutting down")  # its own doing, and no fault of the environment's
            self._reply(reply, error)
        now, phase = self._clock(), self._phase
        if error is None and phase is _BUSY and self.busy_with == "step":
            if not self.steps % TIMED_STEPS:
                self._metrics.steps.seconds.observe(now - self.last_active)
            self.steps += 1
        elif phase is not _STUCK:
            self._note("abandoned" if phase is _CLOSING else "ok" if error is None else error.outcome)
        self.last_active = now
        self.busy_with = ""
        if phase is _BUSY:
            self._phase = _IDLE
            if self._inbox:
                self._pump()
        elif phase is _CLOSING or phase is _STUCK:
            self._close_environment()

    def _note(self, outcome: str) -> None:
        """Count the request that is over, if it is of a kind that is counted."""
        work = self._metrics.work.get(self.busy_with)
        if work is None:
            return
        work.outcomes[outcome] += 1
        if outcome == "ok":
            work.seconds.observe(self._clock() - self.last_active)

    def _reply(self, reply: Any, error: EnvHiveError | None) -> None:
        asker, self._asker = self._asker, None
        if asker is not None:
            asker(reply, error)
            return
        if reply is None:
            reply = self._error_reply(error or SessionError("The environment gave no answer"))
        self._send(reply)

    def _send(self, reply: bytes) -> None:
        if self._extended is not None:
            reply = self._extended.keep(reply)
        if self._outlet is not None:
            self._outlet.send(reply)

    def _error_reply(self, error: EnvHiveError) -> bytes:
        return encode_error_reply(error, extended=self._extended is not None)

    def _set_deadline(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._clear_deadline(self._deadline)
        self._deadline = asyncio.get_running_loop().call_later(seconds, callback)

    def _clear_deadline(self, deadline: asyncio.TimerHandle) -> None:
        deadline.cancel()
        self._deadline = None

    # Opening and closing.

    def _opened(self, env: Any, error: EnvHiveError | None) -> None:
        self._keeper.session_opened(self, error)
        self.last_active = self._clock()
        self.busy_with = ""
        if self._deadline is not None:
            self._clear_deadline(self._deadline)
        if self._phase is not _OPENING:
            self._close_environment()
        elif error is not None:
            outlet, self._outlet = self._outlet, None
            asked = bool(self._inbox)
            self._phase = _CLOSING
            self._ended_by, self.ended_because = error, "not_opened"
            self._drop_inbox()
            self._close_environment()
            if outlet is not None:
                outlet.refuse(error, INTERNAL_ERROR, asked=asked)
        else:
            self._phase = _IDLE
            self._pump()

    def _close_environment(self) -> None:
        self.busy_with = "closing"
        if self._phase is _CLOSING:
            self._set_deadline(_CLOSING_S, self._leave_behind)
        try:
            self._runner.close(self._environment_closed)
        except RuntimeError as error:  # no thread is left that could close it
            self._environment_closed(None, SessionError(str(error)))

    def _environment_closed(self, result: Any, error: EnvHiveError | None) -> None:
        if self._deadline is not None:
            self._clear_deadline(self._deadline)
        self.busy_with = ""
        if self._phase is _STUCK:
            self._keeper.session_stuck(self, stuck=False)
        else:
            self._phase = _CLOSED
            self._let_go()

    def _let_go(self) -> None:
        """The session is over for whoever is connected or waits, and its place is free."""
        outlet, self._outlet = self._outlet, None
        self._keeper.session_closed(self)
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if outlet is not None:
            outlet.close(*self._farewell)


def _within(asked: float | None, limit: float | None) -> float | None:
    """The shorter of two time limits, of which either may be missing; a request for none at all gets the server's."""
    if asked is None or not asked > 0:
        return limit
    return asked if limit is None else min(asked, limit)
