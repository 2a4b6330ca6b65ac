"""Rubrics made of rubrics: one after the other, above a threshold, weighted, or to choose from."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from envhive.rubrics.base import Rubric, Steps, run_steps


class Sequential(Rubric):
    """Asks one rubric after the other, and stops with 0.0 at the first that gives 0. The last one's score counts."""

    def __init__(self, *rubrics: Rubric) -> None:
        self._rubric_list = _adopt(self, rubrics)

    def forward(self, action: Any, observation: Any) -> Any:
        return run_steps(self._ask(action, observation))

    def _ask(self, action: Any, observation: Any) -> Steps:
        score = 1.0
        for rubric in self._rubric_list:
            score = yield rubric(action, observation)
            if score == 0.0:
                return 0.0
        return score


class Gate(Rubric):
    """A rubric's score if it reaches the threshold, else 0.0."""

    def __init__(self, rubric: Rubric, threshold: float = 1.0) -> None:
        self.rubric = rubric
        self.threshold = threshold

    def forward(self, action: Any, observation: Any) -> Any:
        return run_steps(self._ask(action, observation))

    def _ask(self, action: Any, observation: Any) -> Steps:
        score = yield self.rubric(action, observation)
        return score if score >= self.threshold else 0.0


class WeightedSum(Rubric):
    """The sum of scores, each times its weight. Weights add up to 1. Coroutines run at the same time."""

    def __init__(self, rubrics: Sequence[Rubric], weights: Sequence[float]) -> None:
        if len(rubrics) != len(weights):
            raise ValueError(f"There are {len(rubrics)} rubrics and {len(weights)} weights: each needs one.")
        if not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
            raise ValueError(f"The weights must add up to 1.0, not {sum(weights)}.")
        self._rubric_list = _adopt(self, rubrics)
        self._weights = list(weights)

    @property
    def weights(self) -> list[float]:
        return list(self._weights)

    def forward(self, action: Any, observation: Any) -> Any:
        return run_steps(self._ask(action, observation))

    def _ask(self, action: Any, observation: Any) -> Steps:
        scores = [rubric(action, observation) for rubric in self._rubric_list]
        if any(inspect.isawaitable(score) for score in scores):
            scores = yield _all_of(scores)
        return sum((score * weight for score, weight in zip(scores, self._weights, strict=True)), 0.0)


async def _all_of(scores: list[Any]) -> list[Any]:
    """Wait for those that have to be waited for, all at once."""
    waiting = [index for index, score in enumerate(scores) if inspect.isawaitable(score)]
    came = await asyncio.gather(*(scores[index] for index in waiting))
    return [dict(zip(waiting, came, strict=True)).get(index, score) for index, score in enumerate(scores)]


class _Collection(Rubric):
    """Holds rubrics for the one that it is part of, which asks those that it wants."""

    def forward(self, action: Any, observation: Any) -> float:
        raise NotImplementedError(f"A {type(self).__name__} has no score: the rubric that holds it asks its members.")


class RubricList(_Collection):
    """Rubrics by number."""

    def __init__(self, rubrics: Iterable[Rubric] | None = None) -> None:
        self._rubrics: list[Rubric] = []
        self.extend(rubrics or ())

    def append(self, rubric: Rubric) -> None:
        setattr(self, f"rubric_{len(self._rubrics)}", rubric)
        self._rubrics.append(rubric)

    def extend(self, rubrics: Iterable[Rubric]) -> None:
        for rubric in rubrics:
            self.append(rubric)

    def __len__(self) -> int:
        return len(self._rubrics)

    def __getitem__(self, index: int) -> Rubric:
        return self._rubrics[index]

    def __iter__(self) -> Iterator[Rubric]:
        return iter(self._rubrics)


class RubricDict(_Collection):
    """Rubrics by name."""

    def __init__(self, rubrics: Mapping[str, Rubric] | None = None) -> None:
        self._rubric_dict: dict[str, Rubric] = {}
        self.update(rubrics or {})

    def update(self, rubrics: Mapping[str, Rubric]) -> None:
        for name, rubric in rubrics.items():
            self[name] = rubric

    def __setitem__(self, name: str, rubric: Rubric) -> None:
        # Not as an attribute: a member may be called "update", or "keys".
        self._rubric_children[name] = rubric
        self._rubric_dict[name] = rubric

    def __getattr__(self, name: str) -> Rubric:
        try:
            return self.__dict__["_rubric_dict"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no member {name!r}") from None

    def __getitem__(self, name: str) -> Rubric:
        return self._rubric_dict[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rubric_dict

    def __len__(self) -> int:
        return len(self._rubric_dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rubric_dict)

    def keys(self) -> Iterator[str]:
        return iter(self._rubric_dict.keys())

    def values(self) -> Iterator[Rubric]:
        return iter(self._rubric_dict.values())

    def items(self) -> Iterator[tuple[str, Rubric]]:
        return iter(self._rubric_dict.items())


def _adopt(parent: Rubric, rubrics: Iterable[Rubric]) -> list[Rubric]:
    adopted = list(rubrics)
    for number, rubric in enumerate(adopted):
        setattr(parent, f"rubric_{number}", rubric)
    return adopted
