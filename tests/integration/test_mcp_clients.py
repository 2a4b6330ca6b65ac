"""Real MCP clients against a real server: FastMCP's and the official SDK's, over Streamable HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import envhive
from envhive import MCPToolClient
from tests.support.agents import OVER_HTTP, CallFailedError, Connect, Progress, RefusedError
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.servers import eventually
from tests.support.tools import TOOLS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PLACES = 8


class Logged:
    """A server, and what it has logged."""

    def __init__(self, server: ServerProcess, log: Path) -> None:
        self.server = server
        self.url = server.url
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def active_sessions(self) -> int:
        with urllib.request.urlopen(f"{self.url}/health", timeout=10) as reply:
            count: int = json.load(reply)["active_sessions"]
            return count

    def wait_until_empty(self) -> None:
        eventually(lambda: self.active_sessions() == 0)


@contextmanager
def serve_shed(folder: Path, *options: str, target: str = "tests.support.tools:Shed") -> Iterator[Logged]:
    log = folder / "server.log"
    with log.open("w") as stderr, envhive_serve(target, *options, cwd=ROOT, stderr=stderr) as server:
        yield Logged(server, log)


@pytest.fixture(
    scope="module",
    params=[("1", "thread"), ("2", "thread"), ("1", "process"), ("2", "process")],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def shed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    workers, isolation = request.param
    options = ("--workers", workers, "--isolation", isolation, "--max-sessions", str(PLACES))
    with serve_shed(tmp_path_factory.mktemp("shed"), *options) as server:
        yield server


@pytest.fixture(params=list(OVER_HTTP.values()), ids=list(OVER_HTTP))
def connect(request: pytest.FixtureRequest) -> Connect:
    chosen: Connect = request.param
    return chosen


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "shed" in request.fixturenames:
        request.getfixturevalue("shed").wait_until_empty()


# What agents do.


def test_tools_are_listed_and_called(shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as agent:
            assert await agent.tools() == TOOLS
            assert [await agent.call("add", by=2), await agent.call("add", by=3)] == [2, 5]
            assert await agent.call("measure", plank={"length": 2, "width": 3}) == 6.0
            assert (await agent.call("whereabouts"))["package"] == envhive.__file__
            await agent.ping()

    asyncio.run(scenario())


def test_resources_and_prompts_are_the_environments_own(shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as agent:
            await agent.call("add", by=4)
            assert await agent.read("shed://total") == "4"
            assert await agent.prompt("advice", goal="12") == "Add until there are 12."

    asyncio.run(scenario())


def test_failures_are_told_apart_and_are_no_errors_of_the_server(shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as agent:
            with pytest.raises(CallFailedError, match="the floor gave way") as failed:
                await agent.call("fail")
            assert "Traceback" not in str(failed.value)
            with pytest.raises(CallFailedError, match="by"):
                await agent.call("add", by="much")
            for name in ("fly", "reset", "ship"):
                with pytest.raises(RefusedError, match=name) as refused:
                    await agent.call(name)
                assert (refused.value.code, refused.value.data) == (-32602, {"error_type": "tool_not_found"})
            assert await agent.call("add") == 1

    asyncio.run(scenario())
    assert "ERROR" not in shed.log()
    assert "Traceback" not in shed.log()


def test_progress_is_told_while_a_tool_runs(shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as agent:
            heard: Progress = []
            assert await agent.call("climb", heard, rungs=5) == "on top"
            assert heard == [(rung, 5, f"rung {rung}") for rung in range(1, 6)]
            heard.clear()
            assert await agent.call("announce", heard, text="soon") == "SOON"
            assert heard == [(1, 2, "soon")]

    asyncio.run(scenario())


def test_progress_comes_before_the_end(shed: Logged, tmp_path: Path) -> None:
    session = open_session(shed)
    params = {"name": "climb", "arguments": {"rungs": 1}, "_meta": {"progressToken": "t"}}
    with session.stream("tools/call", params) as events:
        first, last = next(events), next(events)
        assert first.data["params"] == {"progressToken": "t", "progress": 1, "total": 1, "message": "rung 1"}
        assert last.data["result"]["structuredContent"] == {"result": "on top"}
    session.end()


def test_calls_at_once_all_get_their_own_answers(shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as agent:
            answers = await asyncio.gather(*(agent.call("announce", text=f"call {n}") for n in range(30)))
            assert answers == [f"CALL {n}" for n in range(30)]
            assert sorted(await asyncio.gather(*(agent.call("add") for _ in range(30)))) == list(range(1, 31))

    asyncio.run(scenario())


def test_agents_keep_apart(shed: Logged) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            connects = [*OVER_HTTP.values()] * 3
            agents = [await stack.enter_async_context(connect(shed.url)) for connect in connects]
            trainer = await stack.enter_async_context(MCPToolClient(shed.url))
            for number, agent in enumerate(agents):
                assert await agent.call("add", by=100 * number) == 100 * number
            assert await trainer.call_tool("add") == 1
            totals = await asyncio.gather(*(agent.call("add") for agent in agents for _ in range(4)))
            assert sorted(totals) == [100 * number + more for number in range(6) for more in range(1, 5)]
            assert shed.active_sessions() == 7

    asyncio.run(scenario())


def test_a_call_can_be_taken_back(
    shed: Logged, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as agent:
            call = asyncio.ensure_future(agent.call("rest", folder=str(tmp_path)))
            await asyncio.to_thread(eventually, (tmp_path / "begun").exists)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            (tmp_path / "go").touch()  # for environments of plain methods, whose tools cannot be stopped half-way
            assert await agent.call("add") == 1

    asyncio.run(scenario())
    assert "Error parsing" not in caplog.text


@pytest.fixture(scope="module", params=["thread", "process"])
def async_shed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    options = ("--isolation", request.param)
    with serve_shed(tmp_path_factory.mktemp("shed"), *options, target="tests.support.tools:AsyncShed") as server:
        yield server


def test_a_coroutine_that_is_taken_back_stops(async_shed: Logged, connect: Connect, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect(async_shed.url) as agent:
            call = asyncio.ensure_future(agent.call("rest", folder=str(tmp_path)))
            await asyncio.to_thread(eventually, (tmp_path / "begun").exists)
            call.cancel()
            await asyncio.to_thread(eventually, (tmp_path / "cancelled").exists)
            assert await agent.call("add") == 1

    asyncio.run(scenario())
    assert "ERROR" not in async_shed.log()


def test_a_tool_that_holds_its_thread_holds_up_nobody_else(shed: Logged, connect: Connect, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect(shed.url) as blocked, connect(shed.url) as other:
            call = asyncio.ensure_future(blocked.call("block", folder=str(tmp_path)))
            await asyncio.to_thread(eventually, (tmp_path / "begun").exists)
            async with asyncio.timeout(10):
                for n in range(1, 11):
                    assert await other.call("add") == n
                    assert await asyncio.to_thread(shed.active_sessions) == 2
            assert not call.done()
            (tmp_path / "go").touch()
            assert await call == "done"

    asyncio.run(scenario())


# Places.


def test_a_session_is_a_place_and_its_end_gives_it_back(shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        for _ in range(3):
            async with connect(shed.url) as agent:
                await agent.call("add")
                assert await asyncio.to_thread(shed.active_sessions) == 1
            await asyncio.to_thread(shed.wait_until_empty)

    asyncio.run(scenario())


def test_a_full_server_says_how_full_it_is(shed: Logged) -> None:
    sessions = [open_session(shed) for _ in range(PLACES)]
    status, _, reply = initialize(shed)
    assert status == 503
    assert (reply["id"], reply["error"]["code"]) == (1, -32000)
    told = reply["error"]["data"]
    assert (told["code"], told["active_sessions"], told["max_sessions"]) == ("CAPACITY_REACHED", PLACES, PLACES)
    status, _, reply = send(shed, {"jsonrpc": "2.0", "id": 5, "method": "tools/list"}, standard=False)
    assert (status, reply["id"], reply["error"]["data"]["code"]) == (200, 5, "CAPACITY_REACHED")
    sessions.pop().end()
    sessions.append(open_session(shed))
    for session in sessions:
        session.end()


def test_an_agents_session_is_found_from_whichever_worker(shed: Logged) -> None:
    session = open_session(shed)
    # Each request is on a connection of its own, so that all workers get some.
    assert [session.call("add") for _ in range(24)] == list(range(1, 25))
    session.end()


def test_two_workers_share_the_agents(tmp_path: Path) -> None:
    with serve_shed(tmp_path, "--workers", "2", "--max-sessions", "8") as server:
        sessions = [open_session(server) for _ in range(8)]
        pids = [session.call("whereabouts")["pid"] for session in sessions]
        assert sorted(pids.count(pid) for pid in set(pids)) == [4, 4]


# The protocol as bytes.


class Event:
    def __init__(self, event_id: str, data: Any) -> None:
        self.id = event_id
        self.data = data


class RawSession:
    """A session over HTTP, as a client sees it that is written from the specification."""

    def __init__(self, server: Logged, session_id: str, token: str | None = None) -> None:
        self.server = server
        self.id = session_id
        self._token = token
        self._requests = 1

    def ask(self, method: str, params: Any = None) -> tuple[int, Any]:
        self._requests += 1
        message = {"jsonrpc": "2.0", "id": self._requests, "method": method, "params": params or {}}
        status, _, reply = send(self.server, message, self.id, self._token)
        assert reply["id"] == self._requests
        return status, reply

    def call(self, name: str, **arguments: Any) -> Any:
        _, reply = self.ask("tools/call", {"name": name, "arguments": arguments})
        structured = reply["result"]["structuredContent"]
        return structured.get("result", structured)

    @contextmanager
    def stream(
        self, method: str | None = None, params: Any = None, after: str | None = None, timeout: float = 20
    ) -> Iterator[Any]:
        """The events of a request, or of GET; the connection is cut when the block ends."""
        host = self.server.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=timeout)
        headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": self.id}
        if after is not None:
            headers["Last-Event-ID"] = after
        try:
            if method is None:
                connection.request("GET", "/mcp", headers=headers)
            else:
                self._requests += 1
                body = json.dumps({"jsonrpc": "2.0", "id": self._requests, "method": method, "params": params})
                connection.request("POST", "/mcp", body, {**headers, "Content-Type": "application/json"})
            reply = connection.getresponse()
            assert (reply.status, reply.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
            yield events_of(reply)
        finally:
            connection.close()

    def end(self) -> int:
        return send(self.server, None, self.id, self._token, method="DELETE")[0]


def events_of(reply: http.client.HTTPResponse) -> Iterator[Event]:
    """Events with data in them; the empty ones only tell an id to go on from."""
    fields: dict[str, str] = {}
    for line in reply:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif fields.get("data"):
            yield Event(fields["id"], json.loads(fields["data"]))
            fields = {}


def send(
    server: Logged,
    message: Any,
    session_id: str | None = None,
    token: str | None = None,
    *,
    method: str = "POST",
    standard: bool = True,
    **more: str,
) -> tuple[int, Any, Any]:
    """A request on a connection of its own: status, headers, and the body's document."""
    headers = {"Content-Type": "application/json"}
    headers |= {"Accept": "application/json, text/event-stream"} if standard else {}
    headers |= {} if session_id is None else {"Mcp-Session-Id": session_id}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    data = None if message is None else json.dumps(message).encode()
    request = urllib.request.Request(f"{server.url}/mcp", data, {**headers, **more}, method=method)
    try:
        reply = urllib.request.urlopen(request, timeout=20)
    except urllib.error.HTTPError as error:
        reply = error
    with reply:
        body = reply.read()
        return reply.status, reply.headers, json.loads(body) if body else None


