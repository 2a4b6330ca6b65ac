"""What stands between the event loop's transport and a connection: picows, and what it needs around it."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from picows import WSAutoPingStrategy, WSTransport, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # what picows's own server is made of

from envhive.wire.silence import SILENT

_READ_BUFFER: Final = 1024
"""Bytes for a start; picows gives a connection more when a message does not fit."""
_LARGEST_READ: Final = 64 * 1024


class Connection(Protocol):
    """Whom they work for."""

    def answer(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        """The answer to the upgrade, and who listens from then on."""

    def broken(self) -> None:
        """The peer broke the WebSocket protocol; picows has sent the close frame that says how."""

    def on_ws_disconnected(self, transport: WSTransport | None) -> None:
        """The connection has ended."""


class PicowsProtocol(WSProtocol):  # type: ignore[misc]
    """picows's protocol for a connection whose upgrade was accepted elsewhere."""

    __slots__ = ()

    def __init__(self, connection: Connection, max_message_size: int) -> None:
        super().__init__(
            None,  # host and port, for clients
            None,  # path, for clients
            False,  # is_client_side
            connection.answer,
            SILENT,
            True,  # disconnect_on_exception
            None,  # handshake timeout
            False,  # auto ping: the heartbeat does it
            0,
            0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # auto pong: the connection answers, unless its peer reads nothing
            max_message_size,
            None,  # extra headers, for clients
            _READ_BUFFER,
        )

    def feed(self, data: bytes) -> None:
        """Bytes that were read before this protocol had the transport."""
        while data:
            buffer = self.get_buffer(len(data))
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            self.buffer_updated(taken)
            data = data[taken:]


class ReadingLess(asyncio.BufferedProtocol):
    """Before a protocol whose peer sends more than is handled: it is given no more than so much at once.

    picows doubles a buffer that a read fills, and never halves it: a peer that sent and did not read came to hold
    10 MB. Only such a connection pays for this: it would be 0.3 µs a read.
    """

    def __init__(self, protocol: PicowsProtocol) -> None:
        self._protocol = protocol
        for name in ("buffer_updated", "eof_received", "connection_lost", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(protocol, name))

    def get_buffer(self, sizehint: int) -> memoryview:
        room: memoryview = self._protocol.get_buffer(sizehint)
        return room if len(room) <= _LARGEST_READ else room[:_LARGEST_READ]


class Lingering:
    """The transport as picows sees it. Its `close`, which picows calls after a protocol error, waits for the peer.

    It is its own socket, too: picows sets options that the event loop has set, and asks for eight more things to log.
    """

    __slots__ = ("_connection", "_transport")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._connection.broken()

    def get_extra_info(self, name: str) -> Any:
        if name == "socket":
            return self
        return self._transport.get_extra_info(name) if name == "ssl_object" else None

    def fileno(self) -> int:
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def setsockopt(self, *option: int) -> None:
        pass

    def getsockopt(self, *option: int) -> int:
        return 0


class Deaf(asyncio.Protocol):
    """Reads and forgets, and tells when the connection ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.on_ws_disconnected(None)
