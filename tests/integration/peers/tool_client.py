"""OpenEnv's own client for tools, taken through an episode. Run by a peer's Python: `python tool_client.py URL`.

Prints one JSON object: what each call came to.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.mcp_client import MCPToolClient


async def error_of(call: Awaitable[Any]) -> str:
    try:
        return f"returned {await call!r}"
    except Exception as error:  # whatever it is, the test wants to see it
        return f"{type(error).__name__}: {error}"


async def episode(url: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    async with MCPToolClient(base_url=url) as env, MCPToolClient(base_url=url) as other:
        await env.reset(seed=10)
        seen["tools"] = sorted(tool.name for tool in await env.list_tools())
        seen["called"] = [await env.call_tool("add", by=2), await env.call_tool("add")]
        stepped = await env.step(CallToolAction(tool_name="add", arguments={"by": 7}))
        seen["stepped"] = [type(stepped.observation).__name__, stepped.observation.result["data"], stepped.reward]
        listed = await env.step(ListToolsAction())
        seen["listed"] = sorted(tool.name for tool in listed.observation.tools)
        seen["state"] = (await env.state()).step_count
        seen["other"] = await other.call_tool("add", by=1)
        seen["has"] = [await env.has_tool("add"), await env.has_tool("fly")]
        seen["raised"] = await error_of(env.call_tool("fail"))
        seen["unknown"] = await error_of(env.call_tool("fly"))
        seen["wrong"] = await error_of(env.call_tool("add", by="much"))
        failed = await env.step(CallToolAction(tool_name="fail"))
        seen["failed step"] = failed.observation.error.error_type.value
        seen["after"] = await env.call_tool("add", by=0)
    return seen


def sync_episode(url: str) -> list[Any]:
    with MCPToolClient(base_url=url).sync() as env:
        env.reset(seed=3)
        return [env.call_tool("add", by=1), env.step(CallToolAction(tool_name="add")).reward]


seen = asyncio.run(episode(sys.argv[1]))
seen["sync"] = sync_episode(sys.argv[1])
print(json.dumps(seen))
