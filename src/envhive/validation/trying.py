"""Actions to try an environment with, from what a server says of itself."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final

from envhive import GenericEnvClient
from envhive.errors import EnvHiveError
from envhive.samples import legal_move, sample_value

TOKEN_VARIABLE: Final = "ENVHIVE_TOKEN"
_WRONG: Final = {"nonsense": True}
"""A value that no text, number or truth value is made from."""
_SIMPLE: Final = ("string", "integer", "number", "boolean", "array")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an HTTP request got."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def call(url: str, method: str = "GET", body: Any = None, timeout_s: float = 30.0, **headers: str) -> Answer:
    """One HTTP request; an error status is an answer, too. Raises `OSError` if there is none."""
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()} | {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, method=method, headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


@dataclass(slots=True)
class Repertoire:
    """Good actions, to be taken in turn, and bad ones, each with what is bad about it."""

    good: list[Any] = field(default_factory=list)
    bad: list[tuple[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    """The environment's tools, if its actions are tools."""
    schema: dict[str, Any] = field(default_factory=dict)
    """Of an action, where the good ones are made up."""

    def action(self, index: int, seen: Any) -> Any:
        """A good action, in turn; of those that an observation calls legal, where it does."""
        good = self.good[index % len(self.good)]
        return {**good, **legal_move(self.schema, seen, index)} if isinstance(good, dict) else good


def is_base_action(schema: dict[str, Any]) -> bool:
    """Whether an action has no fields of its own, as where the actions are tools."""
    return set(schema.get("properties", ())) <= {"metadata"}


async def repertoire(url: str, schema: dict[str, Any], given: list[Any], timeout_s: float) -> Repertoire:
    """What an environment can be tried with. `given` actions are good by definition."""
    found = Repertoire(good=list(given))
    if is_base_action(schema):
        found.tools = await _tools(url, timeout_s)
    if found.tools:
        found.bad = [("a call without the tool's name", {"type": "call_tool"})]
        found.good = found.good or [{"type": "list_tools"}, *map(_sample_call, found.tools)]
    elif not found.good:
        found.good = [sample_value(schema, schema.get("$defs", {}))]
        found.schema = schema
    if not found.tools:
        found.bad = _bad_actions(schema, found.good[0])
    found.bad.insert(0, ("a list in place of an action", [1, 2]))
    return found


async def _tools(url: str, timeout_s: float) -> list[dict[str, Any]]:
    async with GenericEnvClient(url, message_timeout_s=timeout_s) as client:
        try:
            await client.reset()
            listed = await client.step({"type": "list_tools"})
        except EnvHiveError:
            return []  # its actions are no tools
    tools = listed.observation.get("tools")
    return [each for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []


def _sample_call(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema") or tool.get("inputSchema") or {}
    arguments = sample_value(schema, schema.get("$defs", {}))
    return {"type": "call_tool", "tool_name": tool.get("name"), "arguments": arguments or {}}


def _bad_actions(schema: dict[str, Any], good: Any) -> list[tuple[str, Any]]:
    if not isinstance(good, dict):
        return []
    bad: list[tuple[str, Any]] = []
    required = [name for name in schema.get("required", ()) if name in good]
    if required:
        rest = {name: value for name, value in good.items() if name != required[0]}
        bad.append((f"an action without {required[0]!r}", rest))
    for name, described in schema.get("properties", {}).items():
        if name != "metadata" and described.get("type") in _SIMPLE:
            bad.append((f"an action whose {name!r} is an object", {**good, name: _WRONG}))
            break
    if schema.get("additionalProperties") is False:
        bad.append(("an action with a field that is not known", {**good, "no_such_field": 1}))
    return bad
