"""A client for environments with tools: listed and called through `step`, so that trainers see what comes of it."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from envhive.client.client import EnvClient
from envhive.client.sync import SyncEnvClient, run_in_background
from envhive.errors import ExecutionError
from envhive.tools import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from envhive.types import Observation, State, StepResult


class AnyObservation(Observation):
    """An observation of whatever fields."""

    model_config = ConfigDict(extra="allow")


class MCPClientBase(EnvClient[Any, Observation, State]):
    """A client that knows tools: replies to `ListToolsAction` and `CallToolAction` have their own classes."""

    state_cls = State
    _tools_cache: list[Tool] | None = None

    def __init__(
        self, base_url: str, *args: Any, mode: str | None = None, provider: Any = None, **options: Any
    ) -> None:
        if provider is not None:
            raise NotImplementedError("EnvHive's clients start no servers yet: give the address of one that runs.")
        super().__init__(base_url, *args, **options)

    async def list_tools(self, use_cache: bool = True) -> list[Tool]:
        """The tools of the environment, asked for once."""
        if not use_cache or self._tools_cache is None:
            observation = (await self.step(ListToolsAction())).observation
            self._tools_cache = observation.tools if isinstance(observation, ListToolsObservation) else []
        return self._tools_cache

    def _step_payload(self, action: Any) -> Any:
        if isinstance(action, (ListToolsAction, CallToolAction)):
            return action.model_dump(exclude={"metadata"})
        return super()._step_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        fields = payload.get("observation") or {}
        kind: type[Observation] = AnyObservation
        if "tools" in fields:
            kind = ListToolsObservation
        elif "tool_name" in fields:
            kind = CallToolObservation
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        observation = kind.model_validate({**fields, "reward": reward, "done": done})
        return StepResult(observation, reward, done, payload.get("metadata"))


class MCPToolClient(MCPClientBase):
    """Calls tools by name."""

    async def call_tool(self, name: str, **kwargs: Any) -> Any:
        """What the tool returned; raises `ExecutionError` if it gave no result."""
        observation = (await self.step(CallToolAction(tool_name=name, arguments=kwargs))).observation
        if not isinstance(observation, CallToolObservation):
            return observation
        if observation.error is not None:
            error = observation.error
            raise ExecutionError(f"Tool {name!r} failed: {error.message} ({error.error_type.value})")
        result = observation.result
        return result["data"] if isinstance(result, dict) and "data" in result else result

    async def get_tool(self, name: str) -> Tool | None:
        return next((tool for tool in await self.list_tools() if tool.name == name), None)

    async def has_tool(self, name: str) -> bool:
        return await self.get_tool(name) is not None

    def sync(self) -> SyncMCPToolClient:
        return SyncMCPToolClient(self)


class SyncMCPToolClient(SyncEnvClient[Any, Observation, State]):
    """An `MCPToolClient` without `await`."""

    def __init__(self, client: MCPToolClient) -> None:
        super().__init__(client)
        self._tools = client

    def list_tools(self, use_cache: bool = True) -> list[Tool]:
        """See `MCPClientBase.list_tools`."""
        return run_in_background(self._tools.list_tools(use_cache))

    def call_tool(self, name: str, **kwargs: Any) -> Any:
        """See `MCPToolClient.call_tool`."""
        return run_in_background(self._tools.call_tool(name, **kwargs))

    def get_tool(self, name: str) -> Tool | None:
        return run_in_background(self._tools.get_tool(name))

    def has_tool(self, name: str) -> bool:
        return run_in_background(self._tools.has_tool(name))
