"""The same session over any ASGI server's WebSocket: hypercorn, granian, plain uvicorn, a test client."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.websockets import WebSocket, WebSocketState

from envhive.errors import EnvHiveError
from envhive.server.hive import Hive
from envhive.server.session import TRY_AGAIN_LATER, Session
from envhive.wire.codec import encode_error_reply

TAKE_OVER: Final = "envhive.take_over"
"""The scope extension through which the fast lane offers to carry the frames itself."""

MESSAGE_TOO_BIG: Final = 1009


async def serve_websocket(websocket: WebSocket, hive: Hive) -> None:
    """Give a WebSocket connection a session, on the fast lane where the server offers one."""
    offer = (websocket.scope.get("extensions") or {}).get(TAKE_OVER)
    if offer is not None and offer.receive == websocket._receive:
        offer.take(hive)
        await websocket.accept()
    else:
        await websocket.accept()
        await AsgiConnection(websocket, hive).run()


class AsgiConnection:
    """One accepted ASGI WebSocket: the outlet of its session. `run` lasts as long as the connection."""

    def __init__(self, websocket: WebSocket, hive: Hive) -> None:
        self._websocket = websocket
        self._hive = hive
        self._session: Session | None = None
        self._outbox: asyncio.Queue[bytes | tuple[int, str]] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def run(self) -> None:
        writer = asyncio.create_task(self._write())
        reader: asyncio.Task[None] | None = None
        try:
            try:
                self._session = self._hive.admit(self)
            except EnvHiveError as error:
                self.send(encode_error_reply(error))
                self.close(TRY_AGAIN_LATER, error.code)
            else:
                reader = asyncio.create_task(self._read(self._session))
            await asyncio.wait({writer} if reader is None else {writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._session is not None:
                self._session.detach()
            for task in (reader, writer):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(task for task in (reader, writer) if task is not None), return_exceptions=True)

    async def _read(self, session: Session) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            frame = message.get("text")
            frame = frame if frame is not None else message.get("bytes") or b""
            if len(frame) > self._hive.config.max_message_size:
                self.close(MESSAGE_TOO_BIG, "message too big")
                await asyncio.Future()  # the writer ends the connection
            session.receive(frame)
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
            except (RuntimeError, OSError):
                return  # the peer is gone; the reader hears of it too
            if self._session is not None and self._outbox.empty():
                self._session.unhold()

    # What a session wants.

    def send(self, frame: bytes) -> None:
        self._outbox.put_nowait(frame)
        if self._session is not None:
            self._session.hold()  # until it has gone out: a peer that does not read gets no further replies made

    def close(self, code: int, reason: str) -> None:
        self._outbox.put_nowait((code, reason))

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()
