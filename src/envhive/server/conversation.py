"""JSON-RPC between one client and one session, whatever carries it: HTTP, a WebSocket, standard input and output."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from envhive.errors import EnvHiveError, InvalidJSONError
from envhive.server.mcp import BATCHING, Notify, Peer, conclude
from envhive.server.session import Session
from envhive.wire.codec import decode_value
from envhive.wire.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    JsonRpcError,
    JsonRpcRequest,
    RequestId,
    encode_error,
    encode_result,
    parse_request,
)

_CANCELLED: Final = "notifications/cancelled"


class Conversation:
    """The calls of one client. Several may be under way; the environment does one after the other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._running: dict[RequestId, asyncio.Task[bytes]] = {}

    @property
    def peer(self) -> Peer:
        return self.session.peer

    async def answer_text(self, text: str | bytes, notify: Notify | None = None) -> bytes | None:
        """The answer to a message as it came, JSON or not; None if it wants none."""
        try:
            document = decode_value(text)
        except InvalidJSONError:
            return encode_error(JsonRpcError(PARSE_ERROR, "Parse error"))
        return await self.answer(document, notify)

    async def answer(self, document: Any, notify: Notify | None = None) -> bytes | None:
        if isinstance(document, list) and self.peer.version in BATCHING and document:
            answers = await asyncio.gather(*(self._answer_one(each, notify) for each in document))
            given = [answer for answer in answers if answer is not None]
            return b"[" + b",".join(given) + b"]" if given else None
        return await self._answer_one(document, notify)

    async def _answer_one(self, document: Any, notify: Notify | None) -> bytes | None:
        if is_unasked(document):
            self._hear(document)
            return None
        try:
            request = parse_request(document)
        except JsonRpcError as error:
            return encode_error(error)
        if self.peer.version is not None and "id" not in document:
            return None  # a notification of some method that is none
        if request.id is None or request.id in self._running:
            return await self._carry_out(request, notify)
        self._running[request.id] = task = asyncio.get_running_loop().create_task(self._carry_out(request, notify))
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and not _is_being_cancelled():
                return None  # by the client itself, which wants no answer any more
            task.cancel()
            raise
        finally:
            self._running.pop(request.id, None)

    def _hear(self, document: dict[str, Any]) -> None:
        params = document.get("params")
        if document.get("method") == _CANCELLED and isinstance(params, dict):
            wanted = params.get("requestId")
            task = self._running.get(wanted) if isinstance(wanted, (str, int)) else None
            if task is not None:
                task.cancel()

    async def _carry_out(self, request: JsonRpcRequest, notify: Notify | None) -> bytes:
        try:
            plan = self.peer.plan(request, notify)
            if isinstance(plan, dict):
                return encode_result(plan, request.id)
        except JsonRpcError as error:
            return encode_error(error)
        try:
            answer, failure = await self.session.carry_out(plan), None
        except EnvHiveError as error:
            answer, failure = None, error
        await asyncio.sleep(0)  # what the environment said before its answer goes first
        return conclude(plan, request, answer, failure)


def is_unasked(document: Any) -> bool:
    """Whether a message wants no answer: a notification, or the answer to a question that nobody asked."""
    if not isinstance(document, dict):
        return False
    method = document.get("method")
    if method is None:
        return "result" in document or "error" in document
    return isinstance(method, str) and method.startswith("notifications/")


def batch_error() -> bytes:
    return encode_error(JsonRpcError(INVALID_REQUEST, "Invalid request: a call must be an object"))


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
