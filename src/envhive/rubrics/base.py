"""`Rubric`: what an action was worth. Rubrics that are attributes of a rubric are its components."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any, Self

Steps = Generator[Any, Any, Any]
"""An evaluation that hands out what may have to be waited for, and gets back what came of it."""


def run_steps(steps: Steps) -> Any:
    """Run an evaluation. Its result, or a coroutine for it as soon as something has to be waited for."""
    answer = None
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            return end.value
        if inspect.isawaitable(asked):
            return _run_on(steps, asked)
        answer = asked


async def _run_on(steps: Steps, asked: Any) -> Any:
    while True:
        answer = await asked if inspect.isawaitable(asked) else asked
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            return end.value


class Rubric(ABC):
    """Scores an action by the observation that came of it. Write `forward`, as a plain method or a coroutine.

    A rubric is called like a function. With a `forward` that is a coroutine, its own or a component's, the call
    gives a coroutine too.

    Example:
        >>> from types import SimpleNamespace
        >>> class Short(Rubric):
        ...     def forward(self, action, observation):
        ...         return 1.0 if len(action) < 5 else 0.0
        >>> class Answer(Rubric):
        ...     def __init__(self):
        ...         self.short = Short()
        ...     def forward(self, action, observation):
        ...         return self.short(action, observation) * observation.reward
        >>> rubric = Answer()
        >>> rubric("yes", SimpleNamespace(reward=0.5))
        0.5
        >>> rubric.scores()
        {'short': 1.0}
    """

    _rubric_children: dict[str, Rubric]
    _forward_hooks: list[Callable[..., Any]]
    _forward_pre_hooks: list[Callable[..., Any]]
    last_score: float | None
    """What the last call came to; None before the first."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here and not in __init__, which a subclass of its own may not call.
        self = super().__new__(cls)
        self.__dict__.update(_rubric_children={}, _forward_hooks=[], _forward_pre_hooks=[], last_score=None)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Rubric):
            self._rubric_children[name] = value
        else:
            self._rubric_children.pop(name, None)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._rubric_children.pop(name, None)
        super().__delattr__(name)

    @abstractmethod
    def forward(self, action: Any, observation: Any) -> Any:
        """The score, most often from 0.0 to 1.0."""

    def __call__(self, action: Any, observation: Any) -> Any:
        return run_steps(self._steps(action, observation))

    def _steps(self, action: Any, observation: Any) -> Steps:
        for hook in self._forward_pre_hooks:
            yield hook(self, action, observation)
        score = yield self.forward(action, observation)
        self.last_score = score
        for hook in self._forward_hooks:
            yield hook(self, action, observation, score)
        return score

    def register_forward_pre_hook(self, hook: Callable[[Rubric, Any, Any], Any]) -> None:
        """Have `hook(rubric, action, observation)` called before each `forward`. It may be a coroutine function."""
        self._forward_pre_hooks.append(hook)

    def register_forward_hook(self, hook: Callable[[Rubric, Any, Any, float], Any]) -> None:
        """Have `hook(rubric, action, observation, score)` called after each `forward`."""
        self._forward_hooks.append(hook)

    # Components.

    def children(self) -> Iterator[Rubric]:
        """The components."""
        yield from self._rubric_children.values()

    def named_children(self) -> Iterator[tuple[str, Rubric]]:
        """The components, with the attributes that they are."""
        yield from self._rubric_children.items()

    def rubrics(self) -> Iterator[Rubric]:
        """The components, and theirs, and so on; each before its own."""
        for _, rubric in self.named_rubrics():
            yield rubric

    def named_rubrics(self, prefix: str = "") -> Iterator[tuple[str, Rubric]]:
        """The same with their paths, such as `code.syntax`."""
        for name, child in self._rubric_children.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, child
            yield from child.named_rubrics(path)

    def get_rubric(self, path: str) -> Rubric:
        """The component at a path; raises `KeyError`."""
        found = self
        for name in path.split("."):
            try:
                found = found._rubric_children[name]
            except KeyError:
                raise KeyError(f"{type(self).__name__} has no component {path!r}: nothing is named {name!r}") from None
        return found

    def scores(self) -> dict[str, float]:
        """The last score of each component that has one, by path."""
        return {path: rubric.last_score for path, rubric in self.named_rubrics() if rubric.last_score is not None}

    def forget_scores(self) -> None:
        """Begin a new evaluation: what is not asked this time has no score, not an old one."""
        self.last_score = None
        for rubric in self.rubrics():
            rubric.last_score = None

    # What lasts.

    def reset(self) -> None:  # noqa: B027  # most rubrics have nothing to forget
        """Begin an episode. Override to forget what belongs to the last one."""

    def state_dict(self) -> dict[str, Any]:
        """What to save with a checkpoint: that of the components, unless overridden."""
        states = {name: child.state_dict() for name, child in self._rubric_children.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        for name, child in self._rubric_children.items():
            if name in state:
                child.load_state_dict(state[name])
