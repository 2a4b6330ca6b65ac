"""OpenEnv's functions between models and plain dicts, for environments that call them."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import Any, Final

from envhive.tools import CallToolAction, ListToolsAction
from envhive.types import Action, Observation

_TOOL_ACTIONS: Final[dict[Any, type[Action]]] = {"list_tools": ListToolsAction, "call_tool": CallToolAction}


def serialize_observation(observation: Observation) -> dict[str, Any]:
    """An observation as replies have it: `reward` and `done` beside it, and `metadata` too if there is any."""
    beside = {"metadata": observation.metadata} if observation.metadata else {}
    return {
        "observation": observation.model_dump(exclude={"reward", "done"}),
        "reward": observation.reward,
        "done": observation.done,
        **beside,
    }


def deserialize_action(action_data: dict[str, Any], action_cls: type[Action]) -> Action:
    """The action in a dict. For the base class, and for tools, `type` says which it is."""
    named = _TOOL_ACTIONS.get(action_data.get("type"))
    generic = action_cls is Action or action_cls in _TOOL_ACTIONS.values()
    return (named if named is not None and generic else action_cls).model_validate(action_data)


def deserialize_action_with_preprocessing(action_data: dict[str, Any], action_cls: type[Action]) -> Action:
    """The same for what people type into a form: JSON text in `arguments` and `tokens`, a number in `action_id`."""
    data = dict(action_data)
    if data.get("type") == "call_tool" and isinstance(data.get("arguments"), str):
        with contextlib.suppress(ValueError):
            data["arguments"] = json.loads(data["arguments"])
    if isinstance(data.get("action_id"), str):
        with contextlib.suppress(ValueError):
            data["action_id"] = int(data["action_id"])
    if isinstance(data.get("tokens"), (str, list)):
        data["tokens"] = _as_tokens(data["tokens"])
    return deserialize_action(data, action_cls)


def _as_tokens(given: str | list[Any]) -> Any:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = []
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return given
    return torch.tensor(given, dtype=torch.long) if isinstance(given, list) else given
