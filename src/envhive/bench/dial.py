"""Connecting from a chosen address, and the kinds that failures are counted by."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from picows import WSError, WSHandshakeError, WSListener, ws_connect

from envhive.client.options import websocket_url

_IP_BIND_ADDRESS_NO_PORT: Final = 24
"""Linux picks the port when it knows the destination too, so that ports are counted per pair of addresses."""
_READ_BUFFER: Final = 2048
_MAX_REPLY: Final = 100 * 1024 * 1024
_LONGEST_WORDS: Final = 300

logging.getLogger("picows.client").disabled = True  # failures are counted by kind, not logged one by one

_KINDS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset by the server",
    errno.EPIPE: "reset by the server",
    errno.ETIMEDOUT: "timed out",
    errno.EADDRNOTAVAIL: "no port left here",
    errno.EMFILE: "no file descriptor left here",
    errno.ENFILE: "no file descriptor left here",
}
_NAMES: Final = {
    "ConnectionRefusedError": "refused",
    "ConnectionResetError": "reset by the server",
    "TimeoutError": "timed out",
    "gaierror": "no such host",
}


def kind_of(error: BaseException) -> str:
    """A failure in two or three words, few enough different ones to be counted.

    Example:
        >>> kind_of(ConnectionRefusedError(111, "Connection refused"))
        'refused'
    """
    if isinstance(error, WSHandshakeError):
        response = getattr(error, "response", None)
        return f"HTTP {int(response.status)}" if response is not None else "no handshake"
    if isinstance(error, OSError) and error.errno in _KINDS:
        return _KINDS[error.errno]
    if isinstance(error, WSError):
        return "no handshake"
    return _NAMES.get(type(error).__name__, type(error).__name__)


_ANSWERS: Final = frozenset({"observation", "reset", "step"})
"""Types of replies to a reset or step; the floor sends requests back as they are."""


class _Progress(msgspec.Struct):
    done: bool | None = None


class Reply(msgspec.Struct):
    """As much of a reply as needs looking at."""

    type: str
    data: _Progress = msgspec.field(default_factory=_Progress)


class _Problem(msgspec.Struct):
    msg: str = ""
    loc: list[str | int] = []


class _ErrorData(msgspec.Struct):
    code: str = "error"
    message: str = ""
    errors: list[_Problem] = []

    def words(self) -> str:
        """What is wrong, and where."""
        told = [": ".join([*map(str, problem.loc), problem.msg]) for problem in self.errors[:2]]
        return "; ".join([self.message, *told])[:_LONGEST_WORDS]


class _ErrorReply(msgspec.Struct):
    data: _ErrorData = msgspec.field(default_factory=_ErrorData)


class _HttpError(msgspec.Struct):
    """The body of a response that is an error; the detail is a sentence, or pydantic's list."""

    code: str = ""
    detail: str | list[_Problem] = ""

    def words(self) -> str:
        if isinstance(self.detail, str):
            return self.detail[:_LONGEST_WORDS]
        return _ErrorData(message="Invalid request", errors=self.detail).words()


_decode_http_error: Final = msgspec.json.Decoder(_HttpError).decode
_decode_reply: Final = msgspec.json.Decoder(Reply).decode
_decode_error: Final = msgspec.json.Decoder(_ErrorReply).decode


class Said:
    """What servers have said about each kind of error, the first time."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}

    def read(self, payload: bytes | memoryview) -> tuple[str | None, bool]:
        """The code of an error reply, None if the reply is none; and whether the episode is done."""
        try:
            reply = _decode_reply(payload)
            if reply.type in _ANSWERS:
                return None, reply.data.done is True
            if reply.type != "error":
                return "reply makes no sense", False
            data = _decode_error(payload).data
        except msgspec.DecodeError:
            return "reply makes no sense", False
        if data.code not in self.words:
            self.words[data.code] = data.words()
        return data.code, False

    def read_http(self, status: int, body: bytes) -> str:
        """The kind of an error over HTTP: the code that the server gives it, if there is one."""
        try:
            error = _decode_http_error(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"HTTP {status}"
        kind = error.code or f"HTTP {status}"
        self.words.setdefault(kind, error.words())
        return kind


def _credentials() -> dict[str, str]:
    """As the client's: the load processes have them from whoever started the lab."""
    token = os.environ.get("ENVHIVE_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


class Dialer:
    """Makes connections to one server. Its name is looked up once, not for each of 16,384 sessions."""

    def __init__(self, url: str, sources: Sequence[str]) -> None:
        self.url = websocket_url(url)
        parts = urlsplit(self.url)
        self.secure = parts.scheme == "wss"
        self.host = parts.hostname or ""
        self.netloc = parts.netloc
        self.port = parts.port or (443 if self.secure else 80)
        self.prefix = parts.path.removesuffix("/ws")
        self.headers = _credentials()
        self._sources = sources
        self._turn = 0
        self._address: tuple[Any, ...] = ()
        self._family = socket.AF_INET
        self._dialled: list[socket.socket] = []

    async def look_up(self) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # the several loopback addresses are of IPv4
        self._family, _, _, _, self._address = found[0]

    async def dial(self, parsed_url: Any = None) -> socket.socket:
        """A connected socket, from the next of the source addresses."""
        dialled = socket.socket(self._family, socket.SOCK_STREAM)
        dialled.setblocking(False)
        try:
            if self._sources and self._family == socket.AF_INET:
                self._turn = (self._turn + 1) % len(self._sources)
                dialled.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                dialled.bind((self._sources[self._turn], 0))
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(dialled, self._address)
        except BaseException:  # a cancelled dial too: its descriptor goes back
            dialled.close()
            raise
        self._dialled.append(dialled)
        return dialled

    def hang_up(self) -> None:
        """Shut down whatever is still open: picows leaves the socket of a handshake that is given up."""
        for dialled in self._dialled:
            if dialled.fileno() >= 0:
                with contextlib.suppress(OSError):
                    dialled.shutdown(socket.SHUT_RDWR)
        self._dialled.clear()

    async def connect_ws(self, listener: WSListener) -> None:
        """A WebSocket, without a time limit of its own: one deadline for all is cheaper than a timer for each."""
        transport, _ = await ws_connect(
            lambda: listener,
            self.url,
            websocket_handshake_timeout=None,
            max_frame_size=_MAX_REPLY,
            read_buffer_init_size=_READ_BUFFER,
            socket_factory=self.dial,
            extra_headers=self.headers,
        )
        if transport.response is None:  # picows returns as if it had connected, and the listener never hears of it
            raise ConnectionResetError(errno.ECONNRESET, "the server hung up before the handshake")

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """A plain connection, for HTTP."""
        dialled = await self.dial()
        context = ssl.create_default_context() if self.secure else None
        await asyncio.get_running_loop().create_connection(
            lambda: protocol, sock=dialled, ssl=context, server_hostname=self.host if self.secure else None
        )
