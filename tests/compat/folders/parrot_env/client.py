from typing import Dict

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State

from .models import ParrotAction, ParrotObservation


class ParrotEnv(EnvClient[ParrotAction, ParrotObservation, State]):
    def _step_payload(self, action: ParrotAction) -> Dict:
        return {"phrase": action.phrase, "times": action.times}

    def _parse_result(self, payload: Dict) -> StepResult[ParrotObservation]:
        seen = payload.get("observation", {})
        observation = ParrotObservation(
            heard=seen.get("heard", ""),
            letters=seen.get("letters", 0),
            done=payload.get("done", False),
            reward=payload.get("reward"),
            metadata=payload.get("metadata", seen.get("metadata", {})),
        )
        return StepResult(observation=observation, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: Dict) -> State:
        return State(episode_id=payload.get("episode_id"), step_count=payload.get("step_count", 0))
