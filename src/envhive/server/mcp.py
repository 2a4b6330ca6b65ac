"""JSON-RPC of the Model Context Protocol, on `/mcp` and inside `{"type": "mcp"}` frames."""

from __future__ import annotations

from typing import Any

from envhive.errors import InvalidJSONError
from envhive.wire.codec import decode_value
from envhive.wire.jsonrpc import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    JsonRpcError,
    JsonRpcRequest,
    encode_error,
    encode_result,
    parse_request,
)


def answer_mcp(document: Any, session_id: str | None = None) -> bytes:
    """The response to a decoded JSON-RPC call."""
    try:
        request = parse_request(document)
        return encode_result(_answer(request, session_id), request.id)
    except JsonRpcError as error:
        return encode_error(error)


def answer_mcp_text(text: str | bytes) -> bytes:
    """The response to a JSON-RPC call as it came, JSON or not."""
    try:
        document = decode_value(text)
    except InvalidJSONError:
        return encode_error(JsonRpcError(PARSE_ERROR, "Parse error"))
    return answer_mcp(document)


def _answer(request: JsonRpcRequest, session_id: str | None) -> Any:
    if request.method == "openenv/session/create" and session_id is not None:
        return {"session_id": session_id}
    if request.method in ("tools/list", "tools/call", "openenv/session/create", "openenv/session/close"):
        raise JsonRpcError(INTERNAL_ERROR, "Environment does not support MCP", request_id=request.id)
    raise JsonRpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}", request_id=request.id)
