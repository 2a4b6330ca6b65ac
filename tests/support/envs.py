"""Environments for tests. Each instance writes down what happens to it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any, ClassVar

from pydantic import Field, field_validator

from envhive import Action, Environment, Observation, State


class Move(Action):
    by: int = 1
    do: str = ""
    seconds: float = 0.0

    @field_validator("by")
    @classmethod
    def _not_thirteen(cls, value: int) -> int:
        if value == 13:
            raise ValueError("thirteen is unlucky")
        return value


class Seen(Observation):
    total: int = 0
    thread: int = 0
    got: dict[str, Any] = Field(default_factory=dict)


class Panic(BaseException):
    """What some extension modules raise when they fail badly."""


class Journal:
    """What happened to the instances of one environment class, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, int]] = []
        self._made = 0

    def admit(self) -> int:
        self._made += 1
        return self._made

    def note(self, instance: int, event: str) -> None:
        self.entries.append((instance, event, threading.get_ident()))

    def events(self, instance: int = 1) -> list[str]:
        return [event for number, event, _ in self.entries if number == instance]

    def count(self, event: str) -> int:
        return sum(1 for _, seen, _ in self.entries if seen == event)

    def threads(self, instance: int = 1) -> set[int]:
        return {thread for number, _, thread in self.entries if number == instance}


class Counting(Environment[Move, Seen, State]):
    """Adds up; does other things on demand."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True
    journal: ClassVar[Journal]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.journal = Journal()

    def __init__(self) -> None:
        super().__init__()
        self._number = self.journal.admit()
        self.total = 0
        self._state: Any = None
        self.released = threading.Event()
        self._note("make")

    def _note(self, event: str) -> None:
        self.journal.note(self._number, event)

    def reset(self, seed: int | None = None, episode_id: str | None = None, level: str = "", **kwargs: Any) -> Seen:
        self._note("reset")
        if level == "broken":
            raise RuntimeError("this level is broken")
        self.total = seed or 0
        self._state = State(episode_id=episode_id)
        return Seen(total=self.total, got={"level": level, **kwargs})

    def step(self, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self._note("step")
        if action.do == "raise":
            raise RuntimeError("the floor gave way")
        if action.do == "exit":
            sys.exit(3)
        if action.do == "surrogate":
            raise ValueError("bad file \udc80")
        if action.do == "panic":
            raise Panic("not an Exception at all")
        if action.do == "miss":
            raise KeyError("sword")
        if action.do == "nan":
            return Seen(total=self.total, reward=float("nan"))
        if action.do == "unserialisable":
            return Seen(total=self.total, got={"it": object()})
        if action.do == "metadata":
            return Seen(total=self.total, metadata={"note": "hello"}, done=True, reward=True)
        time.sleep(action.seconds)
        self.total += action.by
        self._state.step_count += 1
        return Seen(total=self.total, reward=float(action.by), thread=threading.get_ident())

    @property
    def state(self) -> Any:
        self._note("state")
        return self._state

    def close(self) -> None:
        self._note("close")


def counting(**attributes: Any) -> type[Counting]:
    """A fresh `Counting` class with a journal of its own."""
    return type("CountingEnvironment", (Counting,), attributes)


def async_counting(**attributes: Any) -> type[Counting]:
    """The same with coroutines."""

    async def reset(
        self: Counting, seed: int | None = None, episode_id: str | None = None, level: str = "", **kwargs: Any
    ) -> Seen:
        await asyncio.sleep(0)
        return Counting.reset(self, seed, episode_id, level, **kwargs)

    async def step(self: Counting, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        await asyncio.sleep(action.seconds)
        return Counting.step(self, action.model_copy(update={"seconds": 0.0}), timeout_s, **kwargs)

    return type("AsyncCountingEnvironment", (Counting,), {"reset": reset, "step": step, **attributes})


class Hanging:
    """An environment whose `do="hang"` steps hang on their thread until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.hanging = threading.Semaphore(0)

        def step(env: Counting, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
            if action.do == "hang":
                self.hanging.release()
                assert self.released.wait(60)
            return Counting.step(env, action, timeout_s, **kwargs)

        self.env = counting(step=step)
