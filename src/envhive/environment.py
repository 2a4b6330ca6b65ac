"""The contract an author implements: a class with `reset`, `step` and `state`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

if TYPE_CHECKING:
    from envhive.rubrics.base import Rubric
from envhive.types import Action, EnvironmentMetadata, Observation, State

ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT", bound=Observation)
StateT = TypeVar("StateT", bound=State)


class Transform(ABC, Generic[ObsT]):
    """Changes an observation on its way out: adds a reward, a metric, a view."""

    @abstractmethod
    def __call__(self, observation: ObsT) -> ObsT: ...


def _only_async(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no {name}(): await {name}_async() instead")

    method.__name__ = name
    return method


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """One world with one agent in it. The server makes an instance for each session.

    Where the code runs follows from how it is written:

    * plain `def` methods run on a thread of the session's own, the same one for the constructor,
      `reset`, `step`, `state` and `close`, so blocking calls and thread-bound libraries are fine;
    * `async def reset` and `step` (or the forms `reset_async` and `step_async`) run on the event loop;
    * `BLOCKING = False` promises that no method ever waits, and runs them all on the event loop;
    * `ISOLATION = "process"` has each instance in a process of its own, whose crash costs that session alone.

    Example:
        >>> from envhive import Action, Environment, Observation, State
        >>> class Guess(Action):
        ...     number: int
        >>> class Hint(Observation):
        ...     text: str = ""
        >>> class GuessingGame(Environment[Guess, Hint, State]):
        ...     SUPPORTS_CONCURRENT_SESSIONS = True
        ...     def reset(self, seed=None, episode_id=None, **kwargs):
        ...         self._state = State(episode_id=episode_id)
        ...         return Hint(text="A number from 1 to 10?")
        ...     def step(self, action, timeout_s=None, **kwargs):
        ...         self._state.step_count += 1
        ...         won = action.number == 7
        ...         return Hint(text="yes" if won else "no", reward=float(won), done=won)
        ...     @property
        ...     def state(self):
        ...         return self._state
        >>> game = GuessingGame()
        >>> game.reset().text
        'A number from 1 to 10?'
        >>> game.step(Guess(number=7)).reward
        1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    """Whether instances share no state, so that several sessions may run at once."""

    REQUIRES_SINGLE_THREAD_EXECUTOR: ClassVar[bool] = False
    """Whether all instances must share one thread, for libraries with global, thread-bound state."""

    BLOCKING: ClassVar[bool] = True
    """`False` promises that no method ever waits; all of them then run on the event loop."""

    transform: Transform[ObsT] | None = None
    rubric: Rubric | None = None
    """What gives the rewards, where `step` asks it: see `_apply_rubric`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class that has the async form of a method need not write the plain one.
        for name in ("reset", "step"):
            if f"{name}_async" in cls.__dict__ and getattr(getattr(cls, name), "__isabstractmethod__", False):
                setattr(cls, name, _only_async(name))

    def __init__(self, transform: Transform[ObsT] | None = None, rubric: Rubric | None = None) -> None:
        self.transform = transform
        self.rubric = rubric

    @classmethod
    def for_settings(cls, **settings: Any) -> type[Self]:
        """The class to serve when the constructor is to get these keywords (`envhive serve NAME --set NAME=VALUE`).

        Override it to refuse bad ones before the first session comes, or to derive a class whose models fit them.
        """
        return cls

    @abstractmethod
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        """Begin an episode and return its first observation."""

    @abstractmethod
    def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Do `action` and return what came of it."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> ObsT:
        """Override instead of `reset` to run on the event loop."""
        return self.reset(seed=seed, episode_id=episode_id, **kwargs)  # type: ignore[no-any-return]

    async def step_async(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> ObsT:
        """Override instead of `step` to run on the event loop."""
        return self.step(action, timeout_s=timeout_s, **kwargs)  # type: ignore[no-any-return]

    @property
    @abstractmethod
    def state(self) -> StateT:
        """Where the environment stands now."""

    def get_metadata(self) -> EnvironmentMetadata:
        """What to show people about this environment."""
        name = type(self).__name__
        doc = (type(self).__doc__ or "").strip().splitlines()
        return EnvironmentMetadata(name=name, description=doc[0] if doc else f"{name} environment", version="1.0.0")

    def render_web(self, observation: dict[str, Any]) -> str | None:
        """HTML that shows an observation to people; None where there is none."""
        return None

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Actions to offer to people who see an observation: what to call each, and its fields."""
        return []

    def close(self) -> None:
        """Give back what the environment holds. The server calls it exactly once."""

    def _apply_transform(self, observation: ObsT) -> ObsT:
        return observation if self.transform is None else self.transform(observation)

    # Rewards from a rubric.

    def _apply_rubric(self, action: ActT, observation: ObsT) -> float:
        """The rubric's score, for `step` to use as the reward; 0.0 without a rubric.

        The scores of its components go into the observation's metadata, as `rubric`.
        """
        score = self._ask_rubric(action, observation)
        if inspect.isawaitable(score):
            name = type(self.rubric).__name__
            raise TypeError(f"{name} has to be waited for: use `await self._apply_rubric_async(action, observation)`.")
        self._note_scores(observation)
        return score  # type: ignore[no-any-return]

    async def _apply_rubric_async(self, action: ActT, observation: ObsT) -> float:
        """The same for `async def step`, and for rubrics that have to be waited for."""
        score = self._ask_rubric(action, observation)
        if inspect.isawaitable(score):
            score = await score
        self._note_scores(observation)
        return score  # type: ignore[no-any-return]

    def _ask_rubric(self, action: ActT, observation: ObsT) -> Any:
        if self.rubric is None:
            return 0.0
        if hasattr(self.rubric, "forget_scores"):
            self.rubric.forget_scores()
        return self.rubric(action, observation)

    def _note_scores(self, observation: ObsT) -> None:
        metadata = getattr(observation, "metadata", None)
        scores: dict[str, float] = getattr(self.rubric, "scores", dict)()
        if scores and isinstance(metadata, dict):
            metadata["rubric"] = scores

    def _reset_rubric(self) -> None:
        """Tell the rubric that an episode begins; for `reset`."""
        if self.rubric is not None:
            self.rubric.reset()

    async def _reset_rubric_async(self) -> None:
        """The same for `async def reset`; a rubric's own `reset_async` is preferred."""
        if self.rubric is None:
            return
        done = getattr(self.rubric, "reset_async", self.rubric.reset)()
        if inspect.isawaitable(done):
            await done
