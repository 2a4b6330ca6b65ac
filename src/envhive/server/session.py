"""One session: an environment, its runner, its clock, and the line of requests before it.

A session knows nothing of sockets. Frames come in through `receive`; replies go out through the
`Outlet` that whoever holds the connection provides. Requests are handled one at a time, in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Final, Protocol

from envhive.errors import (
    EnvHiveError,
    InvalidJSONError,
    RequestError,
    SessionError,
    SessionExpiredError,
    UnknownTypeError,
)
from envhive.server.auth import Owner
from envhive.server.mcp import answer_mcp
from envhive.server.runner import Runner
from envhive.server.threads import Done
from envhive.types import ServerMode, SessionInfo
from envhive.wire.codec import (
    NOT_A_STEP,
    decode_object,
    decode_request,
    decode_step,
    encode_error_reply,
    encode_mcp_reply,
    payload_of,
)

INBOX_LIMIT: Final = 64
"""Requests that may wait before the session asks its outlet to stop reading."""

_CONTROL: Final = frozenset({"reset", "step", "state"})
_NO_KEYWORDS: Final[dict[str, Any]] = {}

NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013


class Outlet(Protocol):
    """The connection, as a session sees it."""

    def send(self, frame: bytes) -> None:
        """Send a text frame."""

    def close(self, code: int, reason: str) -> None:
        """Nothing more will be sent: close, after what was sent has gone out."""

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None:
        """There will be no session: say why, and close when the client has heard it.

        A client that has not `asked` anything yet is about to. Its request must still find the connection
        open, or it sees a broken connection and never reads why.
        """

    def pause_reading(self) -> None:
        """Too many requests are waiting: read no more for now."""

    def resume_reading(self) -> None:
        """Read on."""


class Keeper(Protocol):
    """Whoever keeps the session, and wants to know what becomes of it."""

    def session_opened(self, session: Session, error: EnvHiveError | None) -> None:
        """Its environment has been made, or could not be."""

    def session_closed(self, session: Session) -> None:
        """Its environment is closed; the place is free."""


class Phase(Enum):
    OPENING = auto()
    IDLE = auto()
    BUSY = auto()
    CLOSING = auto()
    CLOSED = auto()


# A name of the module is found in a tenth of the time that a member of an enum takes: 1 µs a step.
_OPENING: Final = Phase.OPENING
_IDLE: Final = Phase.IDLE
_BUSY: Final = Phase.BUSY
_CLOSING: Final = Phase.CLOSING
_CLOSED: Final = Phase.CLOSED


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
        "_clock",
        "_closed",
        "_created_at",
        "_ended_by",
        "_farewell",
        "_held",
        "_inbox",
        "_keeper",
        "_outlet",
        "_phase",
        "_production",
        "_pumping",
        "_reading_paused",
        "_runner",
        "busy_with",
        "id",
        "last_active",
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = session_id
        self.owner = owner
        """Who made it, where tokens are asked for."""
        self.steps = 0
        self.busy_with = "opening"
        self.last_active = clock()
        self._created_at = time.time()
        self._clock = clock
        self._production = mode is ServerMode.PRODUCTION
        self._runner = runner
        self._outlet = outlet
        self._keeper = keeper
        self._phase = _OPENING
        self._inbox: deque[str | bytes | Ask] | None = None  # made when first needed: 0.8 kB that few sessions need
        self._farewell = (NORMAL_CLOSURE, "")
        self._closed: asyncio.Future[None] | None = None
        self._ended_by: EnvHiveError = SessionError("The session has ended")
        self._held = False
        self._pumping = False
        self._reading_paused = False

    # What a connection does with a session.

    def open(self) -> None:
        """Make the environment. Requests that come meanwhile wait."""
        self._runner.open(self._opened)

    def receive(self, frame: str) -> None:
        """Take a text frame from the client. Its reply goes to the outlet, in order."""
        if self._phase is not _IDLE or self._inbox or self._held or self._production:
            self._enqueue(frame)
            return
        try:
            action = bytes(decode_step(frame).data)
        except NOT_A_STEP:
            self._handle(frame)
        else:
            self._phase, self.busy_with = _BUSY, "step"
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

    def detach(self) -> None:
        """The connection is gone. The session ends as soon as its environment lets it."""
        self._outlet = None
        self.end()

    # How a session ends.

    def end(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        """End now: a running coroutine is cancelled, a running thread is waited for; then the environment closes."""
        if self._phase in (_CLOSING, _CLOSED):
            return
        was = self._phase
        self._phase = _CLOSING
        self._farewell = (code, reason)
        self._drop_inbox()
        if was is _BUSY:
            self._runner.cancel()
        elif was is _IDLE:
            self._close_environment()

    def retire(self, code: int, reason: str) -> None:
        """End as soon as the running request, if any, has been answered."""
        if self._phase in (_OPENING, _BUSY):
            self._drop_inbox()
            self._inbox = deque([Ask(lambda: self.end(code, reason), lambda error: None)])
        else:
            self.end(code, reason)

    def expire(self, idle_limit: float) -> None:
        self._ended_by = SessionExpiredError(f"Session expired: idle for more than {idle_limit:g} s")
        if self._outlet is not None:
            self._outlet.send(encode_error_reply(self._ended_by))
        self.end(GOING_AWAY, str(self._ended_by))

    def idle_since(self) -> float | None:
        """When it last did something; None while it is doing something. A busy session is never idle."""
        return self.last_active if self._phase is _IDLE and not self._inbox else None

    async def wait_closed(self) -> None:
        """Wait until the environment is closed and the place is free."""
        if self._phase is not _CLOSED:
            if self._closed is None:
                self._closed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._closed)

    @property
    def phase(self) -> Phase:
        return self._phase

    # Requests that come by another way than frames.

    async def ask_reset(self, keywords: dict[str, Any]) -> bytes:
        return payload_of(await self._ask("reset", lambda done: self._runner.reset(keywords, done)))

    async def ask_step(self, action: bytes, keywords: dict[str, Any]) -> bytes:
        return payload_of(await self._ask("step", lambda done: self._runner.step(action, keywords, done)))

    async def ask_state(self) -> bytes:
        return payload_of(await self._ask("state", self._runner.state))

    async def ask(self, job: Callable[[Any], Any]) -> Any:
        """Run `job(environment)` where the environment's code runs."""
        return await self._ask("job", lambda done: self._runner.run(job, (self._runner.env,), done))

    async def ask_async(self, job: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run the coroutine function `job(environment)`; the session is busy with it, so it does not expire."""
        return await self._ask("job", lambda done: self._runner.run_async(job(self._runner.env), done))

    async def _ask(self, what: str, start: Callable[[Done], None]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: EnvHiveError | None) -> None:
            if error is not None:
                fail(error)
            elif not answer.done():
                answer.set_result(result)
            self._settle(error)

        def turn() -> None:
            self._phase, self.busy_with = _BUSY, what
            start(done)

        def fail(error: EnvHiveError) -> None:
            if not answer.done():
                answer.set_exception(error)

        if self._phase in (_CLOSING, _CLOSED):
            raise self._ended_by
        self._enqueue(Ask(turn, fail))
        return await answer

    def info(self) -> SessionInfo:
        env = self._runner.env
        return SessionInfo(
            session_id=self.id,
            created_at=self._created_at,
            last_activity_at=time.time() - max(0.0, self._clock() - self.last_active),
            step_count=self.steps,
            environment_type=type(env).__name__ if env is not None else "",
        )

    def summary(self, now: float) -> dict[str, Any]:
        """What to show of it in a list of sessions."""
        return {
            "session_id": self.id,
            "owner": None if self.owner is None else self.owner.name,
            "age_s": round(max(0.0, time.time() - self._created_at), 1),
            "idle_s": 0.0 if self._phase is _BUSY else round(max(0.0, now - self.last_active), 1),
            "steps": self.steps,
            "doing": self.busy_with or "idle",
        }

    # The line of requests.

    def _enqueue(self, item: str | bytes | Ask) -> None:
        if self._phase in (_CLOSING, _CLOSED):
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
                item.fail(self._ended_by)

    def _handle(self, frame: str | bytes) -> None:
        try:
            if isinstance(frame, bytes):
                raise InvalidJSONError("Invalid JSON: binary frames are not understood, send JSON as text")
            message = decode_request(frame)
            kind = message.type
            if self._production and kind in _CONTROL:
                raise UnknownTypeError(f"{kind!r} is not available in production mode")
            if kind == "step":
                self._phase, self.busy_with = _BUSY, kind
                self._runner.step(bytes(message.data), _NO_KEYWORDS, self._answered)
            elif kind == "reset":
                keywords = decode_object(message.data)
                self._phase, self.busy_with = _BUSY, kind
                self._runner.reset(keywords, self._answered)
            elif kind == "state":
                self._phase, self.busy_with = _BUSY, kind
                self._runner.state(self._answered)
            elif kind == "mcp":
                self._phase, self.busy_with = _BUSY, kind
                self._answered(encode_mcp_reply(answer_mcp(decode_object(message.data), self.id)), None)
            else:
                self.end()
        except RequestError as error:
            self._answered(None, error)

    def _answered(self, reply: bytes | None, error: EnvHiveError | None) -> None:
        if reply is None:
            reply = encode_error_reply(error or SessionError("The environment gave no answer"))
        if self._outlet is not None:
            self._outlet.send(reply)
        self._settle(error)

    def _settle(self, error: EnvHiveError | None) -> None:
        """A request is done with: note it, and go on to the next, or to the end."""
        self.last_active = self._clock()
        if error is None and self.busy_with == "step":
            self.steps += 1
        self.busy_with = ""
        if self._phase is _BUSY:
            self._phase = _IDLE
            if self._inbox:
                self._pump()
        elif self._phase is _CLOSING:
            self._close_environment()

    # Opening and closing.

    def _opened(self, env: Any, error: EnvHiveError | None) -> None:
        self._keeper.session_opened(self, error)
        self.last_active = self._clock()
        self.busy_with = ""
        if error is not None:
            outlet, self._outlet = self._outlet, None
            asked = bool(self._inbox)
            self._phase = _CLOSING
            self._ended_by = error
            self._drop_inbox()
            self._close_environment()
            if outlet is not None:
                outlet.refuse(error, INTERNAL_ERROR, asked=asked)
        elif self._phase is _CLOSING:
            self._close_environment()
        else:
            self._phase = _IDLE
            self._pump()

    def _close_environment(self) -> None:
        self.busy_with = "closing"
        self._runner.close(self._environment_closed)

    def _environment_closed(self, result: Any, error: EnvHiveError | None) -> None:
        self._phase, self.busy_with = _CLOSED, ""
        outlet, self._outlet = self._outlet, None
        self._keeper.session_closed(self)
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if outlet is not None:
            outlet.close(*self._farewell)
