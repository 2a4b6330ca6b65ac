"""JSON text to messages and back, for whatever text there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhive import State
from envhive.errors import InvalidJSONError, InvalidMessageError, RequestError, UnknownTypeError
from envhive.wire.codec import (
    decode_object,
    decode_reply,
    decode_request,
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
