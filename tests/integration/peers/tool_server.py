"""An environment with tools on OpenEnv's own base classes, for OpenEnv's own server.

Run by a peer's Python: `python -m uvicorn tool_server:app`. `PEER_MAX_SESSIONS` is the session limit.
"""

from __future__ import annotations

import os
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class ToolEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tools")
        self.total = 0

        @server.tool
        def add(by: int = 1) -> int:
            """Add some, and say how many there are."""
            self.total += by
            return self.total

        @server.tool
        def fail(text: str = "the floor gave way") -> int:
            """Fail."""
            raise RuntimeError(text)

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.total = seed or 0
        return Observation(metadata={"total": self.total})

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return self._judged(super().step(action, timeout_s=timeout_s, **kwargs))

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return self._judged(await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _judged(self, observation: Observation) -> Observation:
        observation.reward = float(self.total)
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.total)


app = create_app(
    ToolEnvironment,
    CallToolAction,
    CallToolObservation,
    env_name="tools",
    max_concurrent_envs=int(os.environ["PEER_MAX_SESSIONS"]),
)
