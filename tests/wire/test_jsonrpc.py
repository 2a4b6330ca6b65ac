"""JSON-RPC calls, good and bad."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from envhive.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    SERVER_ERROR,
    JsonRpcError,
    JsonRpcRequest,
    encode_error,
    encode_result,
    parse_request,
)


def test_a_call_is_read() -> None:
    document = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}}
    assert parse_request(document) == JsonRpcRequest(method="tools/call", params={"name": "look"}, id=1)


@pytest.mark.parametrize(
    ("document", "code", "request_id"),
    [
        ([], INVALID_REQUEST, None),
        ({}, INVALID_REQUEST, None),
        ({"jsonrpc": "1.0", "id": 4, "method": "x"}, INVALID_REQUEST, 4),
        ({"jsonrpc": "2.0", "id": 4}, INVALID_REQUEST, 4),
        ({"jsonrpc": "2.0", "id": {}, "method": "x"}, INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "id": True, "method": "x"}, INVALID_REQUEST, None),
        ({"jsonrpc": "2.0", "id": "a", "method": "x", "more": 1}, INVALID_REQUEST, "a"),
        ({"jsonrpc": "2.0", "id": "a", "method": "x", "params": [1]}, INVALID_PARAMS, "a"),
    ],
)
def test_a_bad_call_gets_its_code_and_its_id_back(document: Any, code: int, request_id: Any) -> None:
    with pytest.raises(JsonRpcError) as refused:
        parse_request(document)
    reply = json.loads(encode_error(refused.value))
    assert (reply["error"]["code"], reply["id"]) == (code, request_id)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_nothing_but_a_json_rpc_error_comes_of_anything(document: Any) -> None:
    try:
        parse_request(document)
    except JsonRpcError as error:
        assert error.message


def test_a_result_carries_the_id() -> None:
    assert json.loads(encode_result({"a": 1}, "x")) == {"jsonrpc": "2.0", "id": "x", "result": {"a": 1}}


@pytest.mark.parametrize(
    ("text", "seen"),
    [("bad file \udc80, é", "bad file \ufffd, é"), ("two \ud83d\ude00 halves", "two 😀 halves"), ("é", "é")],
)
def test_any_text_can_be_answered_and_strict_readers_read_it(text: str, seen: str) -> None:
    assert from_json(encode_result({"text": text}, 1)) == {"jsonrpc": "2.0", "id": 1, "result": {"text": seen}}
    error = from_json(encode_error(JsonRpcError(SERVER_ERROR, text, request_id=1)))["error"]
    assert error == {"code": SERVER_ERROR, "message": seen, "data": None}


def test_an_id_comes_back_as_it_was() -> None:
    assert json.loads(encode_result({}, "no utf-8: \udc80"))["id"] == "no utf-8: \udc80"


def test_a_result_without_a_json_form_is_an_error() -> None:
    with pytest.raises(JsonRpcError) as caught:
        encode_result({"it": object()}, 7)
    assert (caught.value.code, caught.value.request_id) == (INTERNAL_ERROR, 7)
    assert json.loads(encode_error(JsonRpcError(SERVER_ERROR, "oh", object(), 8)))["id"] == 8


def test_numbers_that_json_lacks_are_null() -> None:
    assert encode_result([float("nan"), float("inf")], 1).endswith(b"[null,null]}")
