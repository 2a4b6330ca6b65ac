"""EnvHive's benchmark environment, written for OpenEnv. Runs in the peer's virtual environment, not in this project's.

It must do the same work for a step as `envhive.envs.benchmark` does, or the comparison is of environments, not servers.

PEER_FORM=async python -m uvicorn peer_app:app --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class BenchmarkAction(Action):
    wait_seconds: float = Field(default=0.0, ge=0, description="How long the step sleeps")


class BenchmarkObservation(Observation):
    pid: int = Field(default=0, description="Process that ran the step")
    waited_seconds: float = Field(default=0.0, ge=0, description="How long the step slept")


class BenchmarkEnvironment(Environment[BenchmarkAction, BenchmarkObservation, State]):
    """Sleeps on its own thread for as long as the action says."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._episode_id: str | None = None
        self._steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> BenchmarkObservation:
        self._episode_id, self._steps = episode_id, 0
        return BenchmarkObservation(pid=self._pid)

    def step(self, action: BenchmarkAction, timeout_s: float | None = None, **kwargs: Any) -> BenchmarkObservation:
        if action.wait_seconds:
            time.sleep(action.wait_seconds)
        return self._finish(action.wait_seconds)

    @property
    def state(self) -> State:
        return State(episode_id=self._episode_id, step_count=self._steps)

    def _finish(self, waited: float) -> BenchmarkObservation:
        self._steps += 1
        return BenchmarkObservation(pid=self._pid, waited_seconds=waited, reward=waited)


class AsyncBenchmarkEnvironment(BenchmarkEnvironment):
    """Sleeps on the event loop: overriding the async forms is how OpenEnv is told to."""

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> BenchmarkObservation:
        return self.reset(seed, episode_id)

    async def step_async(
        self, action: BenchmarkAction, timeout_s: float | None = None, **kwargs: Any
    ) -> BenchmarkObservation:
        if action.wait_seconds:
            await asyncio.sleep(action.wait_seconds)
        return self._finish(action.wait_seconds)


FORMS = {"sync": BenchmarkEnvironment, "async": AsyncBenchmarkEnvironment}

app = create_app(
    FORMS[os.environ.get("PEER_FORM", "sync")],
    BenchmarkAction,
    BenchmarkObservation,
    env_name="benchmark",
    max_concurrent_envs=20_000,
)
