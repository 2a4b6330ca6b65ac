from openenv.core.env_server import Environment
from openenv.core.env_server import types as t


class Command(t.Action):
    lift: int = 0


class Report(t.Observation):
    name: str
    arms: int
    load: int = 0


class RobotEnvironment(Environment):
    def __init__(self, name, *, arms):
        # No super().__init__(): this one has always been so.
        self.name = name
        self.arms = arms
        self.load = 0

    def reset(self):
        self.load = 0
        return self._report(None)

    def step(self, action):
        if action.lift > self.arms * 10:
            raise ValueError(f"{self.name} cannot lift {action.lift}")
        self.load += action.lift
        return self._report(action.lift)

    def _report(self, reward):
        return Report(name=self.name, arms=self.arms, load=self.load, reward=reward)

    @property
    def state(self):
        return t.State(step_count=0, load=self.load)
