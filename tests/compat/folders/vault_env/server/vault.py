from typing import Any

from openenv.core.env_server.interfaces import Environment, Transform
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State


class Dial(Action):
    numbers: tuple[int, int, int]


class VaultView(Observation):
    open: bool = False
    left: int


class Penalty(Transform):
    def __call__(self, observation: VaultView) -> VaultView:
        observation.reward = 1.0 if observation.open else -0.5 * (2 - observation.left)
        return observation


class Vault(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, combination: tuple[int, ...], tries: int):
        super().__init__(transform=Penalty())
        self.combination = combination
        self.tries = self.left = tries
        self._state = None

    def reset(self, seed=None, episode_id=None, **kwargs: Any) -> VaultView:
        self.left = self.tries
        self._state = State(episode_id=episode_id, left=self.left)
        return VaultView(left=self.left)

    def step(self, action: Dial, timeout_s=None, **kwargs: Any) -> VaultView:
        self.left -= 1
        self._state.step_count += 1
        self._state.left = self.left
        opened = action.numbers == self.combination
        return self._apply_transform(VaultView(open=opened, left=self.left, done=opened or not self.left))

    @property
    def state(self):
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="vault", description="Three numbers", version="2.0", author="A. Burglar")
