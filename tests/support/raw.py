"""WebSockets by hand: bytes that no well-behaved client would send, or not in that way."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from typing import Any, Final, Self

TEXT: Final = 0x1
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_RESET: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with a reset, dropping whatever is on its way."""


def dial(port: int, timeout: float = 20) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def hang_up(sock: socket.socket, *, hard: bool = False) -> None:
    """Close a connection; `hard`: with a reset."""
    if hard:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


def upgrade_request(port: int, path: str = "/ws", *more: str) -> bytes:
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *more,
    )
    return "\r\n".join((*lines, "", "")).encode()


def upgraded(port: int, path: str = "/ws", timeout: float = 20) -> socket.socket:
    """A connection whose upgrade was answered, and nothing read behind the answer; raises `OSError` if it was not."""
    sock = dial(port, timeout)
    try:
        sock.sendall(upgrade_request(port, path))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = sock.recv(1)
            if not byte:
                raise ConnectionResetError("it was closed instead of upgraded")
            head += byte
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionRefusedError(head.decode(errors="replace"))
    except BaseException:  # Ctrl-C too: what is half made is not left behind
        sock.close()
        raise
    return sock


def frame(payload: bytes, opcode: int = TEXT, *, final: bool = True, mask: bytes = b"\0\0\0\0") -> bytes:
    """A frame as a client sends it."""
    first = (_FINAL if final else 0) | opcode
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, _MASKED | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, _MASKED | 126, size)
    else:
        head = struct.pack("!BBQ", first, _MASKED | 127, size)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if any(mask) else payload
    return head + mask + masked


class Frames:
    """The frames that a server sends, off a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")
        self.pongs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def read(self) -> tuple[int, bytes] | None:
        """The next one, as opcode and payload; None when the connection has ended."""
        try:
            head = self._file.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._file.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._file.read(8))
            return head[0] & 0x0F, self._file.read(size)
        except (ConnectionError, struct.error):
            return None

    def read_text(self) -> bytes:
        """The next text frame; pings and the like in between are passed over."""
        return self._next(TEXT)

    def read_ping(self) -> bytes:
        """The next ping; what comes before it is passed over."""
        return self._next(PING)

    def read_pong(self) -> bytes:
        """The next pong; what comes before it is passed over."""
        return self._next(PONG)

    def _next(self, opcode: int) -> bytes:
        while (found := self.read()) is not None and found[0] != CLOSE:
            self.pongs += found[0] == PONG
            if found[0] == opcode:
                return found[1]
        raise ConnectionResetError("the connection has ended")


class Player:
    """A plain client with a session, which hears what the server does to see whether it is there."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames(sock)
        sock.settimeout(20)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.send(frame(json.dumps(message).encode()))
        return self.hear()

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def hear(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self._frames.read_text())
        return reply

    @property
    def pongs(self) -> int:
        """How many have come so far."""
        return self._frames.pongs

    def hear_pong(self) -> bytes:
        return self._frames.read_pong()

    def add(self) -> int:
        """Step an environment that counts; what it has counted."""
        total: int = self.ask({"type": "step", "data": {"do": "add", "by": 1}})["data"]["observation"]["total"]
        return total

    def hear_ping(self) -> bytes:
        return self._frames.read_ping()

    def answer_ping(self, payload: bytes) -> None:
        self._sock.sendall(frame(payload, PONG))

    def close(self) -> None:
        self._sock.close()
        self._frames.__exit__()
