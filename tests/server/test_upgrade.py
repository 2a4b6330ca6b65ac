"""An upgrade looks to an app, and to a client, as if uvicorn alone had seen to it, whoever carries the frames then."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import pytest
from fastapi import Depends, FastAPI, WebSocketException

from envhive import HTTPEnvServer, create_app
from envhive.server.fast_lane import FastConnection
from envhive.server.intake import HttpProtocol
from envhive.server.run import bind
from envhive.server.upgrade import TakeOver, Upgrading, UvicornProtocol
from tests.support.envs import Move, Seen, counting
from tests.support.raw import CLOSE, dial, frame, hang_up, upgrade_request
from tests.support.servers import Lane, Running, eventually, reset, running, step

LANES: Final[list[Lane]] = ["fast", "asgi"]
GOODBYE: Final = frame(b"\x03\xe8", opcode=CLOSE)
KEY: Final = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE: Final = ("Host: here", "Upgrade: websocket", "Connection: Upgrade", KEY, "Sec-WebSocket-Version: 13")


def serving(app: Any, lane: Lane, **options: Any) -> AbstractContextManager[Running]:
    """Ours, or uvicorn's own with the same parser of heads."""
    return running(app, lane, lifespan="off", **({} if lane == "fast" else {"http": "httptools"}), **options)


