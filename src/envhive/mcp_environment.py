"""`MCPEnvironment`: an environment whose actions are tools, for agents and for trainers alike. Needs `envhive[mcp]`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, TypeVar

from envhive.environment import Environment, Transform
from envhive.errors import InvalidMessageError
from envhive.toolbox import Listener, Toolbox, get_server_tools
from envhive.tools import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    tool,
)
from envhive.types import Action, Observation, ServerMode, State

F = TypeVar("F", bound=Callable[..., Any])


class MCPEnvironment(Environment[Action, Observation, State]):
    """An environment that offers tools.

    Tools are methods marked with `@tool`, or functions registered on a FastMCP server that is given to the constructor,
    or both. Agents list and call them through the Model Context Protocol; trainers do the same with `step`, given a
    `ListToolsAction` or `CallToolAction`. Plain tools run on the session's own thread. Coroutines run there too, on an
    event loop of their own, unless the environment's `reset` and `step` are coroutines themselves.

    To give rewards, override `step`, and call this one for what comes of a tool:

        def step(self, action, timeout_s=None, **kwargs):
            observation = super().step(action, timeout_s=timeout_s, **kwargs)
            observation.reward = float(self.solved)
            return observation
    """

    def __init__(self, mcp_server: Any = None, transform: Transform[Observation] | None = None) -> None:
        super().__init__(transform)
        self._toolbox = Toolbox(self, mcp_server)

    @property
    def mcp_server(self) -> Any:
        """The FastMCP server to register tools, resources and prompts on; made when first asked for."""
        return self._toolbox.server

    @cached_property
    def mcp_client(self) -> Any:
        """A FastMCP client of `mcp_server`, without a network between them; None after `close`.

        It knows the tools that are registered on that server, and not the methods that are marked with `@tool`.
        """
        return self._toolbox.new_client()

    @asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[Any]:
        """`mcp_client`, connected as long as the block lasts."""
        if self.mcp_client is None:
            raise RuntimeError(f"This {type(self).__name__} is closed, and its MCP client with it")
        async with self.mcp_client as client:
            yield client

    @property
    def server_mode(self) -> ServerMode:
        """Of the server that it runs on: tools of the other mode are not there."""
        return self._toolbox.mode

    @server_mode.setter
    def server_mode(self, mode: ServerMode) -> None:
        self._toolbox.mode = mode

    def tool(self, mode: ServerMode | str | None = None) -> Callable[[F], F]:
        """Offer a function as a tool, on servers of one mode or of both."""

        def decorate(function: F) -> F:
            marked = tool(mode=mode)(function)
            self._toolbox.add(marked)
            return marked

        return decorate

    # Code instead of calls.

    @property
    def supports_code_mode(self) -> bool:
        """Whether `execute_code` can be used."""
        return True

    def get_callables(self) -> dict[str, Callable[..., Any]]:
        """The tools of this mode as functions, for code that calls them directly."""
        return self._toolbox.callables()

    def execute_code(self, code: str) -> Observation:
        """Run Python in which each tool is a function; what it calls `result` is the observation's `result`.

        It runs in this process and may do anything that the process may: give it code of agents only where that does
        not matter.
        """
        tools = self.get_callables()
        names: dict[str, Any] = dict(tools)
        try:
            exec(code, names)
        except SyntaxError as error:
            outcome: dict[str, Any] = {"error": f"Syntax error: {error}"}
        except (Exception, SystemExit) as error:  # whatever the agent's code raises is what it gets
            outcome = {"error": str(error)}
        else:
            result = names.get("result")
            outcome = {"result": None if "result" in tools and result is tools["result"] else result}
        return Observation(done=False, reward=0.0, metadata=outcome)

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell whoever called the running tool how far it has come. Any tool may call it, plain or not."""
        self._toolbox.report_progress(progress, total, message)

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """List or call tools; other actions are for `_step_impl`."""
        if isinstance(action, ListToolsAction):
            return _listed(self._toolbox.tools())
        if isinstance(action, CallToolAction):
            return _called(action, self._toolbox.call(action.tool_name, action.arguments, timeout_s))
        return self._step_impl(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """The same for environments of coroutines."""
        if isinstance(action, ListToolsAction):
            return _listed(await self._toolbox.tools_async())
        if isinstance(action, CallToolAction):
            return _called(action, await self._toolbox.call_async(action.tool_name, action.arguments, timeout_s))
        return self._step_impl(action, timeout_s=timeout_s, **kwargs)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Override to take other actions than tools."""
        raise InvalidMessageError(
            f"{type(self).__name__} takes tools only: send {{'type': 'call_tool', 'tool_name': ..., 'arguments': ...}}"
        )

    def close(self) -> None:
        """Give back what the tools held."""
        self.mcp_client = None
        self._toolbox.close()


def _listed(tools: list[dict[str, Any]]) -> ListToolsObservation:
    return ListToolsObservation(
        tools=[Tool(name=t["name"], description=t["description"] or "", input_schema=t["inputSchema"]) for t in tools]
    )


def _called(action: CallToolAction, outcome: dict[str, Any] | ToolError) -> CallToolObservation:
    if isinstance(outcome, ToolError):
        return CallToolObservation(tool_name=action.tool_name, error=outcome)
    return CallToolObservation(tool_name=action.tool_name, result=outcome)


__all__ = ["Listener", "MCPEnvironment", "get_server_tools", "tool"]
