"""The same environment as in `our_env.py`, on OpenEnv's own base classes, as an app for OpenEnv's own server.

Run by a peer's Python: `python -m uvicorn peer_server:app`. `PEER_MAX_SESSIONS` is the session limit.
"""

from __future__ import annotations

import os
import time
from typing import Any

from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class CountAction(Action):
    word: str
    add: int = 1
    fail: str = ""
    sleep_s: float = 0.0


class CountObservation(Observation):
    word: str
    total: int
    seed: int | None = None


class CountState(State):
    total: int = 0


class CountingEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = CountState()
        self._seed: int | None = None
        self._close_s = 0.0

    # No **kwargs: a keyword that is not dropped on the way here is a TypeError.
    def reset(
        self, seed: int | None = None, episode_id: str | None = None, start: int = 0, close_s: float = 0.0
    ) -> CountObservation:
        self._seed, self._close_s = seed, close_s
        self._state = CountState(episode_id=episode_id, total=start)
        return CountObservation(word="", total=start, seed=seed)

    def step(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        if action.fail:
            raise RuntimeError(action.fail)
        time.sleep(action.sleep_s)
        self._state.step_count += 1
        self._state.total += action.add
        return CountObservation(
            word=action.word,
            total=self._state.total,
            seed=self._seed,
            reward=float(action.add),
            done=self._state.total >= 100_000,
            metadata={"steps": self._state.step_count},
        )

    @property
    def state(self) -> CountState:
        return self._state

    def close(self) -> None:
        time.sleep(self._close_s)


app = create_app(
    CountingEnvironment,
    CountAction,
    CountObservation,
    env_name="counting",
    max_concurrent_envs=int(os.environ["PEER_MAX_SESSIONS"]),
)
