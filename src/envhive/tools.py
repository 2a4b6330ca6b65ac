"""Tools as actions and observations, for training on what agents call through the Model Context Protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field

from envhive.types import Action, Observation, ServerMode

RESERVED_TOOL_NAMES: Final = frozenset({"reset", "step", "state", "close"})
"""What a trainer does, and an agent must not."""

MARK: Final = "__envhive_tool__"

F = TypeVar("F", bound=Callable[..., Any])


class Tool(BaseModel):
    """A tool that an environment offers."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str
    input_schema: dict[str, Any] = Field(description="JSON schema of its arguments")


class ToolErrorType(StrEnum):
    """Why a tool gave no result."""

    EXECUTION_ERROR = "execution_error"
    INVALID_ARGS = "invalid_args"
    TRANSPORT_ERROR = "transport_error"
    TOOL_NOT_FOUND = "tool_not_found"
    TIMEOUT = "timeout"


class ToolError(BaseModel):
    """What went wrong with a call."""

    model_config = ConfigDict(extra="forbid")

    error_type: ToolErrorType
    message: str


class ListToolsAction(Action):
    """Ask which tools there are. It needs no reset."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Call a tool."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ListToolsObservation(Observation):
    tools: list[Tool]


class CallToolObservation(Observation):
    """What came of a call: a result, or an error."""

    tool_name: str
    result: Any = None
    error: ToolError | None = None


class Mark(BaseModel):
    """What `@tool` notes on a method."""

    model_config = ConfigDict(frozen=True)

    name: str | None = None
    description: str | None = None
    mode: ServerMode | None = None


@overload
def tool(function: F) -> F: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, mode: ServerMode | str | None = None
) -> Callable[[F], F]: ...


def tool(
    function: Any = None,
    *,
    name: str | None = None,
    description: str | None = None,
    mode: ServerMode | str | None = None,
) -> Any:
    """Offer a method of an `MCPEnvironment` as a tool. Its type hints are the schema, its docstring the description.

    Args:
        function: The method, when used without parentheses.
        name: What agents call it; its own name if not given.
        description: What agents read about it; its docstring if not given.
        mode: `production` or `simulation`: only on servers of that mode. Two methods may share a name, one for each.

    Example:
        >>> from envhive import MCPEnvironment, Observation, State, tool
        >>> class Dice(MCPEnvironment):
        ...     def reset(self, seed=None, episode_id=None, **kwargs):
        ...         self.last = 0
        ...         return Observation()
        ...     @tool
        ...     def roll(self, sides: int = 6) -> int:
        ...         "Roll a die."
        ...         self.last = sides
        ...         return self.last
        ...     @property
        ...     def state(self):
        ...         return State()
        >>> from envhive.tools import CallToolAction
        >>> Dice().step(CallToolAction(tool_name="roll", arguments={"sides": 4})).result["data"]
        4
    """
    mark = Mark(name=name, description=description, mode=None if mode is None else ServerMode(mode))

    def decorate(decorated: F) -> F:
        tool_name = name or decorated.__name__
        if tool_name in RESERVED_TOOL_NAMES:
            raise ValueError(reserved_message([tool_name]))
        parameters = inspect.signature(decorated).parameters.values() if inspect.isfunction(decorated) else ()
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"The tool {tool_name!r} takes {parameter}: agents need to be told each argument.")
        setattr(decorated, MARK, mark)
        return decorated

    return decorate if function is None else decorate(function)


def reserved_message(names: list[str]) -> str:
    """Why tools of these names are refused."""
    return (
        f"{', '.join(sorted(names))}: no tool may have this name, as it is for trainers alone. "
        f"Reserved are {', '.join(sorted(RESERVED_TOOL_NAMES))}."
    )
