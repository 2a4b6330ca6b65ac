"""Making up a valid instance of a model from its JSON schema, to try an environment with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter

_DEEPEST = 8


def sample_instance(cls: type[Any]) -> Any:
    """An instance of a model with plain values in its required fields; raises when none of them fits.

    Example:
        >>> from envhive.envs.echo import EchoAction
        >>> sample_instance(EchoAction).message
        'a'
    """
    adapter: TypeAdapter[Any] = TypeAdapter(cls)
    schema = cls.model_json_schema() if issubclass(cls, BaseModel) else adapter.json_schema()
    return adapter.validate_python(sample_value(schema, schema.get("$defs", {})))


def sample_value(schema: dict[str, Any], definitions: dict[str, Any], depth: int = 0) -> Any:
    """A value that a JSON schema allows."""
    if depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return sample_value(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return sample_value(schema[key][0], definitions, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: sample_value(properties[name], definitions, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        prefix = [sample_value(item, definitions, depth + 1) for item in schema.get("prefixItems", ())]
        while len(prefix) < schema.get("minItems", 0):
            prefix.append(sample_value(schema.get("items", {}), definitions, depth + 1))
        return prefix
    if kind == "string":
        return "a" * max(1, schema.get("minLength", 1))
    if kind in ("integer", "number"):
        return _sample_number(schema, 1 if kind == "integer" else 0.5)
    return {"boolean": False}.get(str(kind))


def _sample_number(schema: dict[str, Any], step: float) -> Any:
    if "minimum" in schema:
        return float(schema["minimum"]) if step != 1 else int(schema["minimum"])
    if "exclusiveMinimum" in schema:
        return schema["exclusiveMinimum"] + step
    if "maximum" in schema:
        return min(0, schema["maximum"])
    if "exclusiveMaximum" in schema:
        return min(0, schema["exclusiveMaximum"] - step)
    return 0
