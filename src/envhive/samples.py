"""Making up a valid instance of a model from its JSON schema, to try an environment with."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

_DEEPEST: Final = 40
_LEGAL: Final = "legal_actions"
_FORMATS: Final = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00",
    "duration": "PT1S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.org",
    "email": "a@example.org",
}


def sample_instance(cls: type[Any], given: dict[str, Any] | None = None) -> Any:
    """An instance of a model with plain values in its required fields; raises when none of them fits.

    What is `given` is taken as it is.

    Example:
        >>> from envhive.envs.echo import EchoAction
        >>> sample_instance(EchoAction).message
        'a'
    """
    adapter: TypeAdapter[Any] = TypeAdapter(cls)
    made = sample_value(schema := schema_of(cls), schema.get("$defs", {}))
    return adapter.validate_json(json.dumps({**made, **given} if given else made))


def schema_of(cls: type[Any]) -> dict[str, Any]:
    """The JSON schema of a model, or of whatever else pydantic can read."""
    return cls.model_json_schema() if issubclass(cls, BaseModel) else TypeAdapter(cls).json_schema()


def legal_move(schema: dict[str, Any], observation: Any, index: int) -> dict[str, int]:
    """The field of an action that picks one of an observation's `legal_actions`, as games have them; else nothing.

    The field is the action's only integer, or the only one that is required.

    Example:
        >>> schema = {"properties": {"square": {"type": "integer"}}}
        >>> legal_move(schema, {"legal_actions": [4, 7]}, 1)
        {'square': 7}
    """
    legal = observation.get(_LEGAL) if isinstance(observation, dict) else getattr(observation, _LEGAL, None)
    integers = [name for name, each in schema.get("properties", {}).items() if each.get("type") == "integer"]
    required = [name for name in integers if name in schema.get("required", ())]
    field = integers if len(integers) == 1 else required
    if len(field) != 1 or not isinstance(legal, list) or not legal or not all(type(each) is int for each in legal):
        return {}
    return {field[0]: legal[index % len(legal)]}


def sample_value(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
    """A value that a JSON schema allows."""
    if depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return sample_value(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return sample_value(schema[key][0], definitions, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind == "object":
        return _sample_object(schema, definitions, depth)
    if kind == "array":
        return _sample_array(schema, definitions, depth)
    if kind == "string":
        return _FORMATS.get(schema.get("format", "")) or "a" * max(1, schema.get("minLength", 1))
    if kind in ("integer", "number"):
        return _sample_number(schema, whole=kind == "integer")
    return False if kind == "boolean" else None


def _sample_object(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    made = {name: sample_value(properties[name], definitions, depth + 1) for name in schema.get("required", ())}
    further = schema.get("additionalProperties")
    for number in range(schema.get("minProperties", 0)):
        made[f"key{number}"] = sample_value(further if isinstance(further, dict) else {}, definitions, depth + 1)
    return made


def _sample_array(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> list[Any]:
    items = [sample_value(item, definitions, depth + 1) for item in schema.get("prefixItems", ())]
    while len(items) < schema.get("minItems", 0):
        item = sample_value(schema.get("items", {}), definitions, depth + 1)
        if schema.get("uniqueItems") and item in items:
            item = item + len(items) if isinstance(item, (int, float)) else f"{item}{len(items)}"
        items.append(item)
    return items


def _sample_number(schema: dict[str, Any], *, whole: bool) -> float:
    """Zero if it is allowed, else a number near the bounds, or between them."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    factor = schema.get("multipleOf", 1 if whole else None)
    if low is not None and high is not None and not whole and "multipleOf" not in schema:
        return float(low + high) / 2
    value: float = 0
    if low is not None and (value < low or (value == low and "exclusiveMinimum" in schema)):
        value = low if "exclusiveMinimum" not in schema else low + (factor or 0.5)
    if high is not None and (value > high or (value == high and "exclusiveMaximum" in schema)):
        value = high if "exclusiveMaximum" not in schema else high - (factor or 0.5)
    if factor:
        value = -(-value // factor) * factor
    return int(value) if whole else value