def initialize(server: Logged, token: str | None = None, version: str = "2025-06-18") -> tuple[int, Any, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    return send(server, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}, token=token)


def open_session(server: Logged, token: str | None = None, version: str = "2025-06-18") -> RawSession:
    status, headers, reply = initialize(server, token, version)
    assert status == 200, reply
    assert reply["result"]["protocolVersion"] == version
    session = RawSession(server, headers["Mcp-Session-Id"], token)
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert send(server, note, session.id, token)[0] == 202
    return session


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_every_version_can_be_agreed_on(shed: Logged, version: str) -> None:
    session = open_session(shed, version=version)
    assert session.call("add", by=2) == 2
    assert session.end() == 204


def test_an_unknown_version_is_answered_with_the_newest(shed: Logged) -> None:
    status, headers, reply = initialize(shed, version="1999-01-01")
    assert (status, reply["result"]["protocolVersion"]) == (200, "2025-11-25")
    assert RawSession(shed, headers["Mcp-Session-Id"]).end() == 204


def test_a_session_that_has_been_ended_is_not_there(shed: Logged) -> None:
    session = open_session(shed)
    assert session.end() == 204
    for method, params in (("tools/list", None), ("tools/call", {"name": "add"})):
        status, reply = session.ask(method, params)
        assert (status, reply["error"]["code"], reply["error"]["data"]) == (404, -32001, {"code": "SESSION_NOT_FOUND"})
    assert session.end() == 404
    assert send(shed, None, session.id, method="GET")[0] == 404


