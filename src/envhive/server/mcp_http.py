"""The Model Context Protocol over HTTP and WebSocket, at `/mcp`.

A client that sends `initialize` gets a session of its own, named in `Mcp-Session-Id`, and speaks Streamable HTTP.
Whoever calls without one is answered as OpenEnv answers: from a fresh environment, or from the session that
`openenv/session/create` made and `params.session_id` names.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from envhive.errors import EnvHiveError, InvalidJSONError, SessionNotFoundError
from envhive.server.auth import Owner
from envhive.server.conversation import Conversation, batch_error, is_unasked
from envhive.server.gate import OWNER, refusal_headers
from envhive.server.hangups import look_once_more, unless_gone
from envhive.server.hive import Hive
from envhive.server.mcp import VERSIONS, as_rpc_error
from envhive.server.newcomers import Way
from envhive.server.outlet import TRY_AGAIN_LATER
from envhive.server.phases import Phase
from envhive.server.relay import Relayed, is_relayed
from envhive.server.session import Session
from envhive.wire.codec import decode_value
from envhive.wire.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    SERVER_ERROR,
    JsonRpcError,
    encode_error,
    encode_result,
)

SESSION_HEADER: Final = "Mcp-Session-Id"
VERSION_HEADER: Final = "MCP-Protocol-Version"
_EVENTS: Final = "text/event-stream"
_SESSION_LOST: Final = -32001
_KEPT_STREAMS: Final = 16
"""Streams of a session that a client which lost its connection can go on reading."""
_SILENCE_S: Final = 15.0
"""After so long a comment is sent, so that nobody on the way takes a stream for dead."""
_PRIMED_SINCE: Final = "2025-11-25"


class Stream:
    """Events for one client, which may hang up and come back for the rest."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._events: list[bytes] = []
        self._over = False
        self._changed = asyncio.Event()

    def add(self, message: bytes) -> None:
        self._events.append(message)
        self._changed.set()

    def end(self) -> None:
        self._over = True
        self._changed.set()

    async def follow(self, after: int = 0, *, primed: bool = False) -> AsyncIterator[bytes]:
        """The events after so many, as they come, until the last."""
        if primed:
            yield f"id: {self.number}-{after}\ndata: \n\n".encode()
        while True:
            while after < len(self._events):
                after += 1
                yield b"id: %d-%d\nevent: message\ndata: %s\n\n" % (self.number, after, self._events[after - 1])
            if self._over:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(_SILENCE_S):
                    await self._changed.wait()
            except TimeoutError:
                yield b": still here\n\n"


