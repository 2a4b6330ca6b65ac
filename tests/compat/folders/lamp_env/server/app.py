import client  # noqa: F401  (as the package does that this folder was made from)
from models import Bulb, LampState, Light, Switch
from openenv_core.env_server import create_app
from openenv_core.env_server.interfaces import Environment


class LampEnvironment(Environment):
    def __init__(self):
        super().__init__()
        self._state = LampState()

    def reset(self) -> Light:
        self._state = LampState(episode_id="lit", step_count=0)
        return Light()

    def step(self, action: Switch) -> Light:
        self._state.on = action.on
        self._state.step_count += 1
        return Light(lumen=Bulb().lumen if action.on else 0, reward=True, done=self._state.step_count > 2)

    @property
    def state(self) -> LampState:
        return self._state


app = create_app(LampEnvironment, Switch, Light, env_name="lamp_env")
