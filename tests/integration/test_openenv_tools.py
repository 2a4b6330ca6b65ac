"""Tools between OpenEnv 0.10.0 and us: its client with our server, our client with its server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive import MCPToolClient, State
from envhive.client.mcp import SyncMCPToolClient
from envhive.errors import ToolCallError
from envhive.tools import CallToolAction, CallToolObservation, ListToolsAction, ListToolsObservation
from tests.integration.conftest import SCRIPTS, Peer, clean_environ, installed, serving
from tests.support.processes import envhive_serve
from tests.support.servers import eventually
from tests.support.tools import TOOLS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def newest() -> Peer:
    """The release whose client has sessions over HTTP."""
    return Peer("openenv", "0.10.0", installed("openenv", "0.10.0"))


@pytest.mark.parametrize(
    "options",
    [("--isolation", "thread"), ("--isolation", "process"), ("--workers", "2")],
    ids=["thread", "process", "workers"],
)
def test_openenvs_client_uses_our_tools(newest: Peer, options: tuple[str, ...]) -> None:
    with envhive_serve("tests.support.tools:Shed", "--max-sessions", "2", *options, cwd=ROOT) as server:
        done = subprocess.run(
            [str(newest.python), "tool_client.py", server.url],
            cwd=SCRIPTS,
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        seen: dict[str, Any] = json.loads(done.stdout)
        eventually(lambda: server.health()["active_sessions"] == 0)  # its sessions ended with it
    assert set(seen["tools"]) == set(seen["listed"]) == TOOLS
    assert seen["called"] == [12, 13]  # the environment that was reset
    assert seen["stepped"] == ["CallToolObservation", 20, 20.0]
    assert seen["state"] == 20
    assert seen["other"] == 1
    assert seen["has"] == [True, False]
    assert "the floor gave way" in seen["raised"]
    assert "fly" in seen["unknown"]
    assert "by" in seen["wrong"]
    assert seen["failed step"] == "execution_error"
    assert seen["after"] == 20
    assert seen["sync"] == [4, 5.0]


@pytest.fixture(scope="module")
def their_server(newest: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [str(newest.python), "-m", "uvicorn", "tool_server:app", "--no-access-log"]
    log = tmp_path_factory.mktemp("openenv") / "openenv-tool-server.log"
    with serving(command, clean_environ(PEER_MAX_SESSIONS="4"), log) as url:
        yield url


@pytest.fixture
def env(their_server: str) -> Iterator[SyncMCPToolClient]:
    with MCPToolClient(their_server).sync() as client:
        client.reset(seed=10)
        yield client


def test_our_client_lists_their_tools(env: SyncMCPToolClient) -> None:
    tools = {tool.name: tool for tool in env.list_tools()}
    assert set(tools) == {"add", "fail"}
    assert tools["add"].description == "Add some, and say how many there are."
    assert tools["add"].input_schema["properties"]["by"]["type"] == "integer"
    listed = env.step(ListToolsAction()).observation
    assert isinstance(listed, ListToolsObservation)
    assert [tool.name for tool in listed.tools] == list(tools)


def test_our_client_calls_and_steps_in_their_session(env: SyncMCPToolClient) -> None:
    assert [env.call_tool("add", {"by": 2}), env.call_tool("add")] == [12, 13]
    result = env.step(CallToolAction(tool_name="add", arguments={"by": 7}))
    assert isinstance(result.observation, CallToolObservation)
    assert (result.observation.result["data"], result.reward) == (20, 20.0)
    assert env.state() == State(step_count=20)


@pytest.mark.parametrize(
    ("name", "arguments", "error_type"),
    [
        ("fly", {}, "tool_not_found"),
        ("add", {"by": "much"}, "invalid_args"),
        ("add", {"unheard_of": 1}, "invalid_args"),
        ("fail", {}, "execution_error"),
    ],
)
def test_our_client_tells_their_failures_apart(
    env: SyncMCPToolClient, name: str, arguments: dict[str, Any], error_type: str
) -> None:
    with pytest.raises(ToolCallError) as caught:
        env.call_tool(name, arguments)
    assert caught.value.error_type == error_type
    assert env.call_tool("add") == 11
