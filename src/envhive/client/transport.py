"""One WebSocket connection to a server, on picows: requests go out in order, replies come back in order."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from envhive.errors import (
    ConnectError,
    ConnectionLostError,
    EnvHiveError,
    InvalidJSONError,
    MessageTooLargeError,
    RequestTimeoutError,
    from_wire,
)
from envhive.wire.codec import decode_reply, encode_request
from envhive.wire.pairing import Pairing

_CLOSE_TIMEOUT: Final = 5.0
_MESSAGE_TOO_BIG: Final = 1009


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How to connect, and how long to wait for what."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float | None = 60.0
    max_message_size_mb: float = 100.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    headers: dict[str, str] = field(default_factory=dict)


def websocket_url(base_url: str) -> str:
    """Where the WebSocket of a server is.

    Example:
        >>> websocket_url("https://example.org/echo/")
        'wss://example.org/echo/ws'
    """
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    url = base_url if "://" in base_url else f"ws://{base_url}"
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"{base_url!r} is not the address of a server: it must look like http://host:port.")
    path = parts.path.rstrip("/")
    return urlunsplit(
        (schemes[parts.scheme], parts.netloc, path if path.endswith("/ws") else f"{path}/ws", parts.query, "")
    )


class Transport(WSListener):
    """An open connection. Made by `Transport.connect`."""

    def __init__(self, url: str, options: TransportOptions) -> None:
        self.url = url
        self._options = options
        self._ws: WSTransport | None = None
        self._line = Pairing()
        self._parts: list[bytes] = []
        self._ended: EnvHiveError | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def connect(cls, url: str, options: TransportOptions) -> Self:
        """Connect; raises `ConnectError`, which says what was tried and what went wrong."""
        listener = cls(url, options)
        pinging = options.ping_interval_s is not None
        interval = options.ping_interval_s or 0.0
        timeout = options.ping_timeout_s if options.ping_timeout_s is not None else interval
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                await ws_connect(
                    lambda: listener,
                    url,
                    enable_auto_ping=pinging,
                    auto_ping_idle_timeout=interval,
                    auto_ping_reply_timeout=min(timeout, interval),
                    websocket_handshake_timeout=None,
                    max_frame_size=int(options.max_message_size_mb * 1024 * 1024),
                    extra_headers=options.headers,
                    proxy=_proxy_for(url),
                    logger_name="envhive",
                )
        except TimeoutError:
            raise ConnectError(f"Could not connect to {url} within {options.connect_timeout_s:g} s") from None
        except (OSError, WSError, ValueError) as error:
            raise ConnectError(f"Could not connect to {url}: {_why(error)}") from error
        return listener

    @property
    def is_open(self) -> bool:
        return self._ended is None

    async def request(self, kind: str, data: Any = None, timeout: float | None = None) -> tuple[str, Any]:
        """Send a request and wait for its own reply; raises the error that the server answered with."""
        if self._ended is not None:
            raise self._ended
        assert self._ws is not None
        answer: asyncio.Future[tuple[str, Any]] = asyncio.get_running_loop().create_future()

        def settle(reply: Any, error: BaseException | None) -> None:
            if not answer.done():
                answer.set_result(reply) if error is None else answer.set_exception(error)

        frame = encode_request(kind, data)
        ticket = self._line.expect(settle)
        self._ws.send(WSMsgType.TEXT, frame)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(f"No reply to {kind} within {timeout:g} s") from None
        finally:
            ticket.abandon()  # after a time-out or a cancellation the late reply is nobody's

    async def close(self) -> None:
        """Say goodbye and wait, for a moment, until the server has let go of the session."""
        if self._ws is None:
            return
        if self._ended is None:
            self._end(ConnectionLostError("The client was closed"))
            with contextlib.suppress(WSError, OSError):
                self._ws.send(WSMsgType.TEXT, encode_request("close"))
                self._ws.send_close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._closed.wait()
        except TimeoutError:
            self._ws.disconnect(graceful=False)

    # What picows tells.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self._server_closes(transport, frame)
            return
        if frame.msg_type == WSMsgType.PONG:
            return
        payload = frame.get_payload_as_bytes()
        if not frame.fin:
            self._parts.append(payload)
            return
        if self._parts:
            payload = b"".join((*self._parts, payload))
            self._parts = []
        self._receive(payload)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._end(ConnectionLostError(f"The connection to {self.url} was lost"))
        self._closed.set()

    def pause_writing(self) -> None:
        """Sending waits in picows's buffer; replies are what is waited for."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def _receive(self, payload: bytes) -> None:
        try:
            kind, data = decode_reply(payload)
        except InvalidJSONError as invalid:
            self._line.deliver(None, invalid)
            return
        error = from_wire(data) if kind == "error" else None
        if not self._line.deliver((kind, data), error) and error is not None:
            self._end(error)  # not a reply: the server says why it is about to close

    def _server_closes(self, transport: WSTransport, frame: WSFrame) -> None:
        code, reason = frame.get_close_code(), frame.get_close_reason() or ""
        number = getattr(code, "value", code)
        said = f"The server closed the connection ({number}{': ' + reason if reason else ''})"
        self._end(MessageTooLargeError(said) if number == _MESSAGE_TOO_BIG else ConnectionLostError(said))
        transport.send_close(code)
        transport.disconnect()

    def _end(self, error: EnvHiveError) -> None:
        if self._ended is None:
            self._ended = error
        self._line.fail_all(self._ended)


def _why(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused. Is the server running there?"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a server, never for one on this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or _is_loopback(host):
        return None
    import urllib.request  # 15 ms to import, and seldom needed

    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get("https" if url.startswith("wss") else "http") or proxies.get("all")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
