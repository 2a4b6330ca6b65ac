"""One WebSocket connection to a server, on picows: requests go out in order, replies come back in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit, urlunsplit
from weakref import WeakKeyDictionary, WeakSet

from picows import WSCloseCode, WSError, WSFrame, WSHandshakeError, WSListener, WSMsgType, WSTransport, ws_connect

from envhive.errors import (
    BadReplyError,
    ConnectError,
    ConnectionLostError,
    DrainingError,
    EnvHiveError,
    EnvironmentFactoryError,
    InvalidJSONError,
    MessageTooLargeError,
    RequestTimeoutError,
    SessionCapacityError,
    SessionExpiredError,
    SessionNotFoundError,
    StepTimeoutError,
    UnauthorizedError,
    from_wire,
)
from envhive.wire.codec import decode_reply, encode_request
from envhive.wire.messages import LAYER_2
from envhive.wire.pairing import OnReply, Pairing

_CLOSE_TIMEOUT: Final = 5.0
_SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"
_TOKEN: Final = re.compile(r"[!-~]+")
_MOST_REDIRECTS: Final = 5
_NOT_IN_HEADERS: Final = {"\r", "\n", "\0"}
_ANSWERS: Final = {"reset": "observation", "step": "observation", "state": "state", "mcp": "mcp"}
_LAST_WORDS: Final = (
    SessionCapacityError,
    SessionExpiredError,
    SessionNotFoundError,
    EnvironmentFactoryError,
    DrainingError,
)
"""Errors after which there is no session on this connection."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How to connect, and how long to wait for what."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float | None = 60.0
    max_message_size_mb: float = 100.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str) or _NOT_IN_HEADERS & {*name, *value}:
                raise ValueError(f"The header {name!r} is not a name and a value in one line of text.")

    @property
    def has_credentials(self) -> bool:
        return any(name.lower() == "authorization" for name in self.headers)

    def with_token(self, token: str | None) -> Self:
        """The same with a token, or that of `ENVHIVE_TOKEN`; an `Authorization` among the headers wins over it."""
        token = os.environ.get("ENVHIVE_TOKEN", "").strip() if token is None else token
        if not token or self.has_credentials:
            return self
        if not _TOKEN.fullmatch(token):
            raise ValueError("The token must be one word of visible ASCII characters.")
        return replace(self, headers={**self.headers, "Authorization": f"Bearer {token}"})


def websocket_url(base_url: str) -> str:
    """Where the WebSocket of a server is.

    Example:
        >>> websocket_url("https://example.org/echo/")
        'wss://example.org/echo/ws'
    """
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    try:
        parts = urlsplit(base_url if "://" in base_url else f"ws://{base_url}")
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, an address without its closing bracket
        valid = False
    if not valid:
        raise ValueError(f"{base_url!r} is not the address of a server: it must look like http://host:port.")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, parts.query, ""))


def _with_query(url: str, **more: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, urlencode(more))))))


@dataclass(frozen=True, slots=True)
class Lease:
    """What a server of layer 2 gives a client to come back with."""

    session_id: str
    token: str
    seconds: float

    @classmethod
    def of(cls, hello: dict[str, Any]) -> Self | None:
        match hello:
            case {"session_id": str(session_id), "resume_token": str(token), "lease_s": int(seconds) | float(seconds)}:
                return cls(session_id, token, float(seconds))
        return None


_connected: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[Transport]]] = WeakKeyDictionary()


async def say_goodbye() -> None:
    """Close whatever is open on this event loop."""
    transports = list(_connected.get(asyncio.get_running_loop(), ()))
    await asyncio.gather(*(transport.close() for transport in transports if transport.is_open))


