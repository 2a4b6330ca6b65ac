"""An agent looks for the treasure through MCP. First: envhive serve treasure:Treasure (in this folder)."""

import asyncio

from fastmcp import Client


async def main(url: str = "http://localhost:8000/mcp") -> None:
    async with Client(url) as agent:
        for tool in await agent.list_tools():
            print(f"{tool.name}: {tool.description}")
        squares = [(x, y) for x in range(5) for y in range(5)]
        while squares:
            x, y = squares[len(squares) // 2]
            answer = (await agent.call_tool("dig", {"x": x, "y": y})).data
            print(f"({x}, {y}): {answer}")
            if answer == "found":
                break
            away = int(answer.split()[0])
            squares = [(a, b) for a, b in squares if abs(a - x) + abs(b - y) == away]


asyncio.run(main())
