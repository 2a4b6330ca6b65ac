import random

from envhive import MCPEnvironment, Observation, State, tool


class Treasure(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.reset()  # agents do not reset

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.place = random.Random(seed).choice([(x, y) for x in range(5) for y in range(5)])
        self.found = False
        return Observation()

    @tool
    def dig(self, x: int, y: int) -> str:
        """Dig at a square, from (0, 0) to (4, 4), and learn how far the treasure is."""
        away = abs(x - self.place[0]) + abs(y - self.place[1])
        self.found = away == 0
        return "found" if self.found else f"{away} steps away"

    def step(self, action, timeout_s=None, **kwargs):
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        if getattr(observation, "error", None) is None:  # a call that failed is no dig
            observation.reward, observation.done = float(self.found), self.found
        return observation

    @property
    def state(self):
        return State()
