"""Who gets in: tokens and origins, on every route and both lanes."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount, WebSocketRoute
from starlette.testclient import WebSocketDenialResponse
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import InvalidStatus

from envhive import create_app
from envhive.server.auth import Tokens
from envhive.server.config import ServerConfig, forced
from envhive.server.gate import Gate
from tests.support.envs import Move, Seen, counting
from tests.support.servers import Lane, Running, eventually, reset, running, serving, step

ADA, BOB = "s3cret-of-ada", "s3cret-of-bob"
TOKENS = Tokens.parse("--token", [f"ada:{ADA}:2", f"bob:{BOB}"])
LANES: list[Lane] = ["fast", "asgi"]


def as_ada(**more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {ADA}", **more}


def app_with(**config: Any) -> FastAPI:
    with forced(**config):
        return create_app(counting(), Move, Seen, env_name="counting")


@pytest.fixture
def app() -> FastAPI:
    return app_with(tokens=TOKENS)


@pytest.fixture
def http_client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


@pytest.fixture(params=LANES)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(counting(), request.param, config={"tokens": TOKENS}) as server:
        yield server


# Every route.


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """Each method and path of an app, with something in the place of each parameter."""
    found = []
    for route in app.routes:
        path = str(getattr(route, "path", "")).replace("{env_name}", "counting")
        assert path, f"what is {route}, and who may use it?"
        if isinstance(route, WebSocketRoute):
            found.append(("WEBSOCKET", path))
        else:
            found += [(method, path) for method in sorted(getattr(route, "methods", None) or ["GET"])]
    return found


@pytest.mark.parametrize("header", [None, "Bearer wrong-token", f"Bearer {ADA}x", f"Basic {ADA}", "Bearer", ADA])
def test_every_route_but_health_is_refused_without_a_right_token(http_client: TestClient, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    routes = every_route(http_client.app)  # type: ignore[arg-type]
    assert {("WEBSOCKET", "/ws"), ("WEBSOCKET", "/mcp"), ("POST", "/step"), ("GET", "/docs")} <= set(routes)
    for method, path in routes:
        if method == "WEBSOCKET":
            with (
                pytest.raises(WebSocketDenialResponse) as refused,
                http_client.websocket_connect(path, headers=headers),
            ):
                pass
            reply: Any = refused.value
        else:
            reply = http_client.request(method, path, headers=headers)
        if path == "/health":
            assert (reply.status_code, reply.content) == (200, b"" if method == "HEAD" else b'{"status":"healthy"}')
            continue
        assert reply.status_code == 401, f"{method} {path}"
        assert reply.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert reply.json()["code"] == "UNAUTHORIZED"
            assert "Authorization: Bearer" in reply.json()["detail"]


def test_every_route_is_there_with_a_token(http_client: TestClient) -> None:
    for method, path in every_route(http_client.app):  # type: ignore[arg-type]
        if method == "WEBSOCKET":
            with http_client.websocket_connect(path, headers=as_ada()):
                pass
        else:
            assert http_client.request(method, path, headers=as_ada()).status_code != 401, f"{method} {path}"


def test_a_route_that_does_not_exist_is_refused_too_and_so_is_one_added_later(app: FastAPI) -> None:
    app.get("/later")(lambda: "hello")
    with TestClient(app) as client:
        assert [client.get(path).status_code for path in ("/nowhere", "/later")] == [401, 401]
        assert [client.get(path, headers=as_ada()).status_code for path in ("/nowhere", "/later")] == [404, 200]


def test_health_tells_more_with_a_token(http_client: TestClient) -> None:
    assert http_client.get("/health").json() == {"status": "healthy"}
    assert http_client.get("/health", headers=as_ada()).json()["max_sessions"] == 1000
    assert http_client.post("/health").status_code == 401


def test_a_mounted_app_is_guarded_and_its_health_is_open(app: FastAPI) -> None:
    with TestClient(Starlette(routes=[Mount("/envs/counting", app)])) as client:
        assert client.get("/envs/counting/health").json() == {"status": "healthy"}
        assert client.get("/envs/counting/schema").status_code == 401
        assert client.get("/envs/counting/schema", headers=as_ada()).status_code == 200


def test_a_gate_around_an_app_of_ours_asks_once(app: FastAPI) -> None:
    with TestClient(Gate(app, ServerConfig(tokens=TOKENS))) as client:
        assert client.get("/schema").status_code == 401
        assert client.get("/health").json() == {"status": "healthy"}
        with client.websocket_connect(f"/ws?token={ADA}") as ws:
            ws.send_json({"type": "reset"})
            assert ws.receive_json()["type"] == "observation"


def test_without_tokens_everybody_may_come_in_and_sees_everything() -> None:
    with TestClient(app_with()) as client, client.websocket_connect("/ws"):
        assert client.get("/health").json()["active_sessions"] == 1
        (listed,) = client.get("/sessions", headers=as_ada()).json()
        assert listed["owner"] is None


def test_browsers_may_ask_first(app: FastAPI) -> None:
    asking = {"Origin": "https://lab.example", "Access-Control-Request-Method": "POST"}
    with TestClient(app) as client:
        assert client.options("/step", headers=asking).status_code == 405
        assert client.options("/step").status_code == 401


# Upgrades, on both lanes.


def refusal(connect: Callable[[], Any]) -> tuple[int, dict[str, str], dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused, connect():
        pass
    response = refused.value.response
    return response.status_code, dict(response.headers), json.loads(response.body or b"{}")


@pytest.mark.parametrize("path", ["/ws", "/mcp"])
def test_an_upgrade_is_refused_with_401_before_it_is_made(server: Running, path: str) -> None:
    for how in (
        lambda: server.connect(path),
        lambda: server.connect(path, additional_headers={"Authorization": "Bearer wrong-token"}),
        lambda: server.connect(f"{path}?token=wrong-token"),
        lambda: server.connect(f"{path}?token="),
        lambda: server.connect(f"{path}?token={ADA}", additional_headers={"Authorization": "Bearer wrong-token"}),
    ):
        status, headers, body = refusal(how)
        assert (status, headers["www-authenticate"], body["code"]) == (401, "Bearer", "UNAUTHORIZED")
    assert server.server.active_sessions == 0


def test_the_right_token_opens_a_session_that_has_an_owner(server: Running) -> None:
    with server.connect(additional_headers=as_ada()) as ws:
        assert reset(ws, seed=1)["data"]["observation"]["total"] == 1
        assert step(ws, by=2)["data"]["observation"]["total"] == 3
        (session,) = server.server.hive.sessions.values()
        assert session.owner == TOKENS.owners[0]
    server.wait_until_empty()


@pytest.mark.parametrize(
    "query", [f"?token={BOB}", f"?a=1&token={BOB}&b=%C3%BC", "?%74oken=" + BOB.replace("-", "%2d")]
)
def test_a_browser_passes_its_token_in_the_query(server: Running, query: str) -> None:
    with server.connect(f"/ws{query}") as ws:
        assert reset(ws)["type"] == "observation"
        (session,) = server.server.hive.sessions.values()
        assert session.owner == TOKENS.owners[1]


def test_a_token_in_the_query_is_for_websockets_only(http_client: TestClient) -> None:
    reply = http_client.get(f"/schema?token={ADA}")
    assert reply.status_code == 401
    assert "WebSockets only" in reply.json()["detail"]
    assert ADA not in reply.text


def test_a_refused_upgrade_is_no_error_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(counting(), "fast", config={"tokens": TOKENS}) as server:
        assert refusal(server.connect)[0] == 401
    assert not caplog.records


def test_frames_still_take_the_fast_lane() -> None:
    with (
        serving(counting(), "fast", config={"tokens": TOKENS}) as server,
        server.connect(additional_headers=as_ada()) as ws,
    ):
        reset(ws)
        (session,) = server.server.hive.sessions.values()
        assert type(session._outlet).__name__ == "FastConnection"


def test_a_server_that_cannot_answer_an_upgrade_closes_it() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def nothing(*args: Any) -> Any:
        raise AssertionError("nobody is to be let in, or listened to")

    scope = {"type": "websocket", "path": "/ws", "query_string": b"", "headers": []}
    call = Gate(nothing, ServerConfig(tokens=TOKENS))(scope, nothing, send)
    with pytest.raises(StopIteration):
        call.send(None)
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "UNAUTHORIZED"}]


# Whose sessions.


def test_each_sees_only_its_own_sessions(server: Running) -> None:
    def listed(secret: str) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/sessions", headers={"Authorization": f"Bearer {secret}"})
        reply = json.load(connection.getresponse())
        connection.close()
        return [session["owner"] for session in reply]

    with server.connect(f"/ws?token={BOB}") as one, server.connect(f"/ws?token={ADA}") as other:
        reset(one)
        reset(other)
        assert (listed(ADA), listed(BOB)) == (["ada"], ["bob"])


def test_a_quota_is_for_all_sessions_of_a_token_and_for_no_others(server: Running) -> None:
    with server.connect(f"/ws?token={ADA}") as one:
        reset(one)
        with server.connect(f"/ws?token={ADA}") as two, server.connect(f"/ws?token={BOB}") as bobs:
            assert reset(two)["type"] == reset(bobs)["type"] == "observation"
            with server.connect(f"/ws?token={ADA}") as three:
                error = reset(three)["data"]
                assert (error["code"], error["active_sessions"], error["max_sessions"]) == ("CAPACITY_REACHED", 2, 2)
                assert "'ada' is good for 2 session(s)" in error["message"]
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("POST", "/reset", headers=as_ada())
            assert connection.getresponse().status == 503
            connection.close()
        eventually(lambda: server.server.active_sessions == 1)
        with server.connect(f"/ws?token={ADA}") as again:
            assert reset(again)["type"] == "observation"
    server.wait_until_empty()


def test_http_calls_and_tasks_count_in_the_quota_while_they_last(http_client: TestClient) -> None:
    for _ in range(5):
        assert http_client.post("/reset", headers=as_ada()).status_code == 200
        assert http_client.get("/counting/splits", headers=as_ada()).status_code == 501


# Web pages.

FOREIGN = {"Origin": "https://evil.example"}


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "status"),
    [
        ("http://lab.example", "lab.example", (), 200),
        ("http://lab.example:8000", "LAB.example:8000", (), 200),
        ("https://lab.example", "lab.example:443", (), 200),
        ("http://[::1]:8000", "[::1]:8000", (), 200),
        ("http://lab.example:8001", "lab.example:8000", (), 403),
        ("https://evil.example", "lab.example", (), 403),
        ("https://lab.example.evil", "lab.example", (), 403),
        ("null", "lab.example", (), 403),
        ("", "lab.example", (), 403),
        ("lab.example", "lab.example", (), 403),
        ("https://evil.example", "lab.example", ("https://good.example",), 403),
        ("https://good.example", "lab.example", ("https://good.example",), 200),
        ("https://Good.example", "lab.example", ("https://good.example",), 200),
        ("null", "lab.example", ("*",), 200),
    ],
)
def test_a_page_of_another_origin_may_not_act(origin: str, host: str, allowed: tuple[str, ...], status: int) -> None:
    headers = {"Origin": origin, "Host": host}
    with TestClient(app_with(allow_origins=allowed)) as client:
        reply = client.post("/reset", headers=headers)
        assert reply.status_code == status
        assert client.get("/schema", headers=headers).status_code == 200
        if status == 200:
            with client.websocket_connect("/ws", headers=headers):
                pass
        else:
            assert "--allow-origin" in reply.json()["detail"]
            with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect("/ws", headers=headers):
                pass
            assert refused.value.status_code == 403


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"allow_origins": ["*"]}, 200),
        ({"allow_origins": ["http://localhost:5173"]}, 200),
        ({"allow_origin_regex": r"http://localhost:\d+"}, 200),
        ({"allow_origins": ["http://localhost:3000"]}, 403),
        ({}, 403),
    ],
)
@pytest.mark.parametrize("gated", [False, True])
def test_a_page_that_the_app_itself_lets_in_may_act(options: dict[str, Any], status: int, gated: bool) -> None:
    app = app_with()
    app.add_middleware(CORSMiddleware, allow_methods=["*"], **options)
    page = {"Origin": "http://localhost:5173"}
    with TestClient(Gate(app, ServerConfig()) if gated else app) as client:
        reply = client.post("/reset", headers=page)
        assert reply.status_code == status
        if status == 200:
            assert client.options("/reset", headers={**page, "Access-Control-Request-Method": "POST"}).is_success
            assert reply.headers["access-control-allow-origin"] in ("*", "http://localhost:5173")
            with client.websocket_connect("/ws", headers=page):
                pass
        else:
            with pytest.raises(WebSocketDenialResponse), client.websocket_connect("/ws", headers=page):
                pass


@pytest.mark.parametrize("lane", LANES)
def test_a_foreign_page_cannot_upgrade_on_either_lane(lane: Lane) -> None:
    with serving(counting(), lane) as server:
        assert refusal(lambda: server.connect(additional_headers=FOREIGN))[0] == 403
        with server.connect(additional_headers={"Origin": server.url}) as ws:
            assert reset(ws)["type"] == "observation"
        with server.connect() as ws:
            assert reset(ws)["type"] == "observation"


def test_where_no_tokens_are_asked_for_a_route_of_the_apps_own_gets_its_parameter_of_that_name() -> None:
    app = app_with()

    @app.get("/mine")
    def mine(token: str = "none") -> str:
        return token

    with TestClient(app) as client:
        assert client.get("/mine?token=abc").json() == "abc"


# Large bodies.


def test_a_body_that_says_it_is_too_large_is_413() -> None:
    with TestClient(app_with(max_message_size=1000)) as client:
        reply = client.post("/step", content=b"x" * 1001)
        assert (reply.status_code, reply.json()["code"]) == (413, "MESSAGE_TOO_LARGE")
        assert client.post("/mcp", content=b"{}" + b" " * 998).status_code == 200


@pytest.mark.parametrize("path", ["/step", "/mcp"])
def test_a_body_that_turns_out_to_be_too_large_is_413(path: str) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    with TestClient(app_with(max_message_size=1000)) as client:
        reply = client.post(path, content=chunks())
        assert (reply.status_code, reply.json()["code"]) == (413, "MESSAGE_TOO_LARGE")


# Secrets.


@pytest.mark.parametrize("lane", LANES)
def test_a_token_in_a_query_reaches_neither_logs_nor_the_app(lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bytes] = []

    class Nosy:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if "query_string" in scope:
                seen.append(scope["query_string"])
            await self._app(scope, receive, send)

    app = app_with(tokens=TOKENS)
    outer = Gate(Nosy(app), ServerConfig(tokens=TOKENS))
    caplog.set_level(logging.INFO)
    with running(outer, lane, access_log=True) as up:
        with up.connect(f"/ws?a=1&token={ADA}&b=2") as ws:
            reset(ws)
        refusal(lambda: up.connect("/ws?token=wrong-but-secret"))
        connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=10)
        connection.request("GET", f"/schema?token={ADA}")
        assert connection.getresponse().status == 401
        connection.close()
    assert seen == [b"a=1&b=2"]
    assert "/schema" in caplog.text
    assert ADA not in caplog.text
    assert "wrong-but-secret" not in caplog.text
