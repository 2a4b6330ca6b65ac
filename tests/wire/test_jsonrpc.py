"""JSON-RPC calls, good and bad."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhive.wire.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
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
