from typing import Any, Optional
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

try:
    from ..models import ParrotAction, ParrotObservation
except ImportError:
    from models import ParrotAction, ParrotObservation


class ParrotEnvironment(Environment):
    """A parrot that repeats what it is told."""

    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self):
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> ParrotObservation:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return ParrotObservation(heard=f"hello {seed} {sorted(kwargs)}", done=False, reward=0.0)

    def step(self, action: ParrotAction) -> ParrotObservation:  # type: ignore[override]
        if action.phrase == "fall off":
            raise RuntimeError("the perch broke")
        self._state.step_count += 1
        heard = " ".join([action.phrase] * action.times)
        return ParrotObservation(
            heard=heard,
            letters=len(heard),
            reward=min(len(heard) * 0.1, 1.0),
            metadata={"step": self._state.step_count, "note": action.metadata},
        )

    @property
    def state(self) -> State:
        return self._state
