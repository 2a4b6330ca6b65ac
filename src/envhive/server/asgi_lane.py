"""The same session over any ASGI server's WebSocket: hypercorn, granian, plain uvicorn, a test client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from envhive.errors import EnvHiveError, QuotaExceededError, SessionCapacityError
from envhive.server.auth import Owner
from envhive.server.gate import OWNER, error_response
from envhive.server.hive import Hive
from envhive.server.session import GOING_AWAY, INBOX_LIMIT, NORMAL_CLOSURE, TRY_AGAIN_LATER, Session
from envhive.wire.codec import decode_resume, encode_error_reply, encode_queued
from envhive.wire.messages import LAYER_2

TAKE_OVER: Final = "envhive.take_over"
"""The scope extension through which the fast lane offers to carry the frames itself."""

ATTEMPT_HEADER: Final = "x-envoy-attempt-count"
"""Set by Envoy: the how-manieth server it asks for the same client."""
ATTEMPTS_HEADER: Final = "x-envhive-attempts"
"""Set by a fleet's proxy: how many it asks at most."""

REFUSAL_S: Final = 1.0
"""How long a refused client gets to ask its first question and hear the answer."""

CLOSING_S: Final = 5.0
"""How long a connection that is gone waits for its environment to close."""

RESUMPTION_S: Final = 10.0
"""How long a client that comes back gets to send its token."""

POLICY_VIOLATION: Final = 1008
MESSAGE_TOO_BIG: Final = 1009


async def serve_websocket(websocket: WebSocket, hive: Hive) -> None:
    """Give a WebSocket connection a session, on the fast lane where the server offers one."""
    query: Mapping[str, str] = websocket.query_params if websocket.scope.get("query_string") else {}
    made_over_http = query.get("session_id")
    owner = websocket.scope.get(OWNER)
    layer = 2 if LAYER_2 in websocket.scope.get("subprotocols", ()) and not made_over_http else 1
    session = query.get("session") if layer == 2 else made_over_http or None
    offer = (websocket.scope.get("extensions") or {}).get(TAKE_OVER)
    subprotocol = LAYER_2 if layer == 2 else None
    if session is None and _another_may_have_room(websocket) and (refusal := hive.refusal()) is not None:
        await websocket.send_denial_response(error_response(refusal))
        return
    if offer is not None and offer.receive == websocket._receive:
        offer.take(hive, owner, layer, session)
        await websocket.accept(subprotocol)
    else:
        await websocket.accept(subprotocol)
        await AsgiConnection(websocket, hive, owner, layer, session).run()


def _another_may_have_room(websocket: WebSocket) -> bool:
    """Whether a proxy says that it tries another server if this one refuses by an HTTP status.

    The last server that it tries takes the connection and refuses in its own words, which every client understands.
    """
    if "websocket.http.response" not in (websocket.scope.get("extensions") or {}):
        return False
    attempt, attempts = (websocket.headers.get(name, "") for name in (ATTEMPT_HEADER, ATTEMPTS_HEADER))
    return attempt.isdecimal() and attempts.isdecimal() and int(attempt) < int(attempts)


