"""A storm, as one load process makes it: sessions all at once, each a reset, a step and a goodbye."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import httptools
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from envhive.bench.dial import Dialer, Said, kind_of
from envhive.bench.jobs import Storm, Stormed, clock, durations, pack

_RESET: Final = b'{"type": "reset", "data": {}}'
_REPORT_EVERY_S: Final = 0.25
_OK: Final = 200
_SESSION: Final = "X-Session-Id"
_LONGEST_ERROR: Final = 64 * 1024


class Visitor(Protocol):
    """One session of a storm."""

    def start(self, dialer: Dialer) -> Any: ...

    def abort(self) -> None: ...


class Tally:
    """What has come of the sessions so far, and who waits for the last of them."""

    def __init__(self, sessions: int, begin_at: float) -> None:
        self.sessions = sessions
        self.begin_at = begin_at
        self.connect, self.reset, self.step, self.whole = durations(), durations(), durations(), durations()
        self.errors: Counter[str] = Counter()
        self.said = Said()
        self.ended_at = begin_at
        self.settled = 0
        self.all_settled = asyncio.Event()

    def succeed(self, connected_at: float, reset_at: float, stepped_at: float) -> None:
        now = clock()
        self.connect.append(connected_at - self.begin_at)
        self.reset.append(reset_at - connected_at)
        self.step.append(stepped_at - reset_at)
        self.whole.append(now - self.begin_at)
        self._settle(now)

    def fail(self, kind: str) -> None:
        self.errors[kind] += 1
        self._settle(clock())

    def _settle(self, now: float) -> None:
        self.ended_at = max(self.ended_at, now)
        self.settled += 1
        if self.settled == self.sessions:
            self.all_settled.set()


class WebSocketVisitor(WSListener):
    """A session over WebSocket."""

    def __init__(self, tally: Tally, step: bytes) -> None:
        self._tally = tally
        self._step = step
        self._transport: WSTransport | None = None
        self._connected_at = self._reset_at = self._stepped_at = 0.0
        self._settled = False

    async def start(self, dialer: Dialer) -> None:
        try:
            await dialer.connect_ws(self)
        except Exception as error:  # whatever goes wrong is what is being counted
            self._fail(kind_of(error))

    def abort(self) -> None:
        if self._stepped_at:
            self._succeed()  # only the goodbye is missing
        self._fail("timed out")
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._connected_at = clock()
        transport.send(WSMsgType.TEXT, _RESET)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.CLOSE:
            transport.disconnect()
        elif frame.msg_type is WSMsgType.TEXT:
            error, _ = self._tally.said.read(frame.get_payload_as_memoryview())
            if error is not None:
                self._fail(error)
                transport.send_close(WSCloseCode.OK)
            elif not self._reset_at:
                self._reset_at = clock()
                transport.send(WSMsgType.TEXT, self._step)
            elif not self._stepped_at:
                self._stepped_at = clock()
                transport.send_close(WSCloseCode.OK)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._stepped_at:
            self._succeed()
        self._fail("connection lost")

    def _succeed(self) -> None:
        if not self._settled:
            self._settled = True
            self._tally.succeed(self._connected_at, self._reset_at, self._stepped_at)

    def _fail(self, kind: str) -> None:
        if not self._settled:
            self._settled = True
            self._tally.fail(kind)


class HttpRequests:
    """The requests of a session, as they go over the wire."""

    def __init__(self, dialer: Dialer, action: str) -> None:
        self._dialer = dialer
        self._action = f'{{"action": {action}}}'
        self.reset = self._post("/reset", "{}")
        self._step = self._post("/step", self._action)

    def step(self, session: str | None) -> bytes:
        return self._step if session is None else self._post("/step", self._action, session)

    def close(self, session: str) -> bytes:
        return self._post("/close", "", session)

    def _post(self, path: str, body: str, session: str | None = None) -> bytes:
        dialer = self._dialer
        head = f"POST {dialer.prefix}{path} HTTP/1.1\r\nHost: {dialer.netloc}\r\nContent-Type: application/json\r\n"
        named = {} if session is None else {_SESSION: session}
        head += "".join(f"{name}: {value}\r\n" for name, value in (dialer.headers | named).items())
        return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()


class HttpVisitor(asyncio.Protocol):
    """The same over HTTP, on one connection: POST /reset, POST /step, and POST /close of the session, if it has a name.

    A server that names none makes a new environment for the step.
    """

    def __init__(self, tally: Tally, requests: HttpRequests) -> None:
        self._tally = tally
        self._requests = requests
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""  # of an error
        self._session: str | None = None
        self._connected_at = self._reset_at = self._stepped_at = 0.0
        self._settled = False

    async def start(self, dialer: Dialer) -> None:
        try:
            await dialer.connect(self)
        except Exception as error:  # whatever goes wrong is what is being counted
            self._fail(kind_of(error))

    def abort(self) -> None:
        self._fail("timed out")
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by birth
        self._connected_at = clock()
        self._transport.write(self._requests.reset)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("reply makes no sense")
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._reset_at and name.lower() == _SESSION.lower().encode():
            self._session = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != _OK and len(self._body) < _LONGEST_ERROR:
            self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        status = self._parser.get_status_code()
        if self._stepped_at:
            self._leave()
        elif status != _OK:
            self._fail(self._tally.said.read_http(status, self._body))
            self._transport.close()
        elif not self._reset_at:
            self._reset_at = clock()
            self._transport.write(self._requests.step(self._session))
        else:
            self._stepped_at = clock()
            if self._session is None:
                self._leave()
            else:
                self._transport.write(self._requests.close(self._session))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("connection lost")

    def _leave(self) -> None:
        self._settle()
        if self._transport is not None:
            self._transport.close()

    def _fail(self, kind: str) -> None:
        if self._stepped_at:
            self._settle()  # only the goodbye is missing
        elif not self._settled:
            self._settled = True
            self._tally.fail(kind)

    def _settle(self) -> None:
        if not self._settled:
            self._settled = True
            self._tally.succeed(self._connected_at, self._reset_at, self._stepped_at)


async def storm(job: Storm, report: Callable[[int, int], None]) -> Stormed:
    """Make a storm; `report` is told now and then how many sessions are done, and how many of them failed."""
    tally = Tally(job.sessions, job.begin_at)
    dialer = Dialer(job.url, job.sources)
    try:
        await dialer.look_up()
    except OSError as error:
        tally.errors[kind_of(error)] += job.sessions
        return _result(tally, 0.0)
    visitors = _visitors(job, tally, dialer)
    await asyncio.sleep(max(job.begin_at - clock(), 0))
    spent = time.process_time()
    tasks = [asyncio.ensure_future(visitor.start(dialer)) for visitor in visitors]
    deadline = job.begin_at + job.timeout_s
    try:
        while not tally.all_settled.is_set() and clock() < deadline:
            try:
                await asyncio.wait_for(tally.all_settled.wait(), min(_REPORT_EVERY_S, max(deadline - clock(), 0.001)))
            except TimeoutError:
                report(tally.settled, sum(tally.errors.values()))
    finally:
        for visitor in visitors:
            visitor.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        dialer.hang_up()
    return _result(tally, time.process_time() - spent)


def _visitors(job: Storm, tally: Tally, dialer: Dialer) -> list[Visitor]:
    if job.mode == "http":
        requests = HttpRequests(dialer, job.action)
        return [HttpVisitor(tally, requests) for _ in range(job.sessions)]
    step = f'{{"type": "step", "data": {job.action}}}'.encode()
    return [WebSocketVisitor(tally, step) for _ in range(job.sessions)]


def _result(tally: Tally, cpu_s: float) -> Stormed:
    return Stormed(
        connect=pack(tally.connect),
        reset=pack(tally.reset),
        step=pack(tally.step),
        whole=pack(tally.whole),
        errors=dict(tally.errors),
        ended_at=tally.ended_at,
        cpu_s=cpu_s,
        said=tally.said.words,
    )
