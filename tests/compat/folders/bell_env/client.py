from core.client_types import StepResult
from core.env_client import EnvClient

from .models import Heard, Ring, State


class BellEnv(EnvClient[Ring, Heard, State]):
    def _step_payload(self, action):
        return action.model_dump()

    def _parse_result(self, payload):
        return StepResult(observation=Heard(**payload["observation"]), reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload):
        return State(**payload)
