"""Messages and tools in the forms that the APIs of language models want."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def tools_for_openai(tools: list[Json]) -> list[Json]:
    """MCP's descriptions of tools, as the OpenAI API has them."""
    return [
        {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": schema},
        }
        for name, description, schema in map(_parts, tools)
    ]


def tools_for_anthropic(tools: list[Json]) -> list[Json]:
    """MCP's descriptions of tools, as Anthropic's API has them."""
    return [
        {"name": name, "description": description, "input_schema": schema}
        for name, description, schema in map(_parts, tools)
    ]


def _parts(tool: Json) -> tuple[str, str, Json]:
    return tool["name"], tool.get("description", ""), as_object_schema(tool.get("inputSchema", _nothing()))


def _nothing() -> Json:
    return {"type": "object", "properties": {}, "required": []}


def as_object_schema(schema: Any) -> Json:
    """A schema of arguments as one plain object, which is all that the APIs take."""
    if not isinstance(schema, dict):
        return _nothing()
    if "oneOf" in schema:
        schema = _first_object(schema["oneOf"])
    if "allOf" in schema:
        schema = _merged(schema["allOf"])
    if "anyOf" in schema:
        schema = _first_object(schema["anyOf"])
    schema = {"type": "object", **schema}
    return {**schema, "properties": {}} if schema["type"] == "object" and "properties" not in schema else schema


def _first_object(choices: list[Any]) -> Json:
    objects = (each for each in choices if isinstance(each, dict) and each.get("type") == "object")
    return next(objects, _nothing())


def _merged(parts: list[Any]) -> Json:
    whole = _nothing()
    for part in parts:
        if isinstance(part, dict):
            whole["properties"] |= part.get("properties", {})
            whole["required"] += part.get("required", [])
    return whole


def for_anthropic(messages: list[Json]) -> tuple[str, list[Json]]:
    """A conversation in the OpenAI API's form as Anthropic's: its system messages, joined, and the turns."""
    system: list[str] = []
    turns: list[Json] = []
    for message in messages:
        match message["role"]:
            case "system":
                system.append(message["content"])
            case "user":
                turns.append({"role": "user", "content": message["content"]})
            case "assistant":
                turns.append({"role": "assistant", "content": _said(message)})
            case "tool":
                _add_result(turns, message)
    return "\n\n".join(system), turns


def _said(message: Json) -> Any:
    text = message.get("content", "")
    if not message.get("tool_calls"):
        return text
    blocks: list[Json] = [{"type": "text", "text": text}] if text else []
    for call in message["tool_calls"]:
        given = call["function"]["arguments"]
        arguments = json.loads(given) if isinstance(given, str) else given
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
    return blocks


def _add_result(turns: list[Json], message: Json) -> None:
    """What a tool gave is said by the user; results that follow each other are one turn, as turns must alternate."""
    block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
    if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
        turns[-1]["content"].append(block)
    else:
        turns.append({"role": "user", "content": [block]})
