"""Making questions so that a seed means the same in every session and every process.

Most data sets of Reasoning Gym draw from a generator of their own. Some draw from the global ones, or from sets of
texts, whose order is another in each process. `question` and `score` see to those.
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any, Final

from envhive.envs.ordering import SortedSet, sort_sets
from envhive.envs.randomness import Generators, draw_from_sessions, drawing_from

_COMPOSITE: Final = "composite"
"""A mixture, which needs to be told of what: here, the environment mixes."""
_LARGEST_SEED: Final = 2**32
_preparing: Final = threading.Lock()


def datasets() -> list[str]:
    """The names of all data sets."""
    _prepare()
    from reasoning_gym.factory import DATASETS

    return sorted(name for name in DATASETS if name != _COMPOSITE)


class Question:
    """One question and its scorer.

    Example:
        >>> question = Question("chain_sum", seed=1)
        >>> question.score(question.answer)
        1.0
    """

    def __init__(self, dataset: str, seed: int, **config: Any) -> None:
        from reasoning_gym import create_dataset

        if dataset not in datasets():
            raise ValueError(f"Reasoning Gym has no data set {dataset!r}; it has {', '.join(datasets())}")
        self.dataset = dataset
        self._generators = Generators(seed)
        try:
            with drawing_from(self._generators):
                # Seeds that are negative or huge are for Python's generator alone; NumPy's takes 32 bits.
                self._made = create_dataset(dataset, seed=seed % _LARGEST_SEED, **{"size": 1, **config})
                if isinstance(getattr(self._made, "letters", None), set):
                    self._made.letters = SortedSet(self._made.letters)
                self._entry = self._made[0]
        except (AssertionError, TypeError) as error:
            raise ValueError(f"{dataset} cannot be made with {config}: {error}") from error

    @property
    def text(self) -> str:
        return str(self._entry["question"])

    @property
    def answer(self) -> str | None:
        """An answer that is right, if one is known."""
        answer = self._entry["answer"]
        return None if answer is None else str(answer)

    def score(self, answer: str) -> float:
        with drawing_from(self._generators):
            try:
                return float(self._made.score_answer(answer, self._entry))
            except ValueError:  # of prime_factorization, say; where the others cannot read an answer, it is wrong
                return 0.0


def _prepare() -> None:
    with _preparing:
        _mend()


@functools.cache
def _mend() -> None:
    importlib.import_module("reasoning_gym.induction.list_functions.generators")  # else loaded with its first question
    draw_from_sessions("reasoning_gym")
    sort_sets(importlib.import_module("reasoning_gym.algorithmic.word_ladder"))
    sort_sets(importlib.import_module("reasoning_gym.games.knight_swap"))
    polynomials = importlib.import_module("reasoning_gym.algebra.polynomial_multiplication")
    itermonomials = polynomials.itermonomials
    vars(polynomials)["itermonomials"] = lambda *limits: sorted(itermonomials(*limits), key=str)