class Transport(WSListener):
    """An open connection. Made by `Transport.connect`."""

    def __init__(self, url: str, options: TransportOptions) -> None:
        self.url = url.partition("?")[0]  # for messages, which are not to show what may be a secret
        self.lease: Lease | None = None
        """Given by a server that speaks layer 2, in its hello."""
        self.resumed = False
        """True if the server says that it is the session asked for."""
        self.was_cut = False
        """True if the connection ended without a word from the server."""
        self.lost_at = 0.0
        self.given_up = False
        """True if there is no way back to its session."""
        self._hello: asyncio.Future[None] | None = None  # where layer 2 is agreed
        self._on_queued: Callable[[float], None] | None = None
        self._by_id: dict[int, OnReply] = {}
        self._ws: WSTransport | None = None
        self._line = Pairing()
        self._parts: list[bytes] = []
        self._parts_size = 0
        self._max_size = int(options.max_message_size_mb * 1024 * 1024)
        self._ended: EnvHiveError | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def connect(cls, url: str, options: TransportOptions, resuming: Lease | None = None) -> Self:
        """Connect; raises `ConnectError` or `UnauthorizedError`, which say what was tried and what went wrong.

        A server that speaks layer 2 says hello, or why there is no session, which is raised.
        """
        listener = cls(url, options)
        address = url if resuming is None else _with_query(url, session=resuming.session_id)
        dialing = _Dialing()
        pinging = options.ping_interval_s is not None
        interval = options.ping_interval_s or 0.0
        timeout = options.ping_timeout_s if options.ping_timeout_s is not None else interval
        try:
            async with asyncio.timeout(options.connect_timeout_s) as limit:
                listener._on_queued = lambda seconds: limit.reschedule(
                    asyncio.get_running_loop().time() + seconds + options.connect_timeout_s
                )
                await ws_connect(
                    lambda: listener,
                    address,
                    enable_auto_ping=pinging,
                    auto_ping_idle_timeout=interval,
                    auto_ping_reply_timeout=min(timeout, interval),
                    websocket_handshake_timeout=None,
                    max_frame_size=listener._max_size,
                    extra_headers={"Sec-WebSocket-Protocol": LAYER_2, **options.headers},
                    proxy=_proxy_for(url),
                    # A redirect may lead to another server, which is not to see the token.
                    max_redirects=0 if options.has_credentials else _MOST_REDIRECTS,
                    socket_factory=dialing.dial,
                    logger_name=_silent,
                )
                if listener._ws is not None and listener._hello is not None:
                    if resuming is not None:
                        listener._ws.send(WSMsgType.TEXT, encode_request("resume", {"token": resuming.token}))
                    await listener._hello
        except TimeoutError:
            dialing.hang_up()
            raise ConnectError(f"Could not connect to {listener.url} within {options.connect_timeout_s:g} s") from None
        except asyncio.CancelledError:
            dialing.hang_up()
            raise
        except (OSError, WSError, ValueError) as error:
            if isinstance(error, WSHandshakeError) and error.response and error.response.status in (401, 403):
                # What an app answers, too, that has no such path.
                perhaps = "there is no environment at this path, or " if error.response.status == 403 else ""
                raise UnauthorizedError(
                    f"{listener.url} refused the connection (HTTP {error.response.status:d}): {perhaps}it wants a "
                    f"token that it knows. Pass it as token=... or set ENVHIVE_TOKEN."
                ) from error
            raise ConnectError(f"Could not connect to {listener.url}: {_why(error)}") from error
        if listener._ws is None:
            raise ConnectError(f"Could not connect to {listener.url}: the server hung up")
        _connected.setdefault(asyncio.get_running_loop(), WeakSet()).add(listener)
        return listener

    @property
    def is_open(self) -> bool:
        return self._ended is None

    async def request(
        self,
        kind: str,
        data: Any = None,
        timeout: float | None = None,
        *,
        number: int = 0,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and return the data of its own reply; raises the error that the server answered with.

        On layer 2 the request carries its `number`, and `timeout_s`, which the server keeps.
        """
        if self._ended is not None:
            raise copy(self._ended)  # one each: an exception carries the traceback of its raising
        assert self._ws is not None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(reply: Any, error: BaseException | None) -> None:
            if not answer.done():
                answer.set_result(reply) if error is None else answer.set_exception(error)

        if self.lease is None:
            frame = encode_request(kind, data)
            abandon = self._line.expect(settle).abandon
        else:
            frame = encode_request(kind, data, id=number, timeout_s=timeout_s)
            self._by_id[number] = settle
            abandon = functools.partial(self._forget, number)
        self._ws.send(WSMsgType.TEXT, frame)
        try:
            async with asyncio.timeout(timeout):
                answered, reply = await answer
        except TimeoutError as error:
            if isinstance(error, EnvHiveError):
                raise  # the server's answer, that the step took too long
            raise RequestTimeoutError(f"No reply to {kind} within {timeout:g} s") from None
        finally:
            abandon()  # after a time-out or a cancellation the late reply is nobody's
        if answered != _ANSWERS[kind]:
            raise self._out_of_step(BadReplyError(f"The server answered {kind} with {answered!r}"))
        return reply

    def _forget(self, number: int) -> None:
        self._by_id.pop(number, None)

    async def close(self) -> None:
        """Say goodbye and wait, for a moment, until the server has let go of the session."""
        if self._ws is None:
            return
        if self._ended is None:
            self.end(ConnectionLostError("The client was closed"))
            self._ws.send(WSMsgType.TEXT, encode_request("close"))
            self._ws.send_close(WSCloseCode.OK)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._closed.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Cut the connection without a word."""
        if self._ws is not None and not self._ws.is_disconnected:
            self._ws.disconnect(graceful=False)

    def left_behind(self) -> Self:
        """What is left of this connection when its event loop has ended, or stayed in the parent of a fork."""
        self._ws = None
        self.lease = None  # the session is the parent's, if there is one
        self._ended = ConnectionLostError("The event loop of this connection has ended")
        return self

    def end(self, error: EnvHiveError) -> None:
        """There will be no more replies, because of `error`: the first reason counts."""
        if self._ended is None:
            # A message that was too large is its own sender's mistake; for later ones the connection is lost.
            self._ended = ConnectionLostError(str(error)) if isinstance(error, MessageTooLargeError) else error
        self._line.fail_all(lambda: copy(error))
        while self._by_id:
            self._by_id.popitem()[1](None, copy(error))
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(copy(error))

    # What picows tells.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        if transport.response.headers.get(_SUBPROTOCOL) == LAYER_2:
            self._hello = asyncio.get_running_loop().create_future()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if _sent_code(transport) == WSCloseCode.MESSAGE_TOO_BIG:
            # picows has given up on a frame. What comes after its head may be anything, or the server's goodbye.
            self._too_large()
            self.abort()
        elif frame.msg_type == WSMsgType.CLOSE:
            self._server_closes(transport, frame)
        elif frame.msg_type != WSMsgType.PONG and not transport.is_close_frame_sent:
            self._parts.append(frame.get_payload_as_bytes())
            self._parts_size += frame.payload_size
            if self._parts_size > self._max_size:
                self._parts = []
                self._too_large()
                self._hang_up(WSCloseCode.MESSAGE_TOO_BIG)
            elif frame.fin:
                payload = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts, self._parts_size = [], 0
                self._receive(payload)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        code = _sent_code(transport)
        if code == WSCloseCode.MESSAGE_TOO_BIG:
            self._too_large()
        self.was_cut = self._ended is None
        self.lost_at = time.monotonic()
        self.end(ConnectionLostError(f"The connection to {self.url} was lost"))
        self._closed.set()
        if code is not None and code != WSCloseCode.OK:
            # picows keeps the exception that made it give up for whoever waits, and nobody would.
            _background.add(task := asyncio.get_running_loop().create_task(_retrieve(transport)))
            task.add_done_callback(_background.discard)

    def pause_writing(self) -> None:
        """Sending waits in picows's buffer; replies are what is waited for."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def _receive(self, payload: bytes) -> None:
        try:
            message = decode_reply(payload)
        except InvalidJSONError as invalid:
            if len(self._line) or self._by_id:
                self._out_of_step(BadReplyError(f"The server's reply makes no sense: {invalid}"))
            return  # and what nobody asked for is dropped
        kind, data, number = message["type"], message.get("data"), message.get("id")
        if kind == "hello" and self._hello is not None and not self._hello.done():
            self.lease = Lease.of(message)
            self.resumed = message.get("resumed") is True
            self._hello.set_result(None)
            self._on_queued = None
            return
        if kind == "queued" and self._on_queued is not None and self._hello is not None and not self._hello.done():
            seconds = message.get("admission_timeout_s")
            self._on_queued(seconds if isinstance(seconds, (int, float)) else 0.0)
            return
        error = from_wire(data) if kind == "error" else None
        if number is None and error is not None and self._by_id:
            asked = True
            self._by_id.pop(next(iter(self._by_id)))(None, error)  # what the server could not read has no number
        elif number is None:
            asked = self._line.deliver((kind, data), error)
        else:
            asked = True  # if not any longer
            if (on_reply := self._by_id.pop(number, None)) is not None:
                on_reply((kind, data), error)
        if error is not None and (not asked or isinstance(error, _LAST_WORDS)):
            self.end(error)  # the server says why there is no session
            self._hang_up(WSCloseCode.OK)

    def _too_large(self) -> None:
        self.end(
            MessageTooLargeError(
                f"The server's reply is larger than {self._max_size} bytes, which is this client's max_message_size_mb"
            )
        )

    def _out_of_step(self, error: BadReplyError) -> BadReplyError:
        """What came is no reply. Whose is the next one? Nobody can tell, so there will be none."""
        self.end(error)
        self.abort()
        return copy(error)

    def _server_closes(self, transport: WSTransport, frame: WSFrame) -> None:
        code, reason = frame.get_close_code(), frame.get_close_reason() or ""
        number = getattr(code, "value", code)
        said = f"The server closed the connection ({number}{': ' + reason if reason else ''})"
        if reason == StepTimeoutError.code:
            said += ": a step took too long and could not be stopped, and its session with it. reset() opens another"
        self.end(
            MessageTooLargeError(said) if number == WSCloseCode.MESSAGE_TOO_BIG.value else ConnectionLostError(said)
        )
        self._hang_up(WSCloseCode.OK if number == 0 else code)

    def _hang_up(self, code: WSCloseCode) -> None:
        assert self._ws is not None
        self._ws.send_close(code)
        self._ws.disconnect()


def _sent_code(transport: WSTransport) -> WSCloseCode | None:
    """What this side closed the WebSocket with, if it has."""
    if not transport.is_close_frame_sent or transport.close_handshake is None:
        return None
    return None if transport.close_handshake.sent is None else transport.close_handshake.sent.code


class _Dialing:
    """Makes the socket of a connection, and can hang up while picows still waits for the handshake."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    async def dial(self, url: Any) -> socket.socket:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        look_up = functools.partial(socket.getaddrinfo, url.host, url.port, type=socket.SOCK_STREAM)
        if url.host == "localhost" or _is_address(url.host):
            addresses = look_up()  # needs no network, so it does not wait
        else:
            addresses = await loop.run_in_executor(_resolver, look_up)
        for family, kind, protocol, _, address in addresses:
            candidate = socket.socket(family, kind, protocol)
            candidate.setblocking(False)
            try:
                await loop.sock_connect(candidate, address)
            except OSError as error:
                candidate.close()
                failure = failure or error
            except asyncio.CancelledError:
                candidate.close()
                raise
            else:
                self._socket = candidate
                return candidate
        raise failure or OSError(f"{url.host} has no address")

    def hang_up(self) -> None:
        """Shut the socket down; whoever reads from it sees the end and closes it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _make_resolver() -> None:
    """One thread for all look-ups of all clients, started with the first that needs the network."""
    global _resolver
    _resolver = ThreadPoolExecutor(1, thread_name_prefix="envhive-dns")


_resolver: ThreadPoolExecutor
_make_resolver()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_resolver)  # a forked child has the pool, but not its thread

_background: Final[set[asyncio.Task[None]]] = set()


async def _retrieve(transport: WSTransport) -> None:
    with contextlib.suppress(WSError):
        await transport.wait_disconnected()


class _SilentLogger:
    """picows logs what the errors here say already."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return False

    def log(self, *args: Any, **kwargs: Any) -> None:
        pass

    debug = info = warning = error = exception = log


_silent: Final[Any] = _SilentLogger()


def _why(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused. Is the server running there?"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a server, never for one on this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback):
        return None
    import urllib.request  # 15 ms to import, and seldom needed

    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get("https" if url.startswith("wss") else "http") or proxies.get("all")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
