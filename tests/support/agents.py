"""Real MCP clients behind one face: FastMCP's and the official SDK's, over HTTP and over standard input and output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import fastmcp
import httpx2
import mcp
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp.client.streamable_http import streamable_http_client

from tests.support.processes import ENVHIVE, plain_environ

Progress = list[tuple[float, float | None, str | None]]


class CallFailedError(Exception):
    """The tool failed, and says so to whoever reads its answer."""


class RefusedError(Exception):
    """The server refused, with a JSON-RPC code."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Agent(Protocol):
    async def tools(self) -> set[str]: ...

    async def call(self, name: str, progress: Progress | None = None, **arguments: Any) -> Any: ...

    async def read(self, uri: str) -> str: ...

    async def prompt(self, name: str, **arguments: str) -> str: ...

    async def ping(self) -> None: ...


def _listener(progress: Progress | None) -> Any:
    async def listen(done: float, total: float | None, message: str | None) -> None:
        assert progress is not None
        progress.append((done, total, message))

    return None if progress is None else listen


class FastMcpAgent:
    def __init__(self, client: fastmcp.Client[Any]) -> None:
        self.client = client

    async def tools(self) -> set[str]:
        return {tool.name for tool in await self.client.list_tools()}

    async def call(self, name: str, progress: Progress | None = None, **arguments: Any) -> Any:
        try:
            result = await self.client.call_tool(name, arguments, progress_handler=_listener(progress))
        except ToolError as error:
            raise CallFailedError(str(error)) from error
        except mcp.MCPError as error:
            raise RefusedError(error.error.code, error.error.message, error.error.data) from error
        return result.data

    async def read(self, uri: str) -> str:
        return str((await self.client.read_resource(uri))[0].text)  # type: ignore[union-attr]

    async def prompt(self, name: str, **arguments: str) -> str:
        return str((await self.client.get_prompt(name, arguments)).messages[0].content.text)  # type: ignore[union-attr]

    async def ping(self) -> None:
        await self.client.ping()


class SdkAgent:
    def __init__(self, session: mcp.ClientSession) -> None:
        self.session = session

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.session.list_tools()).tools}

    async def call(self, name: str, progress: Progress | None = None, **arguments: Any) -> Any:
        try:
            result: Any = await self.session.call_tool(name, arguments, progress_callback=_listener(progress))
        except mcp.MCPError as error:
            raise RefusedError(error.error.code, error.error.message, error.error.data) from error
        if result.is_error:
            raise CallFailedError(result.content[0].text)
        structured = result.structured_content
        return structured["result"] if structured is not None and structured.keys() == {"result"} else structured

    async def read(self, uri: str) -> str:
        found: Any = await self.session.read_resource(uri)
        return str(found.contents[0].text)

    async def prompt(self, name: str, **arguments: str) -> str:
        found: Any = await self.session.get_prompt(name, arguments)
        return str(found.messages[0].content.text)

    async def ping(self) -> None:
        await self.session.send_ping()


Connect = Callable[..., AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def fastmcp_over_http(url: str, token: str | None = None) -> AsyncIterator[Agent]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with fastmcp.Client(StreamableHttpTransport(f"{url}/mcp", headers=headers)) as client:
        yield FastMcpAgent(client)


@asynccontextmanager
async def sdk_over_http(url: str, token: str | None = None) -> AsyncIterator[Agent]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        streamable_http_client(f"{url}/mcp", http_client=http) as streams,
        mcp.ClientSession(*streams) as session,
    ):
        await session.initialize()
        yield SdkAgent(session)


@asynccontextmanager
async def fastmcp_over_stdio(*arguments: str, log: Path) -> AsyncIterator[Agent]:
    transport = StdioTransport(
        ENVHIVE, ["mcp", *arguments, "--stdio"], env=plain_environ(), log_file=log, keep_alive=False
    )
    async with fastmcp.Client(transport) as client:
        yield FastMcpAgent(client)


@asynccontextmanager
async def sdk_over_stdio(*arguments: str, log: Path) -> AsyncIterator[Agent]:
    command = mcp.StdioServerParameters(command=ENVHIVE, args=["mcp", *arguments, "--stdio"], env=plain_environ())
    with log.open("w") as errors:
        async with mcp.stdio_client(command, errlog=errors) as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            yield SdkAgent(session)


OVER_HTTP: dict[str, Connect] = {"fastmcp": fastmcp_over_http, "sdk": sdk_over_http}
OVER_STDIO: dict[str, Connect] = {"fastmcp": fastmcp_over_stdio, "sdk": sdk_over_stdio}