@pytest.mark.parametrize("session_id", ["nonsense", "00000000-0000-0000-0000-000000000000", "x-1", "x-7"])
def test_a_session_that_never_was_is_not_there(shed: Logged, session_id: str) -> None:
    status, _, reply = send(shed, {"jsonrpc": "2.0", "id": "mine", "method": "tools/list"}, session_id)
    assert (status, reply["id"], reply["error"]["code"]) == (404, "mine", -32001)


def test_a_cut_stream_is_read_on_from_where_it_was_cut(shed: Logged, tmp_path: Path) -> None:
    session = open_session(shed)
    params = {"name": "climb", "arguments": {"rungs": 6}, "_meta": {"progressToken": 7}}
    with session.stream("tools/call", params) as events:
        seen = [next(events), next(events)]
    with session.stream(after=seen[-1].id) as events:
        seen += list(events)
    assert [event.data["params"]["progress"] for event in seen[:-1]] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].data["result"]["structuredContent"] == {"result": "on top"}
    assert len({event.id for event in seen}) == len(seen)
    assert session.end() == 204


def test_a_cut_stream_costs_no_call(shed: Logged, tmp_path: Path) -> None:
    session = open_session(shed)
    meta = {"progressToken": 1}
    with session.stream("tools/call", {"name": "announce", "arguments": {"text": "a"}, "_meta": meta}) as events:
        first = next(events)  # a message, for whoever asked for none below it
        assert first.data["method"] == "notifications/message"
    block = {"name": "block", "arguments": {"folder": str(tmp_path)}, "_meta": meta}
    with session.stream("tools/call", block):
        eventually((tmp_path / "begun").exists)
    (tmp_path / "go").touch()  # the client is gone by now, and the call goes on
    assert session.call("add", by=2) == 2
    assert session.end() == 204


