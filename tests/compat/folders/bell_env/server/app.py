from core.env_server.http_server import create_app
from core.env_server.interfaces import Environment

from ..client import BellEnv  # noqa: F401
from ..models import Heard, Ring, State


class BellEnvironment(Environment):
    def reset(self, seed=None, episode_id=None, **kwargs):
        self.rung = 0
        return Heard(sound="silence")

    def step(self, action: Ring, timeout_s=None, **kwargs):
        self.rung += action.times
        return Heard(sound=" ".join(["ding"] * action.times), reward=self.rung, done=self.rung >= 4)

    @property
    def state(self):
        return State(step_count=self.rung)


app = create_app(BellEnvironment, Ring, Heard, env_name="bell_env")
