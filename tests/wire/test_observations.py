"""Observations to JSON: what pydantic would write, whichever way it is written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_serializer, model_serializer
from pydantic_core import PydanticSerializationError

from envhive import Observation, StepResult
from envhive.wire.codec import payload_of
from envhive.wire.observations import encode_observation
from tests.wire.test_codec import objects


class Colour(Enum):
    RED = "red"


class Board(Observation):
    cells: list[int] = Field(default_factory=list)


def payload(observation: Any) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(encode_observation(observation))
    assert reply["type"] == "observation"
    return reply["data"]


@given(st.lists(st.integers()), st.none() | st.booleans() | st.integers() | st.floats(), st.booleans(), objects)
def test_reward_and_done_stand_beside_the_fields(
    cells: list[int], reward: float | None, done: bool, metadata: dict[str, Any]
) -> None:
    sent = payload(Board(cells=cells, reward=reward, done=done, metadata=metadata))
    assert sent["observation"].keys() == {"cells", "metadata"}
    assert sent["observation"]["cells"] == cells
    assert sent["done"] is done
    assert ("metadata" in sent) is bool(metadata)
    finite = not isinstance(reward, float) or math.isfinite(reward)
    assert sent["reward"] == (reward if finite else None)


def test_models_that_are_not_ours_are_observations_too() -> None:
    class Plain(BaseModel):
        text: str

    @dataclasses.dataclass
    class Data:
        text: str
        reward: float = 2.0

    class Own(Board):
        def model_dump(self, **kwargs: Any) -> dict[str, Any]:
            return {**super().model_dump(**kwargs), "cells": "hidden"}

    assert payload(Plain(text="a")) == {"observation": {"text": "a"}, "reward": None, "done": False}
    assert payload(Data("a")) == {"observation": {"text": "a"}, "reward": 2.0, "done": False}
    assert payload({"text": "a", "done": True}) == {"observation": {"text": "a"}, "reward": None, "done": True}
    assert payload(Own(reward=1.0))["observation"] == {"metadata": {}, "cells": "hidden"}


@pytest.mark.parametrize("reward", [math.nan, -math.inf])
def test_a_reward_that_json_has_no_word_for_is_told_once(reward: float, caplog: pytest.LogCaptureFixture) -> None:
    class Scored(Observation):
        pass

    @dataclasses.dataclass
    class Plain:
        reward: float

    for observation in (Scored(reward=reward), Scored(reward=reward), Plain(reward), Scored(reward=None)):
        assert json.loads(payload_of(encode_observation(observation)))["reward"] is None
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"The reward of a Scored is {reward}",
        f"The reward of a Plain is {reward}",
    ]


class Loose(Observation):
    reward: Any = None
    done: Any = False


@pytest.mark.parametrize("reward", ["good", "0.5", [1, 2], {"a": 1}, Colour.RED])
def test_a_reward_that_is_no_number_is_refused(reward: Any) -> None:
    for observation in (Loose(reward=reward), {"reward": reward}):
        with pytest.raises(TypeError, match="a reward must be a number or None"):
            encode_observation(observation)


@pytest.mark.parametrize(
    ("reward", "sent"), [(np.float32(0.5), 0.5), (np.int64(3), 3), (Decimal("0.25"), 0.25), (np.bool_(True), True)]
)
def test_numbers_of_all_kinds_are_rewards(reward: Any, sent: float) -> None:
    assert json.loads(payload_of(encode_observation(Loose(reward=reward))))["reward"] == sent


@pytest.mark.parametrize("done", ["no", [], {}])
def test_what_is_neither_done_nor_not_is_refused(done: Any) -> None:
    for observation in (Loose(done=done), {"done": done}):
        with pytest.raises(TypeError, match="done must be True or False"):
            encode_observation(observation)


@pytest.mark.parametrize(("done", "sent"), [(np.bool_(True), True), (np.bool_(False), False), (1, True), (None, False)])
def test_truths_of_all_kinds_are_done(done: Any, sent: bool) -> None:
    assert json.loads(payload_of(encode_observation(Loose(done=done))))["done"] is sent


def test_arrays_become_lists() -> None:
    class Array:
        def tolist(self) -> list[int]:
            return [1, 2]

    assert payload(Board(metadata={"pixels": Array()}))["metadata"] == {"pixels": [1, 2]}


def test_long_doubles_become_numbers() -> None:
    values = np.array([0.5, 2], dtype=np.longdouble)
    assert payload(Board(metadata={"alone": values[0], "all": values}))["metadata"] == {"alone": 0.5, "all": [0.5, 2]}


@pytest.mark.parametrize("value", [7, "text", [1], RootModel[int](3), StepResult(Board(), 1.0, True)])
def test_what_is_no_observation_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode_observation(value)


# What msgspec writes is what pydantic would have written.

PLAIN: dict[str, Any] = {
    "a number": float,
    "a text": str,
    "a count": int,
    "a flag": bool,
    "perhaps": str | None,
    "a choice": Literal["up", 3, True] | None,
    "either": int | str,
}
KINDS: dict[str, Any] = {
    **PLAIN,
    "a list": list[int],
    "lists in lists": list[list[float]],
    "texts by name": dict[str, str],
    "one or many": str | list[str],
    "lists by name": dict[str, list[float | None]],
}


def with_a(kind: Any, **more: Any) -> Any:
    """A class of observations with a value of that kind."""
    namespace = {"__annotations__": {"value": kind, "text": str}, "__module__": __name__, "text": "", **more}
    return type("Made", (Observation,), namespace)


CLASSES = {name: with_a(kind) for name, kind in KINDS.items()}


def by_pydantic(observation: Observation) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(observation.model_dump_json())
    beside = {"reward": fields.pop("reward"), "done": fields.pop("done")}
    return {"observation": fields, **beside, **({"metadata": fields["metadata"]} if fields["metadata"] else {})}


@given(
    st.sampled_from(list(KINDS)).flatmap(lambda name: st.tuples(st.just(name), st.from_type(KINDS[name]))),
    st.text(),
    st.none() | st.booleans() | st.integers() | st.floats(),
    st.booleans(),
    st.just({}) | objects,
)
def test_whatever_fields_hold_is_written_as_by_pydantic(
    field: tuple[str, Any], text: str, reward: float | None, done: bool, metadata: dict[str, Any]
) -> None:
    name, value = field
    observation = CLASSES[name](value=value, text=text, reward=reward, done=done, metadata=metadata)
    assert payload(observation) == by_pydantic(observation)


class Refusing:
    def to_json(self, *args: Any, **options: Any) -> bytes:
        raise AssertionError("pydantic was asked")


@pytest.mark.parametrize("name", PLAIN)
def test_plain_fields_are_not_left_to_pydantic_which_takes_longer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = with_a(PLAIN[name])
    monkeypatch.setattr(cls, "__pydantic_serializer__", Refusing())
    observation = cls.model_construct(value=None, reward=0.5, done=True)
    assert payload(observation) == {
        "observation": {"metadata": {}, "value": None, "text": ""},
        "reward": 0.5,
        "done": True,
    }
    observation.metadata["seen"] = 1
    with pytest.raises(AssertionError, match="pydantic was asked"):
        payload(observation)


def doubled(self: Any, value: Any) -> Any:
    return value * 2


def wrapped(self: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    return {**handler(self), "wrapped": True}


class Unchecked(Observation):
    model_config = ConfigDict(validate_assignment=False)
    value: str = ""


class Open(Observation):
    model_config = ConfigDict(extra="allow")
    value: int = 0


class Hexed(Observation):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float = 0.0


class Remembering(Observation):
    value: int = 0

    @cached_property
    def square(self) -> int:
        return self.value**2


def assigned(observation: Observation, **values: Any) -> Observation:
    for name, value in values.items():
        setattr(observation, name, value)
    return observation


def having_computed(observation: Remembering) -> Observation:
    assert observation.square
    return observation


@pytest.mark.parametrize(
    "observation",
    [
        with_a(int, twice=field_serializer("value")(doubled))(value=4),
        with_a(int, all=model_serializer(mode="wrap")(wrapped))(value=4),
        with_a(int, more=computed_field(return_type=int)(property(lambda self: self.value + 1)))(value=4),
        with_a(int, value=Field(serialization_alias="worth"))(value=4),
        with_a(int, value=Field(exclude=True))(value=4),
        with_a(bytes)(value=b"text"),
        with_a(Decimal)(value=Decimal("0.10")),
        with_a(Colour)(value=Colour.RED),
        with_a(set[int])(value={3}),
        with_a(Any)(value=b"text"),
        with_a(list)(value=[b"text"]),
        with_a(dict[int, str])(value={1: "a"}),
        with_a(Board)(value=Board(cells=[1], reward=1.0)),
        with_a(float).model_construct(value=np.float64(0.5)),
        with_a(int).model_construct(value=2**70),
        with_a(str).model_construct(value=Board(cells=[1])),
        assigned(Unchecked(), value=b"text"),
        assigned(Open(), more="text"),
        Hexed(value=math.inf),
        having_computed(Remembering(value=3)),
    ],
    ids=lambda observation: type(observation).__name__,
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_is_not_plain_is_left_to_pydantic(observation: Observation) -> None:
    for _ in range(2):  # what turns out not to be plain is known from then on
        assert payload(observation) == by_pydantic(observation)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_number_is_written_in_one_way_whatever_else_there_is() -> None:
    for kind, default in [(float, 0), (float | None, 1), (int | float, 0.0), (bool, 1), (str, None)]:
        cls = with_a(kind, value=default)
        plain, other = payload(cls()), payload(cls(metadata={"seen": 1}))
        assert repr(plain["observation"]["value"]) == repr(other["observation"]["value"])


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_bytes_that_nobody_checked_are_a_text() -> None:
    observation = with_a(list[str])(value=["one"])
    observation.value.append(b"two")
    assert payload(observation)["observation"]["value"] == ["one", "two"]


def test_a_text_that_is_none_is_refused_and_the_next_is_written() -> None:
    cls = with_a(str)
    with pytest.raises(PydanticSerializationError, match="surrogates"):
        encode_observation(cls.model_construct(value="\ud800", reward=None, done=False))
    assert payload(cls(value="text"))["observation"]["value"] == "text"


def test_an_observation_is_left_as_it_is() -> None:
    observation = CLASSES["a list"](value=[1, 2], reward=1.0, done=True)
    before = observation.model_dump()
    assert payload(observation) == payload(observation)
    assert observation.model_dump() == before
