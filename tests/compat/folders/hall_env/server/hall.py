from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Walk(Action):
    paces: int


class View(Observation):
    door: int


class HallEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    DOORS = ["oak", "iron", "glass"]

    def __init__(self):
        super().__init__()
        self._state = State(step_count=0)
        self.door = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id, step_count=0)
        self.door = (seed or 0) % len(self.DOORS)
        return View(door=self.door)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        self.door = (self.door + action.paces) % len(self.DOORS)
        return View(door=self.door, reward=float(self.door), done=self.door == 2)

    @property
    def state(self):
        return self._state
