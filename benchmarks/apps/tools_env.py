"""One tool, on EnvHive: what `benchmarks/mcp_calls.py` calls."""

from __future__ import annotations

from typing import Any

from fastmcp import FastMCP

from envhive import MCPEnvironment, Observation, State


class Adder(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: Any = FastMCP("adder")

        @server.tool
        def add(a: int, b: int) -> int:
            """The sum of two numbers."""
            return a + b

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()
