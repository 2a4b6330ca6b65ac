import random

from openenv.core.env_server import Environment

from ..models import Direction, MazeAction, MazeObservation, MazeState


class MazeEnvironment(Environment[MazeAction, MazeObservation, MazeState]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, length: int = 4):
        super().__init__()
        self.length = length
        self._state = MazeState()

    def reset(self, seed=None, length: int = 4) -> MazeObservation:  # no episode_id: it must be left out
        self.length = length
        self._random = random.Random(seed)
        self._state = MazeState(visited=[0])
        return self._look()

    def step(self, action: MazeAction, timeout_s=None, **kwargs) -> MazeObservation:
        way = action.steps if action.direction is Direction.RIGHT else -action.steps
        self._state.position = max(0, min(self.length, self._state.position + way))
        self._state.visited.append(self._state.position)
        self._state.step_count += 1
        return self._look()

    def _look(self) -> MazeObservation:
        out = self._state.position == self.length
        return MazeObservation(
            position=self._state.position,
            walls=[self._random.randint(0, 9) for _ in range(2)],
            kind="exit" if out else "corridor",
            reward=1 if out else -0.25,
            done=out,
        )

    @property
    def state(self) -> MazeState:
        return self._state
