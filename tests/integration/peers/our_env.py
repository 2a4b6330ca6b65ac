"""The environment that the peers' clients are pointed at: it counts, echoes, and fails or dawdles on demand."""

from __future__ import annotations

import time
from typing import Any

from envhive import Action, Environment, Observation, State


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


class CountingEnvironment(Environment[CountAction, CountObservation, CountState]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = CountState()
        self._seed: int | None = None
        self._close_s = 0.0

    # No **kwargs: a keyword that is not dropped on the way here is a TypeError.
    def reset(  # type: ignore[override]
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