def test_events_that_are_not_there_cannot_be_read_on_from(shed: Logged) -> None:
    session = open_session(shed)
    for after in ("99-1", "nonsense"):
        status, _, reply = send(shed, None, session.id, method="GET", **{"Last-Event-ID": after})
        assert (status, reply["error"]["code"]) == (404, -32602)
    assert session.end() == 204


def test_a_listening_stream_lasts_as_long_as_its_session(shed: Logged) -> None:
    session = open_session(shed)
    with session.stream() as events:
        assert session.call("add") == 1
        assert session.end() == 204
        assert list(events) == []


def test_all_listening_streams_end_with_their_session_however_many(shed: Logged) -> None:
    session = open_session(shed)
    with ExitStack() as stack:
        # More than can be gone on with; one that does not end would say so after 15 s.
        streams = [stack.enter_context(session.stream(timeout=10)) for _ in range(20)]
        assert session.end() == 204
        assert [list(events) for events in streams] == [[]] * 20


def test_a_request_of_an_unknown_version_is_refused(shed: Logged) -> None:
    session = open_session(shed)
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    status, _, reply = send(shed, message, session.id, **{"MCP-Protocol-Version": "1999-01-01"})
    assert (status, reply["error"]["code"]) == (400, -32000)
    assert send(shed, message, session.id, **{"MCP-Protocol-Version": "2025-06-18"})[0] == 200
    assert session.end() == 204


