"""HTTP clients that hang up before they are answered: what only they could have wanted ends, and all else goes on."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request, Response

from envhive import create_app
from envhive.server.hangups import CLIENT_GONE, look_once_more, unless_gone
from tests.support import raw
from tests.support.belongings import TOLERANCE
from tests.support.descriptors import open_descriptors
from tests.support.envs import Counting, Hanging, Move, Seen, async_counting, counting
from tests.support.processes import envhive_serve
from tests.support.servers import Lane, Running, eventually, reset, running, serving

HANG = {"action": {"do": "hang"}}


def call(port: int, method: str, path: str, body: Any = None, **headers: str) -> socket.socket:
    """Send a request, and do not read the answer."""
    payload = b"" if body is None else json.dumps(body).encode()
    given = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(payload)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    sock = raw.dial(port)
    sock.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + payload)
    return sock


def ask(port: int, path: str, body: Any, **headers: str) -> tuple[str | None, Any]:
    """The session that an answer names, and what it says."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **named})
        answer = connection.getresponse()
        return answer.getheader("X-Session-Id"), json.load(answer)


def assert_a_newcomer_gets_in(server: Running) -> None:
    server.wait_until_empty()
    with server.connect() as ws:
        assert reset(ws)["type"] == "observation"


@pytest.mark.parametrize("hard", [False, True])
def test_a_step_without_a_session_ends_with_its_client(hanging: Hanging, hard: bool) -> None:
    with serving(hanging.env, "fast", max_concurrent_envs=1) as server:
        client = call(server.port, "POST", "/step", HANG)
        hanging.hanging.acquire()
        raw.hang_up(client, hard=hard)
        assert_a_newcomer_gets_in(server)
        assert len(server.server.hive.stuck) == 1
        hanging.released.set()
        eventually(lambda: not server.server.hive.stuck)
        assert hanging.env.journal.events(1)[-1] == "close"


