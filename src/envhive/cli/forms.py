"""Questions to a person, made from a JSON schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_YES: Final = ("y", "yes", "true", "1")
_NO: Final = ("n", "no", "false", "0")
_NOT_ASKED: Final = ("metadata",)
"""Fields that every action has and hardly any needs; they can be given as JSON."""


class Left:
    """What an answer is where the field is to be left out."""


LEFT: Final = Left()


@dataclass(frozen=True, slots=True)
class Question:
    """One field of an object: what to show, and how to read the answer."""

    name: str
    schema: dict[str, Any]
    required: bool
    nullable: bool = False

    @property
    def kind(self) -> str:
        kind = self.schema.get("type")
        return kind if isinstance(kind, str) else "any"

    def __str__(self) -> str:
        """The question as it is shown.

        Example:
            >>> print(Question("number", {"type": "integer", "minimum": 1, "maximum": 9, "default": 5}, False))
            number (integer, 1 to 9) [5]
        """
        shown = f"{self.name} ({self._hint()})"
        if "default" in self.schema:
            return f"{shown} [{json.dumps(self.schema['default'])}]"
        return shown if self.required else f"{shown} [leave out]"

    def _hint(self) -> str:
        if "enum" in self.schema:
            return " | ".join(map(str, self.schema["enum"]))
        if self.kind == "boolean":
            return "yes | no"
        low = self.schema.get("minimum", self.schema.get("exclusiveMinimum"))
        high = self.schema.get("maximum", self.schema.get("exclusiveMaximum"))
        kind = {"string": "text", "object": "JSON object", "array": "JSON list", "any": "JSON"}.get(
            self.kind, self.kind
        )
        if low is not None and high is not None:
            return f"{kind}, {low} to {high}"
        if low is not None:
            return f"{kind}, from {low}"
        return kind if high is None else f"{kind}, up to {high}"

    def read(self, text: str) -> Any:
        """The value that an answer stands for, or `LEFT`; raises `ValueError` with what was expected."""
        if not text.strip():
            if self.required and self.kind != "string":
                raise ValueError(f"{self.name} is needed: {self._hint()}")
            if not self.required:
                return LEFT
        if "enum" in self.schema:
            return self._choice(text.strip())
        if self.nullable and text.strip() == "null":
            return None
        if self.kind == "string":
            return self._text(text)
        if self.kind == "boolean":
            return self._truth(text.strip().lower())
        if self.kind in ("integer", "number"):
            return self._number(text.strip())
        return self._json(text)

    def _choice(self, text: str) -> Any:
        for choice in self.schema["enum"]:
            if text == str(choice):
                return choice
        raise ValueError(f"{self.name} is one of {self._hint()}")

    def _text(self, text: str) -> str:
        if len(text) < self.schema.get("minLength", 0):
            raise ValueError(f"{self.name} has at least {self.schema['minLength']} character(s)")
        if len(text) > self.schema.get("maxLength", len(text)):
            raise ValueError(f"{self.name} has at most {self.schema['maxLength']} characters")
        return text

    def _truth(self, text: str) -> bool:
        if text not in _YES + _NO:
            raise ValueError(f"{self.name} is yes or no")
        return text in _YES

    def _number(self, text: str) -> float:
        try:
            value = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise ValueError(f"{self.name} is a number: {self._hint()}") from None
        keeps = (
            value >= self.schema.get("minimum", value)
            and value <= self.schema.get("maximum", value)
            and not value <= self.schema.get("exclusiveMinimum", float("-inf"))
            and not value >= self.schema.get("exclusiveMaximum", float("inf"))
        )
        if not keeps:
            raise ValueError(f"{self.name} is out of range: {self._hint()}")
        return value

    def _json(self, text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self.name} is not JSON ({error})") from None
        if (self.kind == "array" and not isinstance(value, list)) or (
            self.kind == "object" and not isinstance(value, dict)
        ):
            raise ValueError(f"{self.name} is a {self._hint()}")
        return value


def questions_for(schema: dict[str, Any]) -> tuple[list[Question], dict[str, Any]]:
    """What to ask for an object, and the fields that can only have one value."""
    definitions = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    questions: list[Question] = []
    settled: dict[str, Any] = {}
    for name, described in schema.get("properties", {}).items():
        plain, nullable = _plain(described, definitions)
        if "const" in plain:
            settled[name] = plain["const"]
        elif name not in _NOT_ASKED or name in required:
            questions.append(Question(name, plain, name in required, nullable))
    return questions, settled


def _plain(schema: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A schema without references, and without the `null` that it may also be."""
    while "$ref" in schema:
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**definitions.get(schema["$ref"].rsplit("/", 1)[-1], {}), **rest}
    ways = schema.get("anyOf") or schema.get("oneOf")
    if not ways:
        return schema, False
    others = [way for way in ways if way.get("type") != "null"]
    nullable = len(others) < len(ways)
    if len(others) != 1:
        return {name: value for name, value in schema.items() if name in ("default", "description")}, nullable
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "oneOf")}
    plain, _ = _plain({**others[0], **rest}, definitions)
    return plain, nullable
