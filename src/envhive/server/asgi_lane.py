"""The same session over any ASGI server's WebSocket: hypercorn, granian, plain uvicorn, a test client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from envhive.server.auth import Owner
from envhive.server.entrance import Entrance, give
from envhive.server.gate import OWNER, error_response
from envhive.server.hive import Hive
from envhive.server.outlet import GOING_AWAY, MESSAGE_TOO_BIG, NORMAL_CLOSURE, TRY_AGAIN_LATER
from envhive.server.session import Session
from envhive.wire.messages import LAYER_2

TAKE_OVER: Final = "envhive.take_over"
"""The scope extension through which the fast lane offers to carry the frames itself."""

ATTEMPT_HEADER: Final = "x-envoy-attempt-count"
"""Set by Envoy: the how-manieth server it asks for the same client."""
ATTEMPTS_HEADER: Final = "x-envhive-attempts"
"""Set by a fleet's proxy: how many it asks at most."""

CLOSING_S: Final = 5.0
"""How long a connection that is gone waits for its environment to close."""


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


class AsgiConnection(Entrance):
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
        self._wanted = wanted
        self._session: Session | None = None
        self._ticket: int | None = None
        self._early: list[str | bytes] | None = None
        self._refusal: tuple[int, str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def run(self) -> None:
        """Carry frames both ways until either side is done."""
        self._come_in()
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._read, both.cancel_scope)
                await self._write()
                both.cancel_scope.cancel()
        finally:
            self._stop_timer()
            self._leave_line()
            if self._session is not None:
                self._session.detach()
            if self._session is not None and self._layer == 1 and not self._session.outlives_connections:
                with anyio.move_on_after(CLOSING_S, shield=True):
                    await self._session.wait_closed()  # the event loop may be a test client's, and end with us

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
            if len(frame) > self._hive.config.max_message_size:
                self.close(MESSAGE_TOO_BIG, "message too big")
                self._session, session = None, self._session
                if session is not None:
                    session.detach()
                continue
            if self._session is not None:
                give(self._session, frame)
            else:
                self._receive_early(frame)
            await self._may_read.wait()

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

    def drop(self) -> None:
        self._session = None
        self.close(GOING_AWAY, "replaced by another connection")

    def _has_left(self) -> bool:
        return False  # ASGI has no way to look ahead

    def _send_elsewhere(self) -> None:
        self.close(TRY_AGAIN_LATER, "another worker has this session")

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()