class AsgiConnection:
    """One accepted ASGI WebSocket: the outlet of its session. `run` lasts as long as the connection."""

    def __init__(
        self,
        websocket: WebSocket,
        hive: Hive,
        owner: Owner | None,
        layer: int,
        wanted: str | None,
    ) -> None:
        self._websocket = websocket
        self._hive = hive
        self.owner = owner
        self._layer = layer
        self._resuming = wanted if layer == 2 else None
        self._adopting = wanted if layer == 1 else None
        self._session: Session | None = None
        self._ticket: int | None = None
        self._early: list[str | bytes] = []
        self._refusal: tuple[int, str] | None = None
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def run(self) -> None:
        """Carry frames both ways until either side is done."""
        if self._resuming is not None:
            asyncio.get_running_loop().call_later(RESUMPTION_S, self._hurry)
        elif self._adopting is not None:
            self._adopt(self._adopting)
        else:
            self._enter()
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._read, both.cancel_scope)
                await self._write()
                both.cancel_scope.cancel()
        finally:
            if self._ticket is not None and self._hive.line is not None:
                self._hive.line.leave(self._ticket)
            if self._session is not None:
                self._session.detach()
            if self._session is not None and self._layer == 1 and not self._session.outlives_connections:
                with anyio.move_on_after(CLOSING_S, shield=True):
                    await self._session.wait_closed()  # the event loop may be a test client's, and end with us

    def _adopt(self, session_id: str) -> None:
        if self._hive.belongs_elsewhere(session_id):
            self.close(TRY_AGAIN_LATER, "another worker has this session")
            return
        try:
            self._session = self._hive.adopt(session_id, self, self.owner)
        except EnvHiveError as error:
            self.refuse(error, NORMAL_CLOSURE, asked=False)

    def _enter(self) -> None:
        hive = self._hive
        try:
            self._session = hive.admit(self, owner=self.owner, layer=self._layer)
        except SessionCapacityError as error:
            if hive.line is None or isinstance(error, QuotaExceededError):
                self.refuse(error, TRY_AGAIN_LATER, asked=False)
            else:
                self._ticket = hive.line.join(self)
        except EnvHiveError as error:
            self.refuse(error, TRY_AGAIN_LATER, asked=False)

    # While it waits for a place.

    def admitted(self) -> None:
        self._ticket = None
        try:
            self._session = self._hive.admit(self, owner=self.owner, reserved=True, layer=self._layer)
        except EnvHiveError as error:
            self.refuse(error, TRY_AGAIN_LATER, asked=bool(self._early))
        early, self._early = self._early, []
        for frame in early:
            if self._session is not None:
                self._give(self._session, frame)

    def told(self, position: int, patience_s: float) -> None:
        if self._layer == 2:
            self.send(encode_queued(position, patience_s))

    def turned_away(self, error: SessionCapacityError) -> None:
        self._ticket = None
        self.refuse(error, TRY_AGAIN_LATER, asked=bool(self._early))

    async def _read(self, both: anyio.CancelScope) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                goodbye = message.get("code") == NORMAL_CLOSURE  # the client's own wish
                if self._session is not None and goodbye and not self._session.outlives_connections:
                    self._session.end()
                both.cancel()
                return
            frame = message.get("text")
            frame = frame if frame is not None else message.get("bytes") or b""
            if self._resuming is not None:
                self._resume(self._resuming, frame)
            elif self._ticket is not None:
                self._early.append(frame)
                if len(self._early) > INBOX_LIMIT:
                    self.close(POLICY_VIOLATION, "too many requests before there is a session")
            elif self._refusal is not None:
                self.close(*self._refusal)  # it has asked, and will now read why it was refused
            elif len(frame) > self._hive.config.max_message_size:
                self.close(MESSAGE_TOO_BIG, "message too big")
                self._session, session = None, self._session
                if session is not None:
                    session.detach()
            elif self._session is not None:
                self._give(self._session, frame)
                await self._may_read.wait()

    @staticmethod
    def _give(session: Session, frame: str | bytes) -> None:
        if isinstance(frame, str):
            session.receive(frame)
        else:
            session.receive_binary(frame)

    def _resume(self, session_id: str, frame: str | bytes) -> None:
        """The first frame of a client that comes back."""
        self._resuming = None
        if self._hive.belongs_elsewhere(session_id):
            self.close(TRY_AGAIN_LATER, "another worker has this session")
            return
        try:
            self._session = self._hive.resume(session_id, decode_resume(frame), self, self.owner)
        except EnvHiveError as error:
            self.refuse(error, NORMAL_CLOSURE, asked=True)

    def _hurry(self) -> None:
        if self._resuming is not None:
            self.close(POLICY_VIOLATION, "no resume came")

    async def _write(self) -> None:
        while True:
            item = await self._outbox.get()
            if self._websocket.application_state is not WebSocketState.CONNECTED:
                return
            try:
                if isinstance(item, tuple):
                    await self._websocket.close(*item)
                    return
                await self._websocket.send_text(item.decode())
            except (RuntimeError, OSError, WebSocketDisconnect):
                return  # the peer is gone; the reader hears of it too
            if self._session is not None and self._outbox.empty():
                self._session.unhold()

    # What a session wants.

    def send(self, frame: bytes) -> None:
        self._outbox.put_nowait(frame)
        if self._session is not None:
            self._session.hold()  # until it has gone out: a peer that does not read gets no further replies made

    def close(self, code: int, reason: str) -> None:
        self._refusal = None
        self._outbox.put_nowait((code, reason))

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None:
        self._session = None
        self.send(encode_error_reply(error, extended=self._layer == 2))
        if asked:
            self.close(code, error.code)
        else:
            self._refusal = (code, error.code)
            asyncio.get_running_loop().call_later(REFUSAL_S, self.close, code, error.code)

    def drop(self) -> None:
        self._session = None
        self.close(GOING_AWAY, "replaced by another connection")

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()
