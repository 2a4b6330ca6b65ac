from openenv_core.client_types import StepResult
from openenv_core.env_client import EnvClient

from models import LampState, Light, Switch


class LampEnv(EnvClient[Switch, Light, LampState]):
    def _step_payload(self, action: Switch):
        return {"on": action.on}

    def _parse_result(self, payload):
        light = Light(**payload["observation"], reward=payload["reward"], done=payload["done"])
        return StepResult(observation=light, reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload):
        return LampState(**payload)