class McpSession(Conversation):
    """A session over HTTP, and the streams of what it says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._streams: OrderedDict[int, Stream] = OrderedDict()
        self._all_streams: WeakSet[Stream] = WeakSet()
        """Those too that nobody can come back to, as long as somebody reads them or something is to come."""
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, document: Any) -> Stream:
        """Carry out a request; what is said on the way, and the answer, go to a stream."""
        stream = self.open_stream()
        task = asyncio.get_running_loop().create_task(self._fill(stream, document))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    async def _fill(self, stream: Stream, document: Any) -> None:
        try:
            answer = await self.answer(document, lambda note: stream.add(json.dumps(note).encode()))
            if answer is not None:
                stream.add(answer)
        finally:
            stream.end()

    def open_stream(self) -> Stream:
        self._numbers += 1
        self._streams[self._numbers] = stream = Stream(self._numbers)
        self._all_streams.add(stream)
        while len(self._streams) > _KEPT_STREAMS:
            self._streams.popitem(last=False)
        return stream

    def stream_after(self, event_id: str) -> tuple[Stream, int] | None:
        """Where a client goes on that has read up to an event."""
        number, _, count = event_id.partition("-")
        if not (number.isdecimal() and count.isdecimal()):
            return None
        stream = self._streams.get(int(number))
        return None if stream is None else (stream, int(count))

    def hang_up(self) -> None:
        for stream in list(self._all_streams):
            stream.end()


class McpEndpoint:
    """`/mcp` of one hive."""

    def __init__(self, hive: Hive) -> None:
        self._hive = hive

    async def post(self, request: Request) -> Response:
        body = await request.body()
        standard = _EVENTS in request.headers.get("accept", "")
        session_id = request.headers.get(SESSION_HEADER)
        try:
            document = decode_value(body)
        except InvalidJSONError:
            return _json(encode_error(JsonRpcError(PARSE_ERROR, "Parse error")), 400 if standard else 200)
        method = document.get("method") if isinstance(document, dict) else None
        if session_id is None and method == "initialize" and standard:
            return await self._initialize(request, document)
        if session_id is None:
            return await self._answer_openenv(request, document, body, standard=standard)
        if (way := self._way_to(request, session_id)) is not None:
            return Relayed(way, body)
        try:
            session = self._find(session_id, request)
        except EnvHiveError as error:
            return _lost(error, document)
        if (refusal := _check_version(request)) is not None:
            return refusal
        if _wants_no_answer(document):
            await session.answer(document)
            return Response(status_code=202, headers={SESSION_HEADER: session_id})
        if standard and _may_be_told_more(document):
            primed = session.peer.version is not None and session.peer.version >= _PRIMED_SINCE
            return _events(session.begin(document).follow(primed=primed), session_id)
        return _answered(await session.answer(document), session_id)

    async def get(self, request: Request) -> Response:
        """Go on reading a stream, or listen to what the server says of its own accord."""
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            return _refused(JsonRpcError(INVALID_REQUEST, f"Name the session in {SESSION_HEADER}"), 400)
        if _EVENTS not in request.headers.get("accept", ""):
            return _refused(JsonRpcError(INVALID_REQUEST, f"Accept {_EVENTS}"), 406)
        if (way := self._way_to(request, session_id)) is not None:
            return Relayed(way, b"")
        try:
            session = self._find(session_id, request)
        except EnvHiveError as error:
            return _lost(error, None)
        last = request.headers.get("last-event-id")
        if last is None:
            return _events(session.open_stream().follow(), session_id)
        found = session.stream_after(last)
        if found is None:
            return _refused(JsonRpcError(INVALID_PARAMS, f"Nothing is known of event {last!r}"), 404)
        stream, count = found
        return _events(stream.follow(count), session_id)

    async def delete(self, request: Request) -> Response:
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            return _refused(JsonRpcError(INVALID_REQUEST, f"Name the session in {SESSION_HEADER}"), 400)
        if (way := self._way_to(request, session_id)) is not None:
            return Relayed(way, b"")
        try:
            conversation = self._find(session_id, request)
        except EnvHiveError as error:
            return _lost(error, None)
        conversation.hang_up()
        conversation.session.end()
        await conversation.session.wait_closed()
        return Response(status_code=204)

    # A session over HTTP.

    async def _initialize(self, request: Request, document: dict[str, Any]) -> Response:
        if not is_relayed(request.scope) and (way := self._hive.way_to(None)) is not None:
            return Relayed(way, await request.body(), named=False)
        try:
            return await unless_gone(request, self._begin(_owner(request), document))
        except EnvHiveError as error:
            refused = _json(encode_error(as_rpc_error(error, _id_of(document))), error.http_status)
            refused.headers.update(refusal_headers(error))
            return refused

    async def _begin(self, owner: Owner | None, document: dict[str, Any]) -> Response:
        async with self._beginning(owner) as session:
            conversation = McpSession(session)
            answer = await conversation.answer(document) or b""
            if conversation.peer.version is None or session.phase is not Phase.IDLE:
                return _json(answer, 400)
            await look_once_more()
            self._hive.http.keep(session, conversation)
            return _json(answer, 200, session.id)

    def _find(self, session_id: str, request: Request) -> McpSession:
        guest = self._hive.http.find(session_id, _owner(request))
        if not isinstance(guest.conversation, McpSession):
            guest.conversation = McpSession(guest.session)
        return guest.conversation

    def _way_to(self, request: Request, session_id: str | None) -> Way | None:
        return None if is_relayed(request.scope) else self._hive.way_to(session_id)

    # OpenEnv's way.

    async def _answer_openenv(self, request: Request, document: Any, body: bytes, *, standard: bool) -> Response:
        if not isinstance(document, dict):
            return _json(batch_error(), 400 if standard else 200)
        method, params = document.get("method"), document.get("params")
        named = params.get("session_id") if isinstance(params, dict) else None
        if isinstance(named, str) and (way := self._way_to(request, named)) is not None:
            return Relayed(way, body)
        if method == "openenv/session/create" and (way := self._way_to(request, None)) is not None:
            return Relayed(way, body, named=False)
        try:
            if method == "openenv/session/create":
                return await unless_gone(request, self._create(_owner(request), document))
            if method == "openenv/session/close":
                return _json(await self._close(_owner(request), document, named))
            if method == "server/discover":
                raise JsonRpcError(METHOD_NOT_FOUND, "Method not found: server/discover; begin with initialize")
            if is_unasked(document):
                return Response(status_code=202)
            if named is None:
                return await unless_gone(request, self._visit(_owner(request), document))
            guest = self._hive.http.find(str(named), _owner(request))
            return _answered(await Conversation(guest.session).answer(_without_session_id(document)))
        except SessionNotFoundError:
            unknown = JsonRpcError(INVALID_PARAMS, f"Unknown session_id: {named}", request_id=_id_of(document))
            return _json(encode_error(unknown))
        except EnvHiveError as error:
            return _json(encode_error(as_rpc_error(error, _id_of(document))))
        except JsonRpcError as error:
            error.request_id = _id_of(document)
            return _json(encode_error(error))

    async def _visit(self, owner: Owner | None, document: dict[str, Any]) -> Response:
        async with self._hive.visit(owner) as session:
            return _answered(await Conversation(session).answer(document))

    async def _create(self, owner: Owner | None, document: dict[str, Any]) -> Response:
        async with self._beginning(owner) as session:
            await session.wait_opened()
            await look_once_more()
            self._hive.http.keep(session)
            return _json(encode_result({"session_id": session.id}, _id_of(document)))

    @asynccontextmanager
    async def _beginning(self, owner: Owner | None) -> AsyncIterator[Session]:
        """A new session, which ends with this unless it is kept."""
        session = await self._hive.admit_in_turn(owner)
        try:
            yield session
        finally:
            if not self._hive.http.keeps(session):
                session.end()
                await session.wait_closed()

    async def _close(self, owner: Owner | None, document: dict[str, Any], named: Any) -> bytes:
        if not isinstance(named, str):
            raise JsonRpcError(INVALID_PARAMS, "Invalid params - 'session_id' is required")
        guest = self._hive.http.find(named, owner)
        if guest.session.is_attached:
            raise JsonRpcError(INVALID_REQUEST, "Cannot close a session that a WebSocket is attached to")
        guest.session.end()
        await guest.session.wait_closed()
        return encode_result({"session_id": named, "closed": True}, _id_of(document))

    # A connection that is a session.

    async def websocket(self, websocket: WebSocket) -> None:
        """JSON-RPC both ways, one message a frame, for as long as the connection lasts."""
        await websocket.accept()
        outbox: asyncio.Queue[bytes] = asyncio.Queue()
        try:
            session = await self._hive.admit_in_turn(websocket.scope.get(OWNER))
        except EnvHiveError as error:
            await websocket.send_text(encode_error(as_rpc_error(error)).decode())
            await websocket.close(TRY_AGAIN_LATER, error.code)
            return
        conversation = Conversation(session)
        tasks: set[asyncio.Task[None]] = set()

        async def answer(text: str | bytes) -> None:
            reply = await conversation.answer_text(text, lambda note: outbox.put_nowait(json.dumps(note).encode()))
            if reply is not None:
                outbox.put_nowait(reply)

        async def write() -> None:
            while True:
                await websocket.send_text((await outbox.get()).decode())

        writing = asyncio.ensure_future(write())
        try:
            while (message := await websocket.receive())["type"] != "websocket.disconnect":
                text = message.get("text")
                tasks.add(task := asyncio.ensure_future(answer(message.get("bytes") or b"" if text is None else text)))
                task.add_done_callback(tasks.discard)
        except (WebSocketDisconnect, RuntimeError):
            pass  # it is gone, which is how such a session ends
        finally:
            for task in (writing, *tasks):
                task.cancel()
            session.end()
            await session.wait_closed()


def _owner(request: Request) -> Owner | None:
    owner: Owner | None = request.scope.get(OWNER)
    return owner


def _json(payload: bytes, status_code: int = 200, session_id: str | None = None) -> Response:
    headers = {} if session_id is None else {SESSION_HEADER: session_id}
    return Response(payload, status_code, headers, "application/json")


def _answered(answer: bytes | None, session_id: str | None = None) -> Response:
    """The answer to a call; none if the client has cancelled it, and wants none."""
    if answer is not None:
        return _json(answer, 200, session_id)
    return Response(status_code=202, headers={} if session_id is None else {SESSION_HEADER: session_id})


def _events(chunks: AsyncIterator[bytes], session_id: str) -> Response:
    headers = {SESSION_HEADER: session_id, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, 200, headers, _EVENTS)


def _refused(error: JsonRpcError, status_code: int) -> Response:
    return _json(encode_error(error), status_code)


def _lost(error: EnvHiveError, document: Any) -> Response:
    """There is no such session, or no longer: the protocol's clients begin a new one when they see a 404."""
    lost = JsonRpcError(_SESSION_LOST, str(error), {"code": error.code}, _id_of(document))
    return _refused(lost, 404)


def _check_version(request: Request) -> Response | None:
    version = request.headers.get(VERSION_HEADER)
    if version is None or version in VERSIONS:
        return None
    served = ", ".join(VERSIONS)
    return _refused(JsonRpcError(SERVER_ERROR, f"Unsupported protocol version {version!r}; there are {served}"), 400)


def _wants_no_answer(document: Any) -> bool:
    return is_unasked(document) or (
        isinstance(document, list) and bool(document) and all(is_unasked(each) for each in document)
    )


def _may_be_told_more(document: Any) -> bool:
    """Whether a client wants to hear of the progress of a call."""
    params = document.get("params") if isinstance(document, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and "progressToken" in meta


def _id_of(document: Any) -> Any:
    wanted = document.get("id") if isinstance(document, dict) else None
    return wanted if isinstance(wanted, (str, int)) and not isinstance(wanted, bool) else None


def _without_session_id(document: dict[str, Any]) -> dict[str, Any]:
    params = {name: value for name, value in document["params"].items() if name != "session_id"}
    return {**document, "params": params}
