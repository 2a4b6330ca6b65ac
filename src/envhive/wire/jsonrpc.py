"""JSON-RPC 2.0, as far as the Model Context Protocol needs it."""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec import Struct
from pydantic_core import PydanticSerializationError, to_json

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000

_FIELDS: Final = frozenset({"jsonrpc", "method", "params", "id"})

_HAS_NO_JSON: Final = (PydanticSerializationError, ValueError, TypeError, RecursionError)

RequestId = str | int | None


class JsonRpcError(Exception):
    """A call that is answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None, request_id: RequestId = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


class JsonRpcRequest(Struct, frozen=True):
    method: str
    params: dict[str, Any]
    id: RequestId = None


def parse_request(document: Any) -> JsonRpcRequest:
    """The call in a decoded JSON document; raises `JsonRpcError` with the request's id where it has one."""
    if not isinstance(document, dict):
        raise JsonRpcError(INVALID_REQUEST, "Invalid request: a call must be an object")
    request_id = document.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int, type(None))):
        raise JsonRpcError(INVALID_REQUEST, "Invalid request: id must be a string or an integer")
    if document.get("jsonrpc") != "2.0":
        raise JsonRpcError(INVALID_REQUEST, "Invalid request: jsonrpc must be '2.0'", request_id=request_id)
    method = document.get("method")
    if not isinstance(method, str):
        raise JsonRpcError(INVALID_REQUEST, "Invalid request: method must be a string", request_id=request_id)
    unknown = sorted(document.keys() - _FIELDS)
    if unknown:
        raise JsonRpcError(INVALID_REQUEST, f"Invalid request: unknown field {unknown[0]!r}", request_id=request_id)
    params = document.get("params", {})
    if not isinstance(params, dict):
        raise JsonRpcError(INVALID_PARAMS, "Params must be an object", request_id=request_id)
    return JsonRpcRequest(method=method, params=params, id=request_id)


def encode_result(result: Any, request_id: RequestId) -> bytes:
    """The answer with a result; raises `JsonRpcError` if that has no JSON form."""
    try:
        return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})
    except _HAS_NO_JSON as error:
        raise JsonRpcError(
            INTERNAL_ERROR, f"The result cannot be written as JSON: {error}", request_id=request_id
        ) from None


def encode_error(error: JsonRpcError) -> bytes:
    """The answer with an error. Never fails, whatever a tool or a client put into it."""
    body: dict[str, Any] = {"code": error.code, "message": error.message, "data": error.data}
    try:
        return _encode({"jsonrpc": "2.0", "id": error.request_id, "error": body})
    except _HAS_NO_JSON:
        return _encode({"jsonrpc": "2.0", "id": error.request_id, "error": {**body, "data": None}})


def _encode(document: dict[str, Any]) -> bytes:
    try:
        return to_json(document, inf_nan_mode="null")
    except _HAS_NO_JSON:
        # A lone surrogate, from an undecodable file name, say. Python's own writer has a form for it, but strict
        # readers, agents' among them, refuse all of an answer that has one. Only an id comes back as it was.
        request_id = json.dumps(document["id"])
        rest = {name: value for name, value in document.items() if name != "id"}
        text = json.dumps(rest, ensure_ascii=False, allow_nan=False)
        readable = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return b'{"id":%b,%b' % (request_id.encode(), readable[1:].encode())
