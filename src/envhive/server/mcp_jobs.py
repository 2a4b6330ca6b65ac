"""What the Model Context Protocol asks of an environment. Each runs where the environment's code runs.

An environment may be in a process of its own, so these are functions that can be pickled, and so is what they return.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from envhive.tools import CallToolAction, ListToolsAction, ToolError, ToolErrorType

if TYPE_CHECKING:
    from envhive.toolbox import Listener, Toolbox


def toolbox_of(env: Any) -> Toolbox | None:
    """The tools of an environment, also of one that has a FastMCP server but not our base class."""
    found: Toolbox | None = getattr(env, "_toolbox", None)
    if found is None and (server := _server_of(env)) is not None:
        from envhive.toolbox import Toolbox  # late: it needs a library that other environments do without

        found = env._toolbox = Toolbox(env, server)
    return found


def _server_of(env: Any) -> Any:
    """An environment's FastMCP server. Older ones have only a client of it, in the same process, as `mcp_client`."""
    server = getattr(env, "mcp_server", None)
    if server is None and (client := getattr(env, "mcp_client", None)) is not None:
        from fastmcp import FastMCP  # late, as above

        behind = getattr(getattr(client, "transport", None), "server", None)
        server = behind if isinstance(behind, FastMCP) else None  # a client of a server elsewhere: ask `step`
    return server


def describe(env: Any) -> dict[str, Any]:
    """What a client is told at first."""
    box = toolbox_of(env)
    if box is None:
        return {}
    resources, prompts = box.ask_server("resources") or box.ask_server("templates"), box.ask_server("prompts")
    return {"instructions": box.instructions, "resources": bool(resources), "prompts": bool(prompts)}


async def describe_async(env: Any) -> dict[str, Any]:
    box = toolbox_of(env)
    if box is None:
        return {}
    resources = await box.ask_server_async("resources") or await box.ask_server_async("templates")
    prompts = await box.ask_server_async("prompts")
    return {"instructions": box.instructions, "resources": bool(resources), "prompts": bool(prompts)}


def list_tools(by_step: bool, env: Any) -> list[dict[str, Any]] | None:
    """All tools; None if the environment has none. Some take such actions without our base class: `by_step`."""
    box = toolbox_of(env)
    if box is not None:
        return box.tools()
    return _listed(env.step(ListToolsAction())) if by_step else None


async def list_tools_async(by_step: bool, env: Any) -> list[dict[str, Any]] | None:
    box = toolbox_of(env)
    if box is not None:
        return await box.tools_async()
    return _listed(await _step(env, ListToolsAction())) if by_step else None


def call_tool(
    name: str, arguments: dict[str, Any], timeout_s: float | None, by_step: bool, listener: Listener | None, env: Any
) -> Any:
    """What a tool returns, or a `ToolError`; None if the environment has no tools."""
    box = toolbox_of(env)
    if box is not None:
        return box.call(name, arguments, timeout_s, listener)
    return _called(env.step(CallToolAction(tool_name=name, arguments=arguments))) if by_step else None


async def call_tool_async(
    name: str, arguments: dict[str, Any], timeout_s: float | None, by_step: bool, listener: Listener | None, env: Any
) -> Any:
    box = toolbox_of(env)
    if box is not None:
        return await box.call_async(name, arguments, timeout_s, listener)
    return _called(await _step(env, CallToolAction(tool_name=name, arguments=arguments))) if by_step else None


def ask_server(what: str, args: tuple[Any, ...], env: Any) -> Any:
    """Resources or prompts; a `ToolError` for one that is not there."""
    box = toolbox_of(env)
    if box is None:
        return None
    try:
        return box.ask_server(what, *args)
    except LookupError as error:
        return ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message=str(error))
    except Exception as error:  # the author's code; what it raises is an answer
        return ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=str(error) or type(error).__name__)


async def ask_server_async(what: str, args: tuple[Any, ...], env: Any) -> Any:
    box = toolbox_of(env)
    if box is None:
        return None
    try:
        return await box.ask_server_async(what, *args)
    except LookupError as error:
        return ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message=str(error))
    except Exception as error:  # the author's code; what it raises is an answer
        return ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=str(error) or type(error).__name__)


async def _step(env: Any, action: Any) -> Any:
    observation = env.step(action)
    return await observation if inspect.isawaitable(observation) else observation


def _listed(observation: Any) -> list[dict[str, Any]] | None:
    tools = getattr(observation, "tools", None)
    if tools is None:
        return None
    return [
        {"name": each.name, "description": each.description, "inputSchema": each.input_schema, "meta": None}
        for each in tools
    ]


def _called(observation: Any) -> Any:
    error = getattr(observation, "error", None)
    if error is not None:
        return ToolError(error_type=ToolErrorType(str(error.error_type)), message=str(error.message))
    result = getattr(observation, "result", None)
    if isinstance(result, dict) and "content" in result:
        return result
    text = result if isinstance(result, str) else str(result)
    return {
        "content": [{"type": "text", "text": text}],
        "structured_content": result if isinstance(result, dict) else {"result": result},
        "meta": None,
        "data": result,
        "is_error": False,
    }
