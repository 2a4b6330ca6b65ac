"""Rewards for conversations. Each adds to the reward of the last message, so they can be put one after another."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envhive.environment import Transform
from envhive.envs.chat.models import ChatObservation


class Chain(Transform[ChatObservation]):
    """Several transforms, one after another."""

    def __init__(self, transforms: Sequence[Transform[ChatObservation]]) -> None:
        self._transforms = tuple(transforms)

    def __call__(self, observation: ChatObservation) -> ChatObservation:
        for transform in self._transforms:
            observation = transform(observation)
        return observation


class _Judge(Transform[ChatObservation]):
    """Adds a number for what the assistant said last; leaves all else alone."""

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight

    def __call__(self, observation: ChatObservation) -> ChatObservation:
        last = observation.messages[-1] if observation.messages else None
        if last is None or last.role != "assistant":
            return observation
        observation.reward = float(observation.reward or 0.0) + self._weight * self.score(last.content)
        return observation

    def score(self, text: str) -> float:
        raise NotImplementedError


class LengthReward(_Judge):
    """1 for a message of at most `most` characters, less the more it exceeds that."""

    def __init__(self, most: int = 400, weight: float = 1.0) -> None:
        super().__init__(weight)
        if most < 1:
            raise ValueError(f"most must be 1 or more, not {most}")
        self._most = most

    def score(self, text: str) -> float:
        return min(1.0, self._most / max(1, len(text)))


class PatternReward(_Judge):
    """1 for a message in which a regular expression is found."""

    def __init__(self, pattern: str, weight: float = 1.0) -> None:
        super().__init__(weight)
        self._pattern = re.compile(pattern)

    def score(self, text: str) -> float:
        return float(self._pattern.search(text) is not None)
