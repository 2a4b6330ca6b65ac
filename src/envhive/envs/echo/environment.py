"""The echo environment: the smallest that does something."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from envhive.environment import Environment
from envhive.envs.echo.models import EchoAction, EchoObservation
from envhive.types import State


class EchoEnvironment(Environment[EchoAction, EchoObservation, State]):
    """Says back what it is told; the reward is a tenth of the message's length."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
        self._state = State(episode_id=episode_id or str(uuid.uuid4()))
        return EchoObservation(echoed_message="Echo environment ready!")

    def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:
        self._state.step_count += 1
        length = len(action.message)
        return EchoObservation(echoed_message=action.message, message_length=length, reward=length * 0.1)

    @property
    def state(self) -> State:
        return self._state
