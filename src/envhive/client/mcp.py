"""A client for environments with tools: what an agent does, and what a trainer does, in one session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ConfigDict

from envhive.client.client import EnvClient, _as_dict, _as_model
from envhive.client.sync import SyncEnvClient
from envhive.errors import BadReplyError, EnvHiveError, StepTimeoutError, ToolCallError, from_wire
from envhive.tools import CallToolObservation, ListToolsObservation, Tool, ToolErrorType
from envhive.types import Observation, State, StepResult
from envhive.wire.jsonrpc import INVALID_PARAMS

_SIGNS: Final = (
    ("Unknown tool", ToolErrorType.TOOL_NOT_FOUND),
    ("Tool not found", ToolErrorType.TOOL_NOT_FOUND),
    ("validation error for call[", ToolErrorType.INVALID_ARGS),
    ("validation errors for call[", ToolErrorType.INVALID_ARGS),
    ("timed out", ToolErrorType.TIMEOUT),
)
"""How servers that do not say why a call failed put it: FastMCP's words, which OpenEnv passes on."""


class MCPToolClient(EnvClient[Any, Observation, State]):
    """One session with an environment that offers tools.

    `list_tools` and `call_tool` are what an agent does: there is no reward, and they work in production mode. `reset`
    and `step`, with a `ListToolsAction` or `CallToolAction`, are what a trainer does. All see the same environment.
    A tool that gives no result is a `ToolCallError`; in `step` it is the observation's `error`, as it may be what an
    agent has to learn from.

    Example:
        async with MCPToolClient("http://localhost:8000") as env:
            await env.reset()
            print([tool.name for tool in await env.list_tools()])
            print(await env.call_tool("add", {"a": 1, "b": 2}))
            result = await env.step(CallToolAction(tool_name="add", arguments={"a": 1, "b": 2}))
            print(result.observation.result, result.reward)
    """

    state_cls = State

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls = 0
        self._tools: list[Tool] | None = None

    async def list_tools(self, use_cache: bool = False) -> list[Tool]:
        """The tools there are; with `use_cache` those that were there when it was last asked."""
        if not use_cache or self._tools is None:
            listed = _as_dict(await self._rpc("tools/list", {})).get("tools")
            if not isinstance(listed, list):
                raise BadReplyError(f"The server's list of tools is none: {listed!r:.100}")
            self._tools = [_as_tool(each) for each in listed]
        return list(self._tools)

    async def get_tool(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return next((tool for tool in await self.list_tools() if tool.name == name), None)

    async def has_tool(self, name: str) -> bool:
        return await self.get_tool(name) is not None

    async def call_tool(self, name: str, /, arguments: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """Call a tool and return its data. Keywords are arguments, too.

        Raises `ToolCallError`, whose `error_type` tells whether there is no such tool, it does not take these
        arguments, it raised, or it took too long.
        """
        given = {**(arguments or {}), **kwargs}
        return _data_of(name, await self._rpc("tools/call", {"name": name, "arguments": given}, name))

    async def _rpc(self, method: str, params: dict[str, Any], tool_name: str = "") -> Any:
        """A JSON-RPC call in a frame of this session; returns the result, or raises what the error stands for."""
        self._calls += 1
        request = {"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params}
        response = _as_dict(await self._request(await self._connected(), "mcp", request))
        error = response.get("error")
        if error is not None:
            raise _failure(tool_name, error)
        if "result" not in response:
            raise BadReplyError(f"The server answered {method} with neither result nor error: {response!r:.100}")
        return response["result"]

    def sync(self) -> SyncMCPToolClient:
        """The same client for code without `await`."""
        return SyncMCPToolClient(self)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        if self.observation_cls not in (None, Observation):
            return super()._parse_result(payload)
        fields = _as_dict(payload.get("observation", {}))
        cls, lenient = next(pair for sign, pair in _OBSERVATIONS if sign is None or sign in fields)
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        fits = fields.keys() <= cls.model_fields.keys()
        observation = _as_model(cls if fits else lenient, {**fields, "reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done, metadata=payload.get("metadata"))


class SyncMCPToolClient(SyncEnvClient[Any, Observation, State]):
    """An `MCPToolClient` without `await`."""

    def __init__(self, client: MCPToolClient) -> None:
        super().__init__(client)
        self._tool_client = client

    @property
    def async_client(self) -> MCPToolClient:
        return self._tool_client

    def list_tools(self, use_cache: bool = False) -> list[Tool]:
        """See `MCPToolClient.list_tools`."""
        return self._run(self._tool_client.list_tools, use_cache)

    def get_tool(self, name: str) -> Tool | None:
        """See `MCPToolClient.get_tool`."""
        return self._run(self._tool_client.get_tool, name)

    def has_tool(self, name: str) -> bool:
        """See `MCPToolClient.has_tool`."""
        return self._run(self._tool_client.has_tool, name)

    def call_tool(self, name: str, /, arguments: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """See `MCPToolClient.call_tool`."""
        return self._run(self._tool_client.call_tool, name, arguments, **kwargs)


# Environments add fields of their own to what they observe: then these stand in for the classes above.


class _Listed(ListToolsObservation):
    model_config = ConfigDict(extra="allow")


class _Called(CallToolObservation):
    model_config = ConfigDict(extra="allow")


class _Observed(Observation):
    model_config = ConfigDict(extra="allow")


_OBSERVATIONS: Final[tuple[tuple[str | None, tuple[type[Observation], type[Observation]]], ...]] = (
    ("tools", (ListToolsObservation, _Listed)),
    ("tool_name", (CallToolObservation, _Called)),
    (None, (Observation, _Observed)),
)
"""Which field tells what kind of observation it is."""


def _as_tool(described: Any) -> Tool:
    fields = _as_dict(described)
    schema = fields.get("inputSchema", fields.get("input_schema"))
    made = {"name": fields.get("name"), "description": fields.get("description") or "", "input_schema": schema or {}}
    tool: Tool = _as_model(Tool, made)
    return tool


def _data_of(name: str, result: Any) -> Any:
    """What the tool returned, which servers wrap in different ways."""
    if not isinstance(result, dict):
        return result
    if "tool_name" in result and "result" in result:  # an environment without FastMCP, which answers with observations
        if result.get("error"):
            error = _as_dict(result["error"])
            raise ToolCallError(str(error.get("message")), name, str(error.get("error_type")))
        return _data_of(name, result["result"])
    if result.get("is_error") or result.get("isError"):
        raise ToolCallError(str(_shown(result["content"])) if result.get("content") else "The tool failed", name)
    if result.get("data") is not None:
        return result["data"]
    # A tool without a return type has no data, but what it returned is there for people to read.
    return _shown(result["content"]) if "content" in result else result


def _shown(content: Any) -> Any:
    """Blocks of text as one text; pictures and the like as they are; None if there is nothing."""
    blocks = content if isinstance(content, list) else []
    texts = [each["text"] for each in blocks if isinstance(each, dict) and isinstance(each.get("text"), str)]
    return "\n".join(texts) if texts and len(texts) == len(blocks) else content or None


def _failure(tool_name: str, error: Any) -> EnvHiveError:
    fields = _as_dict(error)
    message, data = str(fields.get("message") or "The server gave no reason"), fields.get("data")
    if isinstance(data, dict) and "code" in data:  # it was not the tool that failed
        known = from_wire({**data, "message": message})
        late = isinstance(known, StepTimeoutError) and tool_name
        return ToolCallError(message, tool_name, ToolErrorType.TIMEOUT) if late else known
    if isinstance(data, dict) and "error_type" in data:
        return ToolCallError(message, tool_name, str(data["error_type"]))
    guess = next((found for sign, found in _SIGNS if sign in message), None)
    if guess is None:
        bad = fields.get("code") == INVALID_PARAMS
        guess = ToolErrorType.INVALID_ARGS if bad else ToolErrorType.EXECUTION_ERROR
    return ToolCallError(message, tool_name, guess)
