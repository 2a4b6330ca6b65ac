"""The benchmark environment, in a form that blocks a thread and one that waits on the event loop."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, ClassVar

from envhive.environment import Environment
from envhive.envs.benchmark.models import BenchmarkAction, BenchmarkObservation
from envhive.types import State


class _Benchmark(Environment[BenchmarkAction, BenchmarkObservation, State]):
    """What both forms share: everything but the waiting."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._episode_id: str | None = None
        self._steps = 0

    def _begin(self, episode_id: str | None) -> BenchmarkObservation:
        self._episode_id, self._steps = episode_id, 0
        return BenchmarkObservation(pid=self._pid)

    def _finish(self, waited: float) -> BenchmarkObservation:
        self._steps += 1
        return BenchmarkObservation(pid=self._pid, waited_seconds=waited, reward=waited)

    @property
    def state(self) -> State:
        return State(episode_id=self._episode_id, step_count=self._steps)


class BenchmarkEnvironment(_Benchmark):
    """Sleeps on its own thread for as long as the action says."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> BenchmarkObservation:
        return self._begin(episode_id)

    def step(self, action: BenchmarkAction, timeout_s: float | None = None, **kwargs: Any) -> BenchmarkObservation:
        if action.wait_seconds:
            time.sleep(action.wait_seconds)
        return self._finish(action.wait_seconds)


class AsyncBenchmarkEnvironment(_Benchmark):
    """Sleeps on the event loop for as long as the action says."""

    async def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> BenchmarkObservation:
        return self._begin(episode_id)

    async def step(
        self, action: BenchmarkAction, timeout_s: float | None = None, **kwargs: Any
    ) -> BenchmarkObservation:
        if action.wait_seconds:
            await asyncio.sleep(action.wait_seconds)
        return self._finish(action.wait_seconds)
