"""Servers for the client's tests that do what a good server never does, written on bare sockets."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

_ACCEPT_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PATIENCE: Final = 20.0
"""Seconds after which a peer stops waiting for the client, so that no test hangs."""


class GoneError(Exception):
    """The client closed the connection."""


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = b""

    def read_request(self) -> dict[str, str]:
        """The headers of the upgrade request, by lower-case name."""
        while b"\r\n\r\n" not in self._unread:
            self._read_more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[1:]
        return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def shake_hands(self, *, and_send: bytes = b"") -> dict[str, str]:
        """Answer the upgrade; `and_send` goes out in the same packet as the answer."""
        headers = self.read_request()
        digest = hashlib.sha1(headers["sec-websocket-key"].encode() + _ACCEPT_MAGIC, usedforsecurity=False).digest()
        self.send_bytes(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n" + and_send
        )
        return headers

    def send_bytes(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise GoneError from error

    def send(self, payload: bytes | str, kind: int = TEXT, *, fin: bool = True) -> None:
        self.send_bytes(frame(payload, kind, fin=fin))

    def send_json(self, document: Any) -> None:
        self.send(json.dumps(document))

    def receive(self) -> tuple[int, bytes]:
        """The next frame's kind and payload, whatever it is."""
        first, second = self._read(2)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
        mask = self._read(4)
        payload = self._read(size)
        return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))

    def receive_request(self) -> dict[str, Any]:
        """The next message, past pings and pongs; the end when the client says goodbye."""
        while True:
            kind, payload = self.receive()
            if kind == CLOSE:
                raise GoneError
            if kind == TEXT:
                request: dict[str, Any] = json.loads(payload)
                if request["type"] == "close":
                    raise GoneError
                return request

    def ignore_everything(self) -> None:
        """Say nothing more, until the client says goodbye."""
        while True:
            self.receive_request()

    def wait_until_gone(self) -> None:
        """Read and forget until the client has closed the connection; fails if it never does."""
        with suppress(GoneError):
            while True:
                self._unread = b""
                self._read_more()

    def answer_everything(self) -> None:
        """Behave from now on: an echo of each step, until the client says goodbye."""
        while True:
            request = self.receive_request()
            self.send(state() if request["type"] == "state" else observation(**request.get("data", {})))

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._read_more()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def _read_more(self) -> None:
        try:
            data = self.sock.recv(65536)
        except TimeoutError:
            raise AssertionError(f"the client sent nothing for {_PATIENCE:g} s, and did not leave") from None
        except OSError as error:
            raise GoneError from error
        if not data:
            raise GoneError
        self._unread += data


class PeerServer:
    """A listening socket whose connections behave as they are told, each on its own thread."""

    def __init__(self, behave: Callable[[Peer], None]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.failures: list[BaseException] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(timeout=_PATIENCE)
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=_PATIENCE)
            assert not thread.is_alive(), "a peer did not stop"
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(_PATIENCE)
            self.connections += 1
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            self._behave(Peer(sock))
        except GoneError:
            pass
        except BaseException as failure:
            self.failures.append(failure)
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def peer_server(behave: Callable[[Peer], None], *, shake_hands: bool = True) -> Iterator[PeerServer]:
    """Serve `behave(peer)` for each connection; what it asserts fails the test."""

    def behave_after_handshake(peer: Peer) -> None:
        peer.shake_hands()
        behave(peer)

    server = PeerServer(behave_after_handshake if shake_hands else behave)
    try:
        yield server
    finally:
        server.stop()
        if server.failures:
            raise server.failures[0]  # also when the test has failed: this is why


def frame(payload: bytes | str, kind: int = TEXT, *, fin: bool = True) -> bytes:
    """A frame as a server sends it."""
    data = payload.encode() if isinstance(payload, str) else payload
    if len(data) < 126:
        size = bytes([len(data)])
    elif len(data) < 65536:
        size = b"\x7e" + len(data).to_bytes(2, "big")
    else:
        size = b"\x7f" + len(data).to_bytes(8, "big")
    return bytes([(0x80 if fin else 0) | kind]) + size + data


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(code.to_bytes(2, "big") + reason.encode(), CLOSE)


def observation(**fields: Any) -> str:
    """A reply to reset and step."""
    return json.dumps({"type": "observation", "data": {"observation": fields, "reward": None, "done": False}})


def state(**fields: Any) -> str:
    """A reply to state."""
    return json.dumps({"type": "state", "data": fields})
