from openenv.core.env_client import EnvClient, StepResult

from .models import MazeAction, MazeObservation, MazeState


class MazeEnv(EnvClient[MazeAction, MazeObservation, MazeState]):
    def _step_payload(self, action):
        return action.model_dump(mode="json")

    def _parse_result(self, payload):
        fields = {**payload["observation"], "reward": payload.get("reward"), "done": payload.get("done", False)}
        return StepResult(
            observation=MazeObservation.model_validate(fields), reward=fields["reward"], done=fields["done"]
        )

    def _parse_state(self, payload):
        return MazeState.model_validate(payload)
