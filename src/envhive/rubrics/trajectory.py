"""Rubrics that judge an episode when it is over, and then know what each step was worth."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from envhive.rubrics.base import Rubric

Trajectory = list[tuple[Any, Any]]
"""The episode's actions, each with its observation."""


class TrajectoryRubric(Rubric):
    """Keeps the episode. Each step scores `intermediate_reward`; the last one scores the whole episode.

    It holds every observation until `reset`, so mind large ones in long episodes.
    """

    def __init__(self, intermediate_reward: float = 0.0) -> None:
        self.intermediate_reward = intermediate_reward
        self._trajectory: Trajectory = []

    @abstractmethod
    def score_trajectory(self, trajectory: Trajectory) -> float:
        """What the finished episode was worth."""

    @abstractmethod
    def compute_step_rewards(self) -> list[float]:
        """What each step so far was worth: who gets the credit."""

    def forward(self, action: Any, observation: Any) -> Any:
        self._trajectory.append((action, observation))
        if getattr(observation, "done", False):
            return self.score_trajectory(self._trajectory)
        return self.intermediate_reward

    @property
    def trajectory(self) -> Trajectory:
        """The episode so far; a copy."""
        return list(self._trajectory)

    def reset(self) -> None:
        self._trajectory = []

    def state_dict(self) -> dict[str, Any]:
        """The settings; not the episode."""
        return {"intermediate_reward": self.intermediate_reward}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.intermediate_reward = state.get("intermediate_reward", self.intermediate_reward)


class ExponentialDiscountingTrajectoryRubric(TrajectoryRubric):
    """Credit that fades with the distance to the end: the last step gets the episode's score, the one before it
    `gamma` times that, and so on.

    Example:
        >>> from types import SimpleNamespace
        >>> class Won(ExponentialDiscountingTrajectoryRubric):
        ...     def score_trajectory(self, trajectory):
        ...         return 1.0
        >>> rubric = Won(gamma=0.5)
        >>> [rubric("move", SimpleNamespace(done=done)) for done in (False, False, True)]
        [0.0, 0.0, 1.0]
        >>> rubric.compute_step_rewards()
        [0.25, 0.5, 1.0]
    """

    def __init__(self, gamma: float = 0.99, intermediate_reward: float = 0.0) -> None:
        super().__init__(intermediate_reward)
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be from 0 to 1, not {gamma}.")
        self.gamma = gamma

    def compute_step_rewards(self) -> list[float]:
        if not self._trajectory:
            return []
        score = self.score_trajectory(self._trajectory)
        return [score * self.gamma**distance for distance in reversed(range(len(self._trajectory)))]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "gamma": self.gamma}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.gamma = state.get("gamma", self.gamma)
