"""JSON text to messages and back, for whatever text there is."""

from __future__ import annotations

import dataclasses
import json
import math
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel

from envhive import Observation, State, StepResult
from envhive.errors import InvalidJSONError, InvalidMessageError, RequestError, UnknownTypeError
from envhive.wire.codec import (
    decode_object,
    decode_reply,
    decode_request,
    encode_observation,
    encode_request,
    encode_state,
    payload_of,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), values, max_size=5)


class Colour(Enum):
    RED = "red"


def same(one: Any, other: Any) -> bool:
    """Equal, where two NaN are equal too."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(st.text())
def test_any_text_is_a_message_or_a_typed_refusal(text: str) -> None:
    try:
        decode_request(text)
    except RequestError as error:
        assert error.outcome == "invalid"
        assert str(error)


@given(values)
def test_any_json_is_a_message_or_a_typed_refusal(value: Any) -> None:
    try:
        message = decode_request(json.dumps(value))
    except RequestError:
        return
    assert message.type == value["type"]


@given(st.sampled_from(["reset", "step", "mcp"]), objects)
def test_data_arrives_as_pythons_json_sent_it(kind: str, data: dict[str, Any]) -> None:
    message = decode_request(json.dumps({"type": kind, "data": data}))
    assert message.type == kind
    assert same(decode_object(message.data), data)


@given(objects)
def test_what_our_client_sends_our_server_reads(data: dict[str, Any]) -> None:
    data = json.loads(json.dumps(data))
    message = decode_request(encode_request("step", data))
    assert same(decode_object(message.data), data)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", InvalidJSONError),
        ("[" * 50_000, InvalidJSONError),
        ('{"type": "step", "data": ' + "[" * 50_000, InvalidJSONError),
        ("[]", InvalidMessageError),
        ('{"type": "walk"}', UnknownTypeError),
        ('{"type": {"a": 1}}', UnknownTypeError),
        ('{"type": "step"}', InvalidMessageError),
        ('{"type": "close", "data": 1}', InvalidMessageError),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, error: type[RequestError]) -> None:
    with pytest.raises(error):
        decode_request(text)


def test_an_escaped_type_is_the_same_type() -> None:
    assert decode_request('{"type": "st\\u0065p", "data": {}}').type == "step"


def test_the_last_of_two_fields_counts_as_in_pythons_json() -> None:
    message = decode_request('{"type": "reset", "data": {"seed": 1}, "data": {"seed": 2}}')
    assert decode_object(message.data) == {"seed": 2}


# Observations.


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


# State.


def test_state_may_be_a_model_a_dict_or_nothing_yet() -> None:
    own = State(episode_id="e", step_count=2, extra=1)  # type: ignore[call-arg]
    for state, sent in [(own, {"episode_id": "e", "step_count": 2, "extra": 1}), ({"a": 1}, {"a": 1}), (None, {})]:
        assert json.loads(encode_state(state)) == {"type": "state", "data": sent}
        assert json.loads(payload_of(encode_state(state))) == sent


@pytest.mark.parametrize("state", [lambda: None, 3, "text", [1]])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(TypeError, match="state must be"):
        encode_state(state)


# Replies, as the client reads them.


@given(st.text())
def test_any_text_is_a_reply_or_a_typed_refusal(text: str) -> None:
    try:
        kind = decode_reply(text)["type"]
    except InvalidJSONError:
        return
    assert isinstance(kind, str)
