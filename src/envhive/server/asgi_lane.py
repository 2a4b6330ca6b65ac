"""The same session over any ASGI server's WebSocket: hypercorn, granian, plain uvicorn, a test client."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from envhive.errors import EnvHiveError, SessionError
from envhive.server.auth import Owner
from envhive.server.gate import OWNER
from envhive.server.hive import Hive
from envhive.server.mcp import answer_mcp_text
from envhive.server.session import NORMAL_CLOSURE, TRY_AGAIN_LATER, Session
from envhive.wire.codec import encode_error_reply

TAKE_OVER: Final = "envhive.take_over"
"""The scope extension through which the fast lane offers to carry the frames itself."""

REFUSAL_S: Final = 1.0
"""How long a refused client gets to ask its first question and hear the answer."""

CLOSING_S: Final = 5.0
"""How long a connection that is gone waits for its environment to close."""

MESSAGE_TOO_BIG: Final = 1009


async def serve_websocket(websocket: WebSocket, hive: Hive) -> None:
    """Give a WebSocket connection a session, on the fast lane where the server offers one."""
    wanted = websocket.query_params.get("session_id")
    if wanted:
        await _refuse(websocket, SessionError(f"Unknown session_id: {wanted}"))
        return
    owner = websocket.scope.get(OWNER)
    offer = (websocket.scope.get("extensions") or {}).get(TAKE_OVER)
    if offer is not None and offer.receive == websocket._receive:
        offer.take(hive, owner)
        await websocket.accept()
    else:
        await websocket.accept()
        await AsgiConnection(websocket, hive, owner).run()


async def serve_mcp_websocket(websocket: WebSocket) -> None:
    """JSON-RPC calls of the Model Context Protocol, one a frame."""
    await websocket.accept()
    while (message := await websocket.receive())["type"] != "websocket.disconnect":
        frame = message.get("text")
        await websocket.send_text(answer_mcp_text(message.get("bytes") or b"" if frame is None else frame).decode())


async def _refuse(websocket: WebSocket, error: EnvHiveError) -> None:
    """Accept, say why not, and close: the frame reaches the client, which a refused upgrade's body would not."""
    await websocket.accept()
    connection = AsgiConnection(websocket, None)
    connection.refuse(error, NORMAL_CLOSURE, asked=False)
    await connection.run()


class AsgiConnection:
    """One accepted ASGI WebSocket: the outlet of its session. `run` lasts as long as the connection."""

    def __init__(self, websocket: WebSocket, hive: Hive | None, owner: Owner | None = None) -> None:
        self._websocket = websocket
        self._hive = hive
        self._owner = owner
        self._session: Session | None = None
        self._refusal: tuple[int, str] | None = None
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def run(self) -> None:
        """Carry frames both ways until either side is done."""
        if self._hive is not None:
            try:
                self._session = self._hive.admit(self, owner=self._owner)
            except EnvHiveError as error:
                self.refuse(error, TRY_AGAIN_LATER, asked=False)
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self._read, both.cancel_scope)
                await self._write()
                both.cancel_scope.cancel()
        finally:
            if self._session is not None:
                self._session.detach()
                with anyio.move_on_after(CLOSING_S, shield=True):
                    await self._session.wait_closed()  # the event loop may be a test client's, and end with us

    async def _read(self, both: anyio.CancelScope) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                both.cancel()
                return
            frame = message.get("text")
            frame = frame if frame is not None else message.get("bytes") or b""
            if self._refusal is not None:
                self.close(*self._refusal)  # it has asked, and will now read why it was refused
            elif self._hive is not None and len(frame) > self._hive.config.max_message_size:
                self.close(MESSAGE_TOO_BIG, "message too big")
                self._session, session = None, self._session
                if session is not None:
                    session.detach()
            elif self._session is not None:
                if isinstance(frame, str):
                    self._session.receive(frame)
                else:
                    self._session.receive_binary(frame)
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

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None:
        self._session = None
        self.send(encode_error_reply(error))
        if asked:
            self.close(code, error.code)
        else:
            self._refusal = (code, error.code)
            asyncio.get_running_loop().call_later(REFUSAL_S, self.close, code, error.code)

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()
