"""OpenEnv's further interfaces, and its two transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

from envhive.environment import Transform
from envhive.types import Observation


class Message(TypedDict):
    """One turn of a conversation, as chat templates have it."""

    role: str
    content: str


class ModelTokenizer(Protocol):
    """A tokenizer with a chat template."""

    def apply_chat_template(
        self, conversation: list[Message], tokenize: bool = True, return_tensors: str | None = None, **kwargs: Any
    ) -> Any: ...

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str: ...


class TaskProvider(Protocol):
    """An environment with tasks to choose from. Nothing needs to derive from this: having the methods is enough."""

    def list_splits(self) -> list[Any]: ...

    def list_tasks(self, split: str) -> list[Any]: ...

    def num_tasks(self, split: str) -> int: ...

    def get_task(self, split: str, index: int) -> Any: ...

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]: ...


class CompositeTransform(Transform[Observation]):
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Transform[Observation]]) -> None:
        self.transforms = transforms

    def __call__(self, observation: Observation) -> Observation:
        for transform in self.transforms:
            observation = transform(observation)
        return observation


class NullTransform(Transform[Observation]):
    """Changes nothing."""

    def __call__(self, observation: Observation) -> Observation:
        return observation
