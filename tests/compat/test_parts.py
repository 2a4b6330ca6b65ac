"""What EnvHive has of OpenEnv's under no name of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import TypeAdapter, ValidationError

from envhive import Action, Observation
from envhive.compat import messages
from envhive.compat.clients import convert_to_ws_url, run_async_safely
from envhive.compat.interfaces import CompositeTransform, NullTransform
from envhive.compat.metadata import load_environment_metadata
from envhive.compat.routes import GetEndpointConfig, register_get_endpoints
from envhive.compat.serialization import (
    deserialize_action,
    deserialize_action_with_preprocessing,
    serialize_observation,
)
from envhive.environment import Transform
from envhive.tools import CallToolAction, ListToolsAction
from tests.support.envs import Counting, counting


class Typed(Action):
    action_id: int = 0
    tokens: list[int] = []  # noqa: RUF012  # pydantic copies it


def test_observations_are_written_as_replies_have_them() -> None:
    assert serialize_observation(Observation(reward=1, done=True)) == {
        "observation": {"metadata": {}},
        "reward": 1,
        "done": True,
    }
    assert serialize_observation(Observation(metadata={"a": 1}))["metadata"] == {"a": 1}


def test_actions_are_read_and_tools_only_where_the_class_is_open_to_them() -> None:
    call = {"type": "call_tool", "tool_name": "x", "arguments": {"a": 1}}
    assert isinstance(deserialize_action(call, Action), CallToolAction)
    assert isinstance(deserialize_action({"type": "list_tools"}, CallToolAction), ListToolsAction)
    with pytest.raises(ValidationError):
        deserialize_action(call, Typed)


def test_what_people_type_into_a_form_is_read() -> None:
    call = {"type": "call_tool", "tool_name": "x", "arguments": '{"a": 1}'}
    made = deserialize_action_with_preprocessing(call, Action)
    assert isinstance(made, CallToolAction)
    assert made.arguments == {"a": 1}
    typed = deserialize_action_with_preprocessing({"action_id": "7"}, Typed)
    assert isinstance(typed, Typed)
    assert typed.action_id == 7
    with pytest.raises(ValidationError):
        deserialize_action_with_preprocessing({"action_id": "seven"}, Typed)


def test_transforms_are_applied_in_order() -> None:
    class Times(Transform[Observation]):
        def __init__(self, factor: float, plus: float) -> None:
            self.factor, self.plus = factor, plus

        def __call__(self, observation: Observation) -> Observation:
            observation.reward = (observation.reward or 0) * self.factor + self.plus
            return observation

    both = CompositeTransform([Times(2, 0), NullTransform(), Times(1, 1)])
    assert both(Observation(reward=3)).reward == 7


def test_messages_are_told_apart_by_type() -> None:
    incoming: TypeAdapter[Any] = TypeAdapter(messages.WSIncomingMessage)
    assert isinstance(incoming.validate_python({"type": "step", "data": {}}), messages.WSStepMessage)
    with pytest.raises(ValidationError):
        incoming.validate_python({"type": "state", "data": {}})


def test_a_json_rpc_response_has_a_result_or_an_error() -> None:
    good = messages.JsonRpcResponse.success({"a": 1}, 5)
    assert json.loads(good.model_dump_json()) == {"jsonrpc": "2.0", "id": 5, "result": {"a": 1}}
    bad = messages.JsonRpcResponse.error_response(messages.JsonRpcErrorCode.METHOD_NOT_FOUND, request_id=6)
    assert bad.model_dump() == {
        "jsonrpc": "2.0",
        "id": 6,
        "error": {"code": -32601, "message": "Method not found", "data": None},
    }


def test_a_schema_leaves_out_what_is_not_declared() -> None:
    schema = messages.SchemaResponse(action={}, observation={}, state={})
    assert schema.model_dump() == {"action": {}, "observation": {}, "state": {}}


def test_get_endpoints_are_registered() -> None:
    app = FastAPI()
    health = GetEndpointConfig("/well", lambda: {"status": "fine"}, dict[str, str], "Health", "Well?", "")
    register_get_endpoints(app, [health])
    assert TestClient(app).get("/well").json() == {"status": "fine"}


def test_metadata_come_with_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("# Counting")
    monkeypatch.setenv("ENV_README_PATH", str(tmp_path / "README.md"))
    found = load_environment_metadata(Counting, "counting")
    assert (found.name, found.description, found.readme_content) == ("counting", "Counting environment", "# Counting")
    assert load_environment_metadata(lambda: None).name == "<lambda>"
    assert load_environment_metadata(counting()()).name == "CountingEnvironment"


def test_coroutines_are_run_with_and_without_a_loop() -> None:
    async def answer() -> int:
        return 42

    async def inside() -> int:
        return run_async_safely(answer())

    assert run_async_safely(answer()) == asyncio.run(inside()) == 42


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://a:1/", "ws://a:1"), ("https://a", "wss://a"), ("a:1", "ws://a:1"), ("wss://a", "wss://a")],
)
def test_addresses_get_the_scheme_of_websockets(url: str, expected: str) -> None:
    assert convert_to_ws_url(url) == expected
