"""The client for environments with tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive import Action, MCPToolClient, Observation, State
from envhive.client.mcp import SyncMCPToolClient
from envhive.errors import (
    BadReplyError,
    EnvironmentFailureError,
    SessionCapacityError,
    SessionError,
    ToolCallError,
    UnknownTypeError,
)
from envhive.tools import CallToolAction, CallToolObservation, ListToolsAction, ListToolsObservation, ToolErrorType
from tests.client.gates import LAYER_1
from tests.support.envs import Move, Seen, counting
from tests.support.proxies import cutting_proxy
from tests.support.servers import Lane, Running, eventually, serving
from tests.support.tools import TOOLS, AsyncShed, Shed


def serve_shed(env: Any = Shed, lane: Lane = "fast", mode: str | None = None, **config: Any) -> Any:
    return serving(env, lane, config=config, action_cls=Action, observation_cls=Observation, mode=mode)


@pytest.fixture(
    scope="module",
    params=[
        (Shed, "fast", "thread"),
        (Shed, "asgi", "thread"),
        (Shed, "fast", "process"),
        (AsyncShed, "fast", "thread"),
        (AsyncShed, "asgi", "process"),
    ],
    ids=lambda param: "-".join((param[0].__name__, *param[1:])),
)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    env, lane, isolation = request.param
    with serve_shed(env, lane, isolation=isolation) as running:
        yield running


@pytest.fixture
def env(server: Running) -> Iterator[SyncMCPToolClient]:
    with MCPToolClient(server.url).sync() as client:
        client.reset()
        yield client


def test_tools_are_listed_with_what_they_take(env: SyncMCPToolClient) -> None:
    tools = {tool.name: tool for tool in env.list_tools()}
    assert set(tools) == TOOLS
    assert tools["add"].description == "Add some, and say how many there are."
    assert tools["add"].input_schema["properties"]["by"]["type"] == "integer"
    assert (env.has_tool("add"), env.has_tool("ship")) == (True, False)
    assert env.get_tool("fail") == tools["fail"]
    assert env.get_tool("fly") is None


def test_a_tool_gives_its_data(env: SyncMCPToolClient) -> None:
    assert [env.call_tool("add", {"by": 2}), env.call_tool("add", by=3), env.call_tool("add")] == [2, 5, 6]
    assert env.call_tool("measure", plank={"length": 2.5}) == 2.5
    assert env.call_tool("announce", text="hi") == "HI"
    assert env.call_tool("untyped") == "7"  # without a return type only the text is there


def test_tools_and_steps_see_the_same_environment(env: SyncMCPToolClient) -> None:
    env.reset(seed=10)
    env.call_tool("add", by=5)
    result = env.step(CallToolAction(tool_name="add", arguments={"by": 1}))
    assert isinstance(result.observation, CallToolObservation)
    assert (result.observation.result["data"], result.reward, result.observation.reward) == (16, 16.0, 16.0)
    assert env.state() == State(step_count=16)
    listed = env.step(ListToolsAction()).observation
    assert isinstance(listed, ListToolsObservation)
    assert listed.tools == env.list_tools()


@pytest.mark.parametrize(
    ("name", "arguments", "error_type", "outcome", "text"),
    [
        ("fly", {}, ToolErrorType.TOOL_NOT_FOUND, "invalid", "fly"),
        ("reset", {}, ToolErrorType.TOOL_NOT_FOUND, "invalid", "reset"),
        ("add", {"by": "much"}, ToolErrorType.INVALID_ARGS, "invalid", "by"),
        ("add", {"unheard_of": 1}, ToolErrorType.INVALID_ARGS, "invalid", "unheard_of"),
        ("fail", {}, ToolErrorType.EXECUTION_ERROR, "env_error", "the floor gave way"),
    ],
)
def test_failures_are_told_apart(
    env: SyncMCPToolClient, name: str, arguments: dict[str, Any], error_type: str, outcome: str, text: str
) -> None:
    with pytest.raises(ToolCallError, match=text) as caught:
        env.call_tool(name, arguments)
    assert (caught.value.error_type, caught.value.outcome, caught.value.tool_name) == (error_type, outcome, name)
    assert "Traceback" not in str(caught.value)
    in_step = env.step(CallToolAction(tool_name=name, arguments=arguments)).observation
    assert isinstance(in_step, CallToolObservation)
    assert in_step.error is not None
    assert in_step.error.error_type == error_type
    assert env.call_tool("add", by=4) == 4  # and the session goes on


@pytest.mark.parametrize("env_cls", [Shed, AsyncShed])
def test_a_tool_that_outlasts_the_servers_limit_timed_out(env_cls: type[Shed], tmp_path: Path) -> None:
    with serve_shed(env_cls, step_timeout=0.3) as running, MCPToolClient(running.url).sync() as client:
        with pytest.raises(ToolCallError) as caught:
            client.call_tool("rest", folder=str(tmp_path))
        assert (caught.value.error_type, caught.value.outcome) == (ToolErrorType.TIMEOUT, "timeout")
        (tmp_path / "go").touch()


def test_there_is_no_need_to_reset_first(server: Running) -> None:
    with MCPToolClient(server.url).sync() as client:
        assert client.call_tool("add", by=2) == 2


def test_clients_keep_apart(server: Running) -> None:
    async def scenario() -> None:
        clients = [MCPToolClient(server.url) for _ in range(6)]
        for number, client in enumerate(clients):
            await client.reset(seed=100 * number)
        totals = await asyncio.gather(*(client.call_tool("add", by=1) for client in clients for _ in range(5)))
        assert sorted(totals) == [100 * number + more for number in range(6) for more in range(1, 6)]
        for client in clients:
            await client.close()

    asyncio.run(scenario())


def test_a_list_may_be_kept(env: SyncMCPToolClient) -> None:
    first = env.list_tools()
    first.clear()  # the caller's own copy
    assert {tool.name for tool in env.list_tools(use_cache=True)} == TOOLS


# Other servers than the usual.


def test_layer_1_will_do(server: Running) -> None:
    with MCPToolClient(server.url, headers=LAYER_1).sync() as client:
        client.reset()
        assert client.call_tool("add", by=2) == 2
        with pytest.raises(ToolCallError):
            client.call_tool("fail")
        assert client.call_tool("add", by=2) == 4


@pytest.mark.parametrize("lane", ["fast", "asgi"])
def test_in_production_there_are_tools_and_nothing_else(lane: Lane) -> None:
    with serve_shed(lane=lane, mode="production") as running, MCPToolClient(running.url).sync() as client:
        assert {tool.name for tool in client.list_tools()} == TOOLS - {"rehearse"} | {"ship"}
        assert client.call_tool("ship") == "shipped"
        for refused in (client.reset, client.state, lambda: client.step(CallToolAction(tool_name="add"))):
            with pytest.raises(UnknownTypeError, match="production"):
                refused()
        assert client.call_tool("add", by=2) == 2


def test_an_exposed_step_is_a_tool_of_any_environment() -> None:
    with (
        serving(counting(), "fast", config={"expose_step": True}) as running,
        MCPToolClient(running.url, observation_cls=Seen).sync() as client,
    ):
        assert [tool.name for tool in client.list_tools()] == ["act"]
        assert client.call_tool("act", by=3)["observation"]["total"] == 3
        with pytest.raises(EnvironmentFailureError, match="the floor gave way"):
            client.call_tool("act", do="raise")
        observed = client.step(Move(by=2)).observation
        assert isinstance(observed, Seen)
        assert (observed.total, observed.reward) == (5, 2.0)


def test_an_environment_without_tools_says_so() -> None:
    with serving(counting(), "fast") as running, MCPToolClient(running.url).sync() as client:
        with pytest.raises(ToolCallError, match="does not support MCP"):
            client.list_tools()
        observed = client.reset(seed=3).observation
        assert observed.model_dump()["total"] == 3  # fields of its own are not lost


def test_a_full_server_is_no_tools_failure() -> None:
    with serve_shed(max_sessions=1) as running, MCPToolClient(running.url).sync() as first:
        first.list_tools()
        with pytest.raises(SessionCapacityError):
            MCPToolClient(running.url).sync().list_tools()


def test_calls_survive_cut_connections() -> None:
    with serve_shed() as running, cutting_proxy(running.port, seed=3, fewest=600, most=3000) as proxy:
        with MCPToolClient(proxy.url).sync() as client:
            client.reset()
            proxy.cutting = True
            assert [client.call_tool("add") for _ in range(60)] == list(range(1, 61))  # none lost, none run twice
            assert proxy.cuts > 3
            proxy.cutting = False
        eventually(lambda: running.server.active_sessions == 0)


# What a server may say.


@pytest.mark.parametrize(
    ("reply", "error_type"),
    [
        ({"code": -32602, "message": "Tool not found: fly"}, "tool_not_found"),
        ({"code": -32603, "message": "Unknown tool: 'fly'"}, "tool_not_found"),
        ({"code": -32603, "message": "1 validation error for call[add]"}, "invalid_args"),
        ({"code": -32602, "message": "arguments must be an object"}, "invalid_args"),
        ({"code": -32603, "message": "Error calling tool 'fly': no wings"}, "execution_error"),
        ({"code": -32603}, "execution_error"),
    ],
)
def test_a_server_that_does_not_say_why_is_understood_by_its_words(
    monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], error_type: str
) -> None:
    with pytest.raises(ToolCallError) as caught:
        asyncio.run(call_with_reply(monkeypatch, {"jsonrpc": "2.0", "id": 1, "error": reply}))
    assert caught.value.error_type == error_type


def test_a_sessions_end_is_no_tools_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"code": -32000, "message": "The session has ended", "data": {"code": "SESSION_ERROR"}}
    with pytest.raises(SessionError) as caught:
        asyncio.run(call_with_reply(monkeypatch, {"jsonrpc": "2.0", "id": 1, "error": error}))
    assert caught.value.outcome == "infra_error"


@pytest.mark.parametrize(
    ("result", "data"),
    [
        ({"content": [], "structured_content": None, "data": None, "is_error": False}, None),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": None}, "a\nb"),
        ({"content": [{"type": "image", "data": "…"}], "data": None}, [{"type": "image", "data": "…"}]),
        ({"tool_name": "fly", "result": {"data": 3}, "error": None}, 3),
        ("bare", "bare"),
        ({"of": "its own"}, {"of": "its own"}),
    ],
)
def test_whatever_a_server_wraps_around_it_the_data_comes_out(
    monkeypatch: pytest.MonkeyPatch, result: Any, data: Any
) -> None:
    assert asyncio.run(call_with_reply(monkeypatch, {"jsonrpc": "2.0", "id": 1, "result": result})) == data


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": "no wings"}], "isError": True},
        {"tool_name": "fly", "result": None, "error": {"error_type": "execution_error", "message": "no wings"}},
    ],
)
def test_a_failure_in_a_result_is_a_failure(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    with pytest.raises(ToolCallError, match="no wings"):
        asyncio.run(call_with_reply(monkeypatch, {"jsonrpc": "2.0", "id": 1, "result": result}))


@pytest.mark.parametrize("reply", [{}, [], None, {"jsonrpc": "2.0", "id": 1}])
def test_nonsense_is_a_bad_reply(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    with pytest.raises(BadReplyError):
        asyncio.run(call_with_reply(monkeypatch, reply))


async def call_with_reply(monkeypatch: pytest.MonkeyPatch, reply: Any) -> Any:
    """What `call_tool` makes of a reply."""

    async def connected(self: Any, **kwargs: Any) -> None: ...

    async def request(self: Any, *args: Any) -> Any:
        return reply

    monkeypatch.setattr(MCPToolClient, "_connected", connected)
    monkeypatch.setattr(MCPToolClient, "_request", request)
    return await MCPToolClient("http://nowhere").call_tool("fly")
