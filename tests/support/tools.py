"""An environment with tools of every kind, for tests with real clients. Served as `tests.support.tools:Shed`."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from fastmcp import Context, FastMCP
from pydantic import BaseModel

import envhive
from envhive import MCPEnvironment, Observation, State, tool

PATIENCE_S = 30.0
TOOLS = {"add", "announce", "block", "climb", "fail", "measure", "rehearse", "rest", "say", "untyped", "whereabouts"}
"""What there is in simulation mode."""


class Plank(BaseModel):
    length: float
    width: float = 1.0


class Shed(MCPEnvironment):
    """Counts what is added to it. The reward of a step is the total."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self) -> None:
        server: Any = FastMCP("Shed", instructions="Add up.")

        @server.tool
        async def announce(text: str, ctx: Context) -> str:
            """Say something before it is done."""
            await ctx.info(text)
            await ctx.report_progress(1, 2, text)
            return text.upper()

        @server.resource("shed://total")
        def total() -> str:
            """How much there is."""
            return str(self.total)

        @server.prompt
        def advice(goal: str) -> str:
            """How to get there."""
            return f"Add until there are {goal}."

        super().__init__(server)
        self.total = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.total = seed or 0
        return Observation(metadata={"total": self.total})

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        observation.reward = float(self.total)
        return observation

    @property
    def state(self) -> State:
        return State(step_count=self.total)

    @tool
    def add(self, by: int = 1) -> int:
        """Add some, and say how many there are."""
        self.total += by
        return self.total

    @tool
    def measure(self, plank: Plank) -> float:
        """The area of a plank."""
        return plank.length * plank.width

    @tool
    def untyped(self):  # type: ignore[no-untyped-def]
        """Says nothing of what it returns."""
        return 7

    @tool
    def fail(self, text: str = "the floor gave way") -> int:
        """Fail."""
        raise RuntimeError(text)

    @tool
    def climb(self, rungs: int) -> str:
        """Climb, and tell of each rung."""
        for rung in range(1, rungs + 1):
            self.report_progress(rung, rungs, f"rung {rung}")
        return "on top"

    @tool
    def say(self, text: str) -> str:
        """Print something, as careless code does, also past Python's own stream."""
        print(text)
        os.write(1, f"{text} (raw)\n".encode())
        return text

    @tool
    def block(self, folder: str) -> str:
        """Hold the thread until there is a file `go`."""
        (Path(folder) / "begun").touch()
        deadline = time.monotonic() + PATIENCE_S
        while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return "done"

    @tool
    async def rest(self, folder: str) -> str:
        """The same without holding anything; leaves a file `cancelled` when it is."""
        (Path(folder) / "begun").touch()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (Path(folder) / "go").exists():
                    await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            (Path(folder) / "cancelled").touch()
            raise
        return "rested"

    @tool
    def whereabouts(self) -> dict[str, Any]:
        """Where this runs."""
        return {"pid": os.getpid(), "thread": threading.get_ident(), "package": envhive.__file__}

    @tool(mode="simulation")
    def rehearse(self) -> str:
        """Only for training."""
        return "rehearsed"

    @tool(mode="production")
    def ship(self) -> str:
        """Only for real."""
        return "shipped"


class AsyncShed(Shed):
    """The same with coroutines, so that its code runs on the event loop."""

    async def reset(  # type: ignore[override]
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> Observation:
        return Shed.reset(self, seed, episode_id, **kwargs)

    async def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        observation = await self.step_async(action, timeout_s=timeout_s, **kwargs)
        observation.reward = float(self.total)
        return observation


class TidyShed(Shed):
    """One that can be told to look for cycles, so that memory can be compared."""

    @tool
    def tidy(self) -> int:
        """Collect garbage."""
        return gc.collect()
