"""The requests of a session: read, handled one at a time and in order, within their time, and answered."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from envhive.errors import (
    DrainingError,
    EnvHiveError,
    InvalidJSONError,
    RequestError,
    SessionError,
    StepTimeoutError,
    UnknownTypeError,
)
from envhive.server.deadline import Deadline
from envhive.server.layer2 import Extended
from envhive.server.mcp import Peer, Plan, conclude
from envhive.server.metrics import TIMED_STEPS, Metrics
from envhive.server.outlet import Outlet
from envhive.server.phases import BUSY, CLOSING, IDLE, OPENING, OVER, STUCK
from envhive.server.runner import Runner
from envhive.server.threads import Done
from envhive.types import ServerMode
from envhive.wire.codec import (
    NOT_A_STEP,
    asks_for_tools,
    decode_extended_request,
    decode_extended_step,
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

STOPPING_S: Final = 2.0
"""How long code that is told to stop may take until the session goes on without it."""

SHUTTING_DOWN: Final = "The server is shutting down"
_NEVER_RESET: Final = (
    "This session was never reset: its environment is another than before, if there was one. Begin with a reset"
)
_CONTROL: Final = frozenset({"reset", "step", "state"})
_NO_KEYWORDS: Final[dict[str, Any]] = {}


class Ask:
    """A request that did not come as a frame."""

    __slots__ = ("fail", "turn")

    def __init__(self, turn: Callable[[], None], fail: Callable[[EnvHiveError], None]) -> None:
        self.turn = turn
        """Called when it is its turn."""
        self.fail = fail
        """Called instead when the session ends first."""


class Turns(ABC):
    """The line of requests before an environment, and the one whose turn it is."""

    __slots__ = (
        "_asker",
        "_careful",
        "_clock",
        "_deadline",
        "_ended_by",
        "_extended",
        "_held",
        "_inbox",
        "_metrics",
        "_must_be_reset",
        "_notes_beginnings",
        "_outlet",
        "_overruled",
        "_patience",
        "_phase",
        "_production",
        "_pumping",
        "_reading_paused",
        "_runner",
        "_step_keywords",
        "_step_timeout",
        "_was_reset",
        "busy_with",
        "ended_because",
        "last_active",
        "steps",
    )

    def __init__(
        self,
        runner: Runner,
        outlet: Outlet | None,
        *,
        mode: ServerMode,
        require_reset: bool,
        extended: Extended | None,
        step_timeout: float | None,
        metrics: Metrics | None,
        clock: Callable[[], float],
    ) -> None:
        self.steps = 0
        self.busy_with = "opening"
        self.last_active = clock()
        """When the last request ended, or the running one began."""
        self.ended_because = "closed"
        """Why it is over, in a word, once it is."""
        self._clock = clock
        self._production = mode is ServerMode.PRODUCTION
        self._must_be_reset = require_reset
        self._careful = self._production or require_reset
        """Whether a step has to be looked at before it is taken."""
        self._extended = extended
        self._step_timeout = step_timeout
        self._step_keywords = _NO_KEYWORDS if step_timeout is None else {"timeout_s": step_timeout}
        self._notes_beginnings = step_timeout is not None or not runner.may_answer_at_once
        self._runner = runner
        self._outlet = outlet
        self._metrics = metrics or Metrics()
        self._phase = OPENING
        self._inbox: deque[str | bytes | Ask] | None = None  # made when first needed: 0.8 kB that few sessions need
        self._ended_by: EnvHiveError | None = None
        self._deadline: Deadline | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._overruled: EnvHiveError | None = None
        self._asker: Done | None = None
        self._held = False
        self._was_reset = False
        self._pumping = False
        self._reading_paused = False

    # What becomes of the session, which is not for its requests to say.

    @property
    @abstractmethod
    def peer(self) -> Peer:
        """Who speaks JSON-RPC with it."""

    @abstractmethod
    def leave(self) -> None:
        """The client says goodbye."""

    @abstractmethod
    def _give_up(self) -> None:
        """The request that is overdue does not stop: go on without it."""

    @abstractmethod
    def _close_environment(self) -> None:
        """The last request has ended, of a session that is over."""

    # Requests that come as frames.

    def receive(self, frame: str) -> None:
        """Take a text frame from the client. Its reply goes to the outlet, in order."""
        if (reply := self.take(frame)) is not None and self._outlet is not None:
            self._outlet.send(reply)

    def take(self, frame: str) -> bytes | None:
        """The same, but the reply to a step that is over when this returns is left to the caller to send."""
        if self._phase is not IDLE or self._inbox or self._held:
            self._enqueue(frame)
            return None
        if self._careful:
            self._handle(frame)
            return None
        extended = self._extended
        try:
            if extended is None:
                action = bytes(decode_step(frame).data)
            else:
                request = decode_extended_step(frame)
                if request.timeout_s is not None or not extended.is_new(request.id):
                    self._handle(frame)
                    return None
                action, extended.request_id = bytes(request.data), request.id
        except NOT_A_STEP:
            self._handle(frame)
            return None
        self._phase, self.busy_with = BUSY, "step"
        is_timed = not self.steps % TIMED_STEPS
        if is_noted := is_timed or self._notes_beginnings:
            self.last_active = self._clock()
        reply = self._runner.begin_step(action, self._step_keywords, self._answered)
        if reply is None:
            if self._step_timeout is not None and self._phase is BUSY:
                self._set_deadline(self._step_timeout)
            if not is_noted:
                self.last_active = self._clock()
            return None
        if self._phase is not BUSY or self._inbox:
            self._answered(reply, None)
            return None
        # It did not have to be waited for: nothing of what may happen meanwhile has.
        now = self._clock()
        if is_timed:
            self._metrics.steps.seconds.observe(now - self.last_active)
        self.steps += 1
        self.last_active = now
        self.busy_with = ""
        self._phase = IDLE
        return reply if extended is None else extended.keep(reply)

    def receive_binary(self, frame: bytes) -> None:
        """Take a binary frame, which gets an error for an answer."""
        self._enqueue(frame)

    def hold(self) -> None:
        """The client does not read its replies: handle nothing more until `unhold`."""
        self._held = True

    def unhold(self) -> None:
        self._held = False
        self._pump()

    # Requests that come by another way than frames.

    async def ask_reset(self, keywords: dict[str, Any], timeout_s: float | None = None) -> bytes:
        timeout_s = _within(timeout_s, self._step_timeout)
        start = functools.partial(self._runner.reset, keywords, timeout_s, self._answered)
        self._was_reset = True
        return payload_of(await self._ask("reset", start, timeout_s))

    async def ask_step(self, action: bytes, keywords: dict[str, Any], timeout_s: float | None = None) -> bytes:
        timeout_s = _within(timeout_s, self._step_timeout)
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

        if self._phase in OVER:
            raise self._why_over()
        self._enqueue(Ask(turn, lambda error: settle(None, error)))
        try:
            return await answer
        except asyncio.CancelledError:
            if self._asker is settle and self._phase is BUSY:
                self._runner.cancel()  # nobody wants to know what comes of it
            raise

    async def carry_out(self, plan: Plan) -> Any:
        """Do what a JSON-RPC call asks for; raises what goes wrong."""
        return await self._ask(plan.what, lambda: self._start(plan, self._answered), self._step_timeout)

    # The line of requests.

    def _enqueue(self, item: str | bytes | Ask) -> None:
        if self._phase in OVER:
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
            while self._inbox and self._phase is IDLE and not self._held:
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

    def _why_over(self) -> EnvHiveError:
        return self._ended_by or SessionError("The session has ended")

    # One request.

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
                raise UnknownTypeError(f"{kind!r} is not available in production mode; `--mode simulation` offers it")
            if kind == "step":
                if self._must_be_reset and not self._was_reset and not asks_for_tools(message.data):
                    raise SessionError(_NEVER_RESET)
                action, keywords = bytes(message.data), _NO_KEYWORDS if timeout_s is None else {"timeout_s": timeout_s}
                self._begin(kind, lambda: self._runner.step(action, keywords, self._answered), timeout_s)
            elif kind == "reset":
                start = functools.partial(self._runner.reset, decode_object(message.data), timeout_s, self._answered)
                self._was_reset, self._careful = True, self._production
                self._begin(kind, start, timeout_s)
            elif kind == "state":
                self._begin(kind, lambda: self._runner.state(self._answered), None)
            elif kind == "mcp":
                self._begin_call(decode_object(message.data), timeout_s)
            else:
                self.leave()
        except (RequestError, SessionError) as error:
            if self._extended is not None and self._extended.request_id is None:
                self._extended.refused_id = id_of(frame)
            self._metrics.invalid_messages += 1
            self._phase = BUSY
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

    def _begin(self, what: str, start: Callable[[], None], timeout_s: float | None) -> None:
        self._phase, self.busy_with = BUSY, what
        self.last_active = self._clock()
        if timeout_s is not None:
            self._set_deadline(timeout_s)
        start()

    def _set_deadline(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._deadline is None or self._deadline.loop is not loop:  # test clients have a loop for each request
            self._deadline = Deadline(loop, self._clock, self._overdue)
        self._deadline.set(seconds, self.last_active)

    def _overdue(self) -> None:
        """Answer for a request that takes too long. What stops when told to goes on; what does not is left behind."""
        assert self._deadline is not None
        self._overruled = StepTimeoutError(f"{self.busy_with} took longer than {self._deadline.seconds:g} s")
        self._wait_for(STOPPING_S, self._give_up)
        if not self._runner.interrupt() and not self._runner.cancel():
            self._give_up()

    def _answered(self, reply: Any, error: EnvHiveError | None) -> None:
        """A request is done with: answer it, note it, and go on to the next, or to the end."""
        if self._overruled is not None:
            reply, error, self._overruled = None, self._overruled, None
        if self._deadline is not None:
            self._deadline.clear()
        if self._patience is not None:
            self._wait_no_more(self._patience)
        if self._asker is None and reply is not None and self._phase is not STUCK:
            if self._extended is not None:
                reply = self._extended.keep(reply)
            if self._outlet is not None:
                self._outlet.send(reply)  # as `_reply` would, two calls later
        elif self._phase is not STUCK:
            if error is not None and self._phase is CLOSING and self.ended_because == "shutdown":
                error = DrainingError(SHUTTING_DOWN)  # its own doing, and no fault of the environment's
            self._reply(reply, error)
        now, phase = self._clock(), self._phase
        if error is None and phase is BUSY and self.busy_with == "step":
            if not self.steps % TIMED_STEPS:
                self._metrics.steps.seconds.observe(now - self.last_active)
            self.steps += 1
        elif phase is not STUCK:
            self._note("abandoned" if phase is CLOSING else "ok" if error is None else error.outcome)
        self.last_active = now
        self.busy_with = ""
        if phase is BUSY:
            self._phase = IDLE
            if self._inbox:
                self._pump()
        elif phase is CLOSING or phase is STUCK:
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

    def _wait_for(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` if what was told to stop, or to close, has not done so by then."""
        if self._patience is not None:
            self._wait_no_more(self._patience)
        if self._deadline is not None:
            self._deadline.clear()
        self._patience = asyncio.get_running_loop().call_later(seconds, callback)

    def _wait_no_more(self, patience: asyncio.TimerHandle) -> None:
        patience.cancel()
        self._patience = None


def _within(asked: float | None, limit: float | None) -> float | None:
    """The shorter of two time limits, of which either may be missing; a request for none at all gets the server's."""
    if asked is None or not asked > 0:
        return limit
    return asked if limit is None else min(asked, limit)
