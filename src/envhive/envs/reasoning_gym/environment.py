"""Reasoning Gym: one question an episode, scored by its data set's own scorer."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Self

from envhive.environment import Environment
from envhive.envs.episode import Episode
from envhive.envs.reasoning_gym.models import ReasoningGymAction, ReasoningGymObservation, ReasoningGymState


class ReasoningGymEnvironment(Environment[ReasoningGymAction, ReasoningGymObservation, ReasoningGymState]):
    """A question from one data set of Reasoning Gym, from a mixture of several, or from all of them.

    Args:
        dataset: The name of one, or `all`; `reset` may choose another.
        mixture: Names with their weights, instead of `dataset`: {"chain_sum": 2, "maze": 1}.
        config: How questions are made: the settings of the data set, or {name: settings} for several.

    Example:
        >>> env = ReasoningGymEnvironment("chain_sum")
        >>> question = env.reset(seed=1).question
        >>> env.step(ReasoningGymAction(answer="no idea")).reward
        0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(
        self,
        dataset: str = "chain_sum",
        mixture: dict[str, float] | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        from envhive.envs.reasoning_gym import questions  # loads Reasoning Gym, which the models alone do not need

        self._questions = questions
        self._weights = self._weights_of(dataset) if mixture is None else self._checked(mixture)
        self._config, self._of_one = config or {}, mixture is None and dataset != "all"
        self._random = random.Random()
        self._episode = Episode()
        self._question: Any = None

    @classmethod
    def for_settings(cls, **settings: Any) -> type[Self]:
        """The class itself, once a question was made with these settings."""
        env = cls(**settings)
        env.reset(seed=0)
        env.close()
        return cls

    def _weights_of(self, dataset: str) -> dict[str, float]:
        return dict.fromkeys(self._questions.datasets(), 1.0) if dataset == "all" else self._checked({dataset: 1.0})

    def _checked(self, weights: dict[str, float]) -> dict[str, float]:
        known = self._questions.datasets()
        for name, weight in weights.items():
            if name not in known:
                raise ValueError(f"Reasoning Gym has no data set {name!r}; it has {', '.join(known)}")
            if weight < 0:
                raise ValueError(f"the weight of {name} must not be negative, as {weight} is")
        if not sum(weights.values()):
            raise ValueError("a mixture needs a data set with a weight above 0")
        return weights

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        dataset: str | None = None,
        dataset_name: str | None = None,
        **kwargs: Any,
    ) -> ReasoningGymObservation:
        """Begin an episode, with a question from another data set if one is named, by either keyword."""
        self._episode.end()
        dataset = dataset_name if dataset is None else dataset
        weights = self._weights if dataset is None else self._weights_of(dataset)
        seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._random.seed(seed)
        name = self._random.choices(list(weights), list(weights.values()))[0]
        own = dataset is None and self._of_one
        config = self._config if own else self._config.get(name, {})
        self._question = self._questions.Question(name, seed, **config)
        self._episode.begin(episode_id)
        return ReasoningGymObservation(question=self._question.text, dataset=name)

    def step(
        self, action: ReasoningGymAction, timeout_s: float | None = None, **kwargs: Any
    ) -> ReasoningGymObservation:
        self._episode.require_running()
        score = self._question.score(action.answer)
        self._episode.advance(done=True)
        return ReasoningGymObservation(
            question=self._question.text,
            dataset=self._question.dataset,
            score=score,
            correct_answer=self._question.answer,
            reward=score,
            done=True,
        )

    @property
    def state(self) -> ReasoningGymState:
        return ReasoningGymState(
            episode_id=self._episode.id,
            step_count=self._episode.steps,
            dataset="" if self._question is None else self._question.dataset,
            answered=self._episode.steps > 0,
        )