def test_a_coroutine_without_a_session_is_cancelled_when_its_client_is_gone() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def hang(self: Counting, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("nobody cancelled it")

    env = async_counting(step=hang)
    with serving(env, "fast", max_concurrent_envs=1) as server:
        client = call(server.port, "POST", "/step", HANG)
        assert begun.wait(10)
        raw.hang_up(client)
        assert cancelled.wait(10)
        assert_a_newcomer_gets_in(server)
        assert env.journal.events(1)[-1] == "close"


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/reset", None),
        ("POST", "/step", {"action": {}}),
        ("GET", "/state", None),
        ("GET", "/metadata", None),
        ("POST", "/mcp", rpc("openenv/session/create")),
        ("POST", "/mcp", rpc("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "x"})),
        ("POST", "/mcp", rpc("tools/list")),
    ],
    ids=["reset", "step", "state", "metadata", "create", "initialize", "list"],
)
@pytest.mark.parametrize("make", [counting, async_counting])
def test_an_environment_that_is_being_made_for_a_client_that_is_gone_keeps_no_place(
    make: Callable[..., type[Counting]], method: str, path: str, body: Any
) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang_once(self: Counting) -> None:
        if not begun.is_set():
            begun.set()
            released.wait(60)
        Counting.__init__(self)

    try:
        with serving(make(__init__=hang_once), "fast", max_concurrent_envs=1) as server:
            accepted = {"Accept": "application/json, text/event-stream"} if path == "/mcp" else {}
            client = call(server.port, method, path, body, **accepted)
            assert begun.wait(10)
            raw.hang_up(client)
            assert_a_newcomer_gets_in(server)
            released.set()
            eventually(lambda: not server.server.hive.stuck)
    finally:
        released.set()


def test_a_client_that_hangs_up_in_line_leaves_it() -> None:
    with (
        serving(counting(), "fast", config={"admission_timeout": 60.0}, max_concurrent_envs=1) as server,
        server.connect() as first,
    ):
        reset(first)
        client = call(server.port, "POST", "/step", {"action": {}})
        line = server.server.hive.line
        assert line is not None
        eventually(lambda: len(line) == 1)
        raw.hang_up(client)
        eventually(lambda: len(line) == 0)


def test_a_step_of_a_session_with_a_name_goes_on_and_its_answer_is_kept(hanging: Hanging) -> None:
    with serving(hanging.env, "fast", max_concurrent_envs=1) as server:
        named, _ = ask(server.port, "/reset", {})
        assert named is not None
        before = server.connections
        body = {"action": {"do": "hang", "by": 5}, "request_id": "1"}
        client = call(server.port, "POST", "/step", body, X_Session_Id=named)
        hanging.hanging.acquire()
        raw.hang_up(client)
        eventually(lambda: server.connections <= before)
        assert server.server.hive.sessions[named].is_busy
        hanging.released.set()
        assert ask(server.port, "/step", body, X_Session_Id=named)[1]["observation"]["total"] == 5
        assert hanging.env.journal.count("step") == 1


def test_a_hang_up_is_seen_through_middleware_of_the_apps_own(hanging: Hanging) -> None:
    app = create_app(hanging.env, Move, Seen, max_concurrent_envs=1)

    @app.middleware("http")
    async def own(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        return await call_next(request)

    with running(app, "fast") as server:
        assert ask(server.port, "/step", {"action": {"do": "metadata"}})[1]["metadata"] == {"note": "hello"}
        client = call(server.port, "POST", "/step", HANG)
        hanging.hanging.acquire()
        raw.hang_up(client)
        assert_a_newcomer_gets_in(server)


class Replaying:
    """Middleware that reads the body, as many a logger does, and gives it to the app again: once, or whenever asked."""

    def __init__(self, app: Any, once: bool) -> None:
        self.app, self.once = app, once

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        whole = await receive()
        assert not whole.get("more_body")
        given = False

        async def again() -> Any:
            nonlocal given
            gone, given = given and self.once, True
            return {"type": "http.disconnect"} if gone else whole

        await self.app(scope, again, send)


@pytest.mark.parametrize("lane", ["fast", "asgi"])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("make", [counting, async_counting])
def test_middleware_that_gives_a_body_again_is_no_hang_up(
    make: Callable[..., type[Counting]], once: bool, lane: Lane
) -> None:
    begun = threading.Event()

    def take_a_while(self: Counting) -> None:
        begun.wait(0.1)  # so that there is time to look for a hang-up
        Counting.__init__(self)

    app = create_app(make(__init__=take_a_while), Move, Seen, max_concurrent_envs=2)
    app.add_middleware(Replaying, once=once)
    with running(app, lane) as server, closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as c:
        for method, path, body in (("POST", "/reset", {}), ("GET", "/metadata", None), ("GET", "/schema", None)):
            c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = c.getresponse()
            assert (answer.status, bool(json.load(answer))) == (200, True)


def test_a_hang_up_that_comes_together_with_the_end_of_the_work_is_noticed_before_a_session_is_kept() -> None:
    kept: list[str] = []

    async def scenario() -> None:
        both = asyncio.Event()

        async def work() -> Response:
            await both.wait()
            await look_once_more()
            kept.append("a session")
            return Response()

        async def receive() -> Any:
            await both.wait()
            return {"type": "http.disconnect"}

        asyncio.get_running_loop().call_later(0.01, both.set)
        answer = await unless_gone(Request({"type": "http"}, receive), work())
        assert answer.status_code == CLIENT_GONE

    asyncio.run(scenario())
    assert not kept


class Slow:
    """Middleware that replays the body, and takes so long that its client has left when the app has its turn."""

    def __init__(self, app: Any, left: threading.Event, answered: threading.Event) -> None:
        self.app, self.left, self.answered = app, left, answered

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        whole = await receive()
        await asyncio.to_thread(self.left.wait, 20)

        async def again() -> Any:
            return whole

        await self.app(scope, again, send)
        self.answered.set()


def test_a_client_that_has_left_before_the_app_has_its_turn_keeps_no_place(hanging: Hanging) -> None:
    left, answered = threading.Event(), threading.Event()
    app = create_app(hanging.env, Move, Seen, max_concurrent_envs=1)
    app.add_middleware(Slow, left=left, answered=answered)
    with running(app, "fast") as server:
        before = server.connections
        client = call(server.port, "POST", "/step", HANG)
        eventually(lambda: server.connections > before)
        raw.hang_up(client)
        eventually(lambda: server.connections <= before)
        left.set()
        assert answered.wait(10)
        assert_a_newcomer_gets_in(server)


@pytest.mark.integration
def test_a_hang_up_is_seen_by_the_worker_that_a_request_was_passed_on_to() -> None:
    def has_sessions(number: int) -> bool:
        active: int = server.health()["active_sessions"]
        return active == number

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "4") as server, ExitStack() as clients:
        for number in range(4):
            clients.callback(call(server.port, "POST", "/step", {"action": {"wait_seconds": 60}}).close)
            eventually(functools.partial(has_sessions, number + 1))
        assert all(worker["sessions"] for worker in server.health()["workers"])
        clients.close()
        eventually(functools.partial(has_sessions, 0))


def leave_at_once(port: int, method: str, path: str, body: Any, **headers: str) -> None:
    """Send a request, hang up, and wait until the server has heard both."""
    with closing(call(port, method, path, body, **headers)) as client:
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass


EVENTS = {"Accept": "application/json, text/event-stream"}
INITIALIZE = rpc("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "x"})


def begin_mcp(port: int) -> str:
    """A session for an agent."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/mcp", json.dumps(INITIALIZE), {"Content-Type": "application/json", **EVENTS})
        answer = connection.getresponse()
        answer.read()
        named = answer.getheader("Mcp-Session-Id")
        assert named is not None
        return named


SLOW = """
import time
from envhive.envs.benchmark import AsyncBenchmarkEnvironment
class Slow(AsyncBenchmarkEnvironment):
    def __init__(self):
        time.sleep(0.3)  # or its first answer might be there before its client is gone
        super().__init__()
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/step", {"action": {"wait_seconds": 60}}),
        ("/mcp", rpc("openenv/session/create")),
        ("/mcp", INITIALIZE),
    ],
    ids=["step", "create", "initialize"],
)
def test_a_request_whose_client_leaves_at_once_keeps_no_place_in_another_worker(
    path: str, body: Any, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with envhive_serve("slow:Slow", "--workers", "2", "--max-sessions", "60", cwd=tmp_path) as server:
        for _ in range(30):
            leave_at_once(server.port, "POST", path, body, **(EVENTS if path == "/mcp" else {}))
        eventually(lambda: server.sessions() == [], instead=server.sessions)


@pytest.mark.integration
def test_streams_whose_clients_leave_at_once_hold_nothing_in_another_worker() -> None:
    with envhive_serve("benchmark-async", "--workers", "2", "--max-sessions", "4") as server:
        named = [begin_mcp(server.port) for _ in range(2)]
        pids = [worker["pid"] for worker in server.health()["workers"]]
        before = sum(map(open_descriptors, pids))
        for _ in range(20):
            for session in named:
                leave_at_once(server.port, "GET", "/mcp", None, Mcp_Session_Id=session, **EVENTS)
        eventually(lambda: sum(map(open_descriptors, pids)) <= before + TOLERANCE)