def rest_of(sock: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    received = b""
    while data := sock.recv(65536):
        received += data
    return received


def ask(app: Any, lane: Lane, request: bytes) -> bytes:
    """All that a server answers to a request, and then to a goodbye if there is a connection."""
    with serving(app, lane) as server, dial(server.port) as sock:
        sock.sendall(request)
        with sock.makefile("rb") as answer:
            head = [answer.readline()]
            while head[-1].strip():
                head.append(answer.readline())
            rest = b""
            with suppress(ConnectionResetError):  # it did not wait for our goodbye
                if b" 101 " in head[0]:
                    sock.sendall(GOODBYE)
                rest = answer.read()
            return b"".join(head) + rest


def head_of(*lines: str, first: str = "GET /ws HTTP/1.1") -> bytes:
    return "\r\n".join((first, *lines, "", "")).encode("latin-1")


def undated(answer: bytes) -> list[bytes]:
    """An answer's lines, but for those that no two answers share; names of headers in lower case, in any order."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    named = [line.split(b":", 1) for line in headers]
    return [first, *sorted(name.lower() + b":" + value for name, value in named if name.lower() != b"date"), body]


@pytest.mark.parametrize(
    "request_head",
    [
        head_of(*UPGRADE),
        head_of(*UPGRADE, first="GET /a%20b/%C3%A9?x=%20y&z HTTP/1.1"),
        head_of(*UPGRADE, first="GET /?a?b HTTP/1.1"),
        head_of(*UPGRADE, "Sec-WebSocket-Protocol: a, b", "Sec-WebSocket-Protocol: c"),
        head_of(*UPGRADE, "X-Twice: 1", "x-twice:   2  ", "X-Empty:", "X-Latin: \xe9"),
        head_of("Host: here", "UPGRADE: WebSocket", "Connection: keep-alive, Upgrade", *UPGRADE[3:]),
        head_of(*UPGRADE, first="GET http://there/ws HTTP/1.1"),
    ],
)
def test_an_app_sees_the_scope_that_it_would_see_from_uvicorn(request_head: bytes) -> None:
    scopes: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        scopes.append({**scope, "extensions": {}, "server": None, "client": scope["client"][0]})
        assert (await receive()) == {"type": "websocket.connect"}
        await send({"type": "websocket.close"})

    answers = [ask(app, lane, request_head) for lane in LANES]
    assert scopes[0] == scopes[1]
    assert undated(answers[0]) == undated(answers[1])


@pytest.mark.parametrize(
    "request_head",
    [
        head_of(*UPGRADE[:3], "Sec-WebSocket-Version: 13"),
        head_of(*UPGRADE[:3], KEY),
        head_of(*UPGRADE[:3], KEY, "Sec-WebSocket-Version: 12"),
        head_of(*UPGRADE[:3], KEY, KEY, "Sec-WebSocket-Version: 13"),
        head_of(*UPGRADE, "Sec-WebSocket-Version: 13"),
        head_of(*UPGRADE, "Upgrade: h2c"),
        head_of(*UPGRADE[:3], "Sec-WebSocket-Key: short", "Sec-WebSocket-Version: 13"),
        head_of(*UPGRADE[:3], "Sec-WebSocket-Key: " + "\xe9" * 24, "Sec-WebSocket-Version: 13"),
        head_of(*UPGRADE, "Content-Length: 0", first="POST /ws HTTP/1.1"),
        head_of(*UPGRADE, "Connection: close", first="GET /ws HTTP/1.0"),
    ],
)
def test_an_upgrade_that_is_not_in_order_gets_uvicorns_answer(request_head: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
            return
        await send({"type": "http.response.start", "status": 418, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"no socket"})

    answers = [ask(app, lane, request_head) for lane in LANES]
    assert not answers[0].startswith(b"HTTP/1.1 101")
    assert undated(answers[0]) == undated(answers[1])


async def refuse(receive: Any, send: Any) -> None:
    await send({"type": "websocket.close", "code": 1008})


async def deny(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.http.response.start", "status": 451, "headers": [(b"x-why", b"law")]})
    await send({"type": "websocket.http.response.body", "body": b"not ", "more_body": True})
    await send({"type": "websocket.http.response.body", "body": b"here"})


async def fail(receive: Any, send: Any) -> None:
    raise ZeroDivisionError("an app's own")


async def return_early(receive: Any, send: Any) -> None:
    await receive()


async def misspell(receive: Any, send: Any) -> None:
    await send({"type": "websocket.acept"})


async def accept_and_say(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept", "subprotocol": "b", "headers": [(b"X-Extra", b"1")]})
    await send({"type": "websocket.send", "text": "hello"})
    await send({"type": "websocket.close", "code": 1000})


async def accept_and_fail(receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    raise ZeroDivisionError("an app's own")


@pytest.mark.parametrize("behave", [refuse, deny, fail, return_early, misspell, accept_and_say, accept_and_fail])
def test_whatever_an_app_does_is_answered_as_uvicorn_does(behave: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        await behave(receive, send)

    answers, logs = [], []
    for lane in LANES:
        caplog.clear()
        answers.append(undated(ask(app, lane, head_of(*UPGRADE, "Sec-WebSocket-Protocol: a, b"))))
        logs.append([record.message for record in caplog.records if record.levelno >= logging.ERROR])
    assert answers[0] == answers[1]
    assert logs[0] == ([] if behave is deny else logs[1])  # uvicorn logs an error for what an app has denied


class Deciding:
    """An app that takes its time over upgrades before it does something with them."""

    def __init__(self, then: Any) -> None:
        self._then = then
        self._asked = threading.Event()
        self._may_go_on = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: str | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked.set()
        await self._may_go_on.wait()
        try:
            await self._then(scope, receive, send)
        except Exception as error:
            self.failure = type(error).__name__
            raise

    def wait_until_asked(self) -> None:
        assert self._asked.wait(10)

    def go_on(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._may_go_on.set)


async def shout(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"].upper()})


def test_frames_that_come_before_the_answer_reach_an_apps_own_socket() -> None:
    app = Deciding(shout)
    with serving(app, "fast") as server, dial(server.port) as sock:
        sock.sendall(upgrade_request(server.port) + frame(b"one"))
        app.wait_until_asked()
        sock.sendall(frame(b"two"))
        app.go_on()
        with sock.makefile("rb") as answer:
            while answer.readline().strip():
                pass
            assert answer.read(10) == b"\x81\x03ONE\x81\x03TWO"


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("lane", LANES)
def test_an_app_hears_of_a_client_that_leaves_before_its_answer(lane: Lane, hard: bool) -> None:
    heard: list[Any] = []

    async def listen(scope: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])
        await send({"type": "websocket.accept"})

    app = Deciding(listen)
    with serving(app, lane) as server:
        sock = dial(server.port)
        sock.sendall(upgrade_request(server.port))
        app.wait_until_asked()
        hang_up(sock, hard=hard)
        eventually(lambda: not server.connections)
        app.go_on()
        eventually(lambda: app.failure is not None)
    assert heard == [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1006}]
    assert app.failure == "ClientDisconnected"


def test_no_session_is_opened_for_a_client_that_has_left() -> None:
    env = counting()
    app = Deciding(create_app(env, Move, Seen))
    with serving(app, "fast") as server:
        sock = dial(server.port)
        sock.sendall(upgrade_request(server.port))
        app.wait_until_asked()
        hang_up(sock)
        eventually(lambda: not server.connections)
        app.go_on()
        with server.connect() as ws:  # one more, so that the first has been seen to
            assert reset(ws)["type"] == "observation"
        eventually(lambda: not server.connections)
    assert env.journal.count("make") == 1


@pytest.mark.parametrize("lane", LANES)
def test_a_server_that_stops_answers_those_who_wait_for_their_upgrade(lane: Lane) -> None:
    app = Deciding(shout)
    with serving(app, lane) as server, dial(server.port) as sock:
        sock.sendall(upgrade_request(server.port))
        app.wait_until_asked()
        server.stop_soon()
        assert rest_of(sock).startswith(b"HTTP/1.1 500")
        app.go_on()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_client_that_does_not_stop_sending_before_its_answer_is_cut(is_ours: bool) -> None:
    app = Deciding(create_app(counting(), Move, Seen) if is_ours else shout)
    with serving(app, "fast") as server, dial(server.port) as sock:
        sock.sendall(upgrade_request(server.port))
        app.wait_until_asked()
        flood = frame(b"x" * 1000) * 10_000
        with pytest.raises(ConnectionError):
            sock.sendall(flood)
        app.go_on()


def test_a_session_goes_on_when_what_stands_before_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope, receive, send)
            if scope["type"] == "websocket":
                assert (await receive())["type"] == "websocket.disconnect"  # others have the connection now
                raise ZeroDivisionError("afterwards")

    app = create_app(counting(), Move, Seen)
    app.add_middleware(Clumsy)
    with running(app, "fast") as server, server.connect() as ws:
        assert reset(ws)["type"] == "observation"
        eventually(lambda: "after it had accepted" in caplog.text)
        assert step(ws)["type"] == "observation"


@pytest.mark.parametrize("lane", LANES)
def test_dependencies_of_an_app_are_asked_before_a_session_is_opened(lane: Lane) -> None:
    async def wants_a_ticket(ticket: str = "") -> None:
        if ticket != "golden":
            raise WebSocketException(code=1008)

    app = FastAPI(dependencies=[Depends(wants_a_ticket)])
    HTTPEnvServer(counting(), Move, Seen).register_routes(app)
    with running(app, lane) as server:
        with pytest.raises(Exception, match="403"):
            server.connect()
        with server.connect("/ws?ticket=golden") as ws:
            assert reset(ws)["type"] == "observation"


def test_an_including_apps_dependencies_are_asked_too() -> None:
    async def nobody() -> None:
        raise WebSocketException(code=1008)

    outer = FastAPI()
    outer.include_router(create_app(counting(), Move, Seen).router, prefix="/game", dependencies=[Depends(nobody)])
    with running(outer, "fast") as server, pytest.raises(Exception, match="403"):
        server.connect("/game/ws")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Sec-WebSocket-Protocol: a b", b"400"),
        ("Sec-WebSocket-Protocol: bearer, a=b", b"400"),
        ("X-Long: " + "x" * 10_000, b"431"),
        ("\r\n".join(f"X-{number}: 1" for number in range(200)), b"431"),
    ],
)
@pytest.mark.parametrize("behave", [accept_and_say, refuse, deny])
def test_what_uvicorn_would_not_take_is_refused_on_an_apps_own_socket(behave: Any, header: str, status: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await behave(receive, send)

    assert ask(app, "fast", head_of(*UPGRADE, header)).split(b" ")[1] == status


def test_a_long_header_is_no_obstacle_to_a_session() -> None:
    with (
        running(create_app(counting(), Move, Seen), "fast") as server,
        server.connect(additional_headers={"X-Long": "x" * 10_000}) as ws,
    ):
        assert reset(ws)["type"] == "observation"


@pytest.mark.parametrize("lane", LANES)
def test_a_task_that_outlives_its_app_hears_that_the_connection_is_gone(lane: Lane) -> None:
    heard: list[Any] = []
    is_over = asyncio.Event()

    async def linger(receive: Any, send: Any) -> None:
        await is_over.wait()
        heard.append(await receive())
        try:
            await send({"type": "websocket.send", "text": "too late"})
        except Exception as error:
            heard.append(type(error).__name__)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        tasks.add(asyncio.create_task(linger(receive, send)))
        asyncio.get_running_loop().call_later(0, is_over.set)

    tasks: set[Any] = set()
    with serving(app, lane) as server, dial(server.port) as sock:
        sock.sendall(upgrade_request(server.port))
        rest_of(sock)
        eventually(lambda: len(heard) == 2)
    assert heard[0]["type"] == "websocket.disconnect"
    assert heard[1] == "ClientDisconnected"


@pytest.mark.parametrize("behave", [refuse, deny, fail, accept_and_say, "a session"])
def test_an_upgrade_leaves_nothing_for_the_garbage_collector(behave: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", True)  # or pytest would keep what is logged

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await behave(receive, send)

    def left() -> int:
        kinds = (Upgrading, UvicornProtocol, HttpProtocol, TakeOver, FastConnection)
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    with running(app if callable(behave) else create_app(counting(), Move, Seen), "fast") as server:
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                with dial(server.port) as sock:
                    sock.sendall(upgrade_request(server.port) + GOODBYE)
                    rest_of(sock)
            eventually(lambda: left() == 0)
        finally:
            gc.enable()


def test_frames_in_one_packet_with_the_head_are_answered() -> None:
    with serving(create_app(counting(), Move, Seen), "fast") as server, dial(server.port) as sock:
        sock.sendall(upgrade_request(server.port) + frame(b'{"type":"reset"}') + frame(b'{"type":"state"}'))
        received = b""
        while b'{"type":"state"' not in received:
            data = sock.recv(65536)
            assert data, "it hung up"
            received += data
    head, _, frames = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    assert b'{"type":"observation"' in frames


def test_small_frames_are_not_held_back_on_any_event_loop() -> None:
    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sock = writer.get_extra_info("socket")
            found.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(accepted, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                try:
                    return await found
                finally:
                    writer.close()

    assert asyncio.run(option())