# Who may.


@pytest.fixture(scope="module", params=["1", "2"])
def locked_shed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    options = ("--workers", request.param, "--token", "ann:a-secret-of-ann", "--token", "bob:a-secret-of-bob:1")
    with serve_shed(tmp_path_factory.mktemp("shed"), *options) as server:
        yield server


def test_a_tokens_session_is_nobody_elses(locked_shed: Logged) -> None:
    assert initialize(locked_shed)[0] == 401
    session = open_session(locked_shed, "a-secret-of-ann")
    assert session.call("add", by=3) == 3
    stolen = RawSession(locked_shed, session.id, "a-secret-of-bob")
    for _ in range(4):  # on connections of their own, so that both workers are asked
        status, reply = stolen.ask("tools/call", {"name": "add"})
        assert (status, reply["error"]["data"]) == (404, {"code": "SESSION_NOT_FOUND"})
        assert stolen.end() == 404
    assert session.call("add", by=3) == 6
    own = open_session(locked_shed, "a-secret-of-bob")
    assert initialize(locked_shed, "a-secret-of-bob")[0] == 503  # his quota
    assert (own.end(), session.end()) == (204, 204)


def test_clients_show_their_token(locked_shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(locked_shed.url, "a-secret-of-ann") as agent:
            assert await agent.call("add") == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_idle_session_expires_and_its_client_is_told_so(workers: str, tmp_path: Path) -> None:
    with serve_shed(tmp_path, "--workers", workers, "--session-timeout", "0.5", "--max-sessions", "1") as server:
        session = open_session(server)
        server.wait_until_empty()
        status, reply = session.ask("tools/call", {"name": "add"})
        assert (status, reply["error"]["code"], reply["error"]["data"]) == (404, -32001, {"code": "SESSION_EXPIRED"})
        assert initialize(server)[0] == 200  # and the place is free


@pytest.fixture(scope="module")
def production_shed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    with serve_shed(tmp_path_factory.mktemp("shed"), "--mode", "production") as server:
        yield server


def test_in_production_agents_have_tools(production_shed: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(production_shed.url) as agent:
            assert await agent.tools() == TOOLS - {"rehearse"} | {"ship"}
            assert await agent.call("ship") == "shipped"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/health", 200), ("/schema", 200), ("/metadata", 200), ("/reset", 404), ("/step", 404), ("/state", 404)],
)
def test_in_production_there_is_nothing_else(production_shed: Logged, path: str, expected: int) -> None:
    try:
        with urllib.request.urlopen(f"{production_shed.url}{path}", timeout=10) as reply:
            assert reply.status == expected
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == expected


@pytest.fixture(scope="module", params=["1", "2"])
def exposed_echo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    options = ("--workers", request.param, "--expose-step")
    with serve_shed(tmp_path_factory.mktemp("echo"), *options, target="echo") as server:
        yield server


def test_any_environments_step_can_be_exposed(exposed_echo: Logged, connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(exposed_echo.url) as agent:
            assert await agent.tools() == {"act"}
            seen = await agent.call("act", message="hello")
            assert seen["observation"]["echoed_message"] == "hello"
            with pytest.raises(CallFailedError, match="message"):
                await agent.call("act", word="hello")
            with pytest.raises(RefusedError):
                await agent.call("reset")

    asyncio.run(scenario())
