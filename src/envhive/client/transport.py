"""One WebSocket connection to a server, on picows: requests go out in order, replies come back in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit, urlunsplit
from weakref import WeakKeyDictionary, WeakSet

from picows import WSCloseCode, WSError, WSFrame, WSHandshakeError, WSListener, WSMsgType, WSTransport, ws_connect

from envhive.client.dialing import Dialing, by_way_of, is_of_proxy, proxy_for, why
from envhive.client.options import TransportOptions
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
from envhive.wire.silence import SILENT

_CLOSE_TIMEOUT: Final = 5.0
_NO_CODE: Final = 1005  # of a close frame
_SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"
_MOST_REDIRECTS: Final = 5
_ANSWERS: Final = {"reset": "observation", "step": "observation", "state": "state", "mcp": "mcp"}
_LAST_WORDS: Final = (
    SessionCapacityError,
    SessionExpiredError,
    SessionNotFoundError,
    EnvironmentFactoryError,
    DrainingError,
)
"""Errors after which there is no session on this connection."""


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
        self._overdue: set[int] = set()  # numbers of requests that nobody waits for any longer; all are 0 on layer 1
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
        dialing, proxy = Dialing(), proxy_for(url)
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
                    proxy=proxy,
                    # A redirect may lead to another server, which is not to see the token.
                    max_redirects=0 if options.has_credentials else _MOST_REDIRECTS,
                    socket_factory=dialing.dial,
                    logger_name=SILENT,
                )
                if listener._ws is not None and listener._hello is not None:
                    if resuming is not None:
                        listener._ws.send(WSMsgType.TEXT, encode_request("resume", {"token": resuming.token}))
                    await listener._hello
        except TimeoutError:
            dialing.hang_up()
            within = f"within {options.connect_timeout_s:g} s"
            raise ConnectError(f"Could not connect to {listener.url}{by_way_of(proxy)} {within}") from None
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
            reason = why(error, "proxy" if proxy else "server")
            raise ConnectError(f"Could not connect to {listener.url}{by_way_of(proxy)}: {reason}") from error
        except Exception as error:  # of a library that picows uses, with a tree of its own
            if not is_of_proxy(error):
                raise
            raise ConnectError(f"Could not connect to {listener.url}{by_way_of(proxy)}: {error}") from error
        if listener._ws is None:
            raise ConnectError(f"Could not connect to {listener.url}: the server hung up")
        _connected.setdefault(asyncio.get_running_loop(), WeakSet()).add(listener)
        return listener

    @property
    def is_open(self) -> bool:
        return self._ended is None

    @property
    def hangs(self) -> bool:
        """Whether a request that took too long still has no reply: the next would wait behind it."""
        return self.is_open and bool(self._overdue)

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
            self._overdue.add(number if self.lease is not None else 0)
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

    def leave(self) -> None:
        """Say goodbye, and do not wait until the server has let go of the session."""
        self.given_up = True
        _background.add(task := asyncio.get_running_loop().create_task(self.close()))
        task.add_done_callback(_background.discard)

    def abort(self) -> None:
        """Cut the connection without a word."""
        if self._ws is not None and not self._ws.is_disconnected:
            self._ws.disconnect(graceful=False)

    def left_behind(self, *, forked: bool) -> Self:
        """What is left of this connection when its event loop has ended, or stayed in the parent of a fork."""
        self._ws = None
        if forked:
            self.lease = None  # the session is the parent's
        self.was_cut, self.lost_at = True, time.monotonic()
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
        if error is not None:
            error.is_from_server = True
        if number is None and error is not None and self._by_id:
            asked = True
            self._by_id.pop(next(iter(self._by_id)))(None, error)  # what the server could not read has no number
        elif number is None:
            asked = self._line.deliver((kind, data), error)
            if not len(self._line):
                self._overdue.clear()
        else:
            asked = True  # if not any longer
            self._overdue.discard(number)
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
        number: Any = getattr(code, "value", code)
        said = f"The server closed the connection ({number}{': ' + reason if reason else ''})"
        if reason == StepTimeoutError.code:
            said += ": a step took too long and could not be stopped, and its session with it. reset() opens another"
        lost = ConnectionLostError(said, number or _NO_CODE, reason)
        self.end(MessageTooLargeError(said) if number == WSCloseCode.MESSAGE_TOO_BIG.value else lost)
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


_background: Final[set[asyncio.Task[None]]] = set()


async def _retrieve(transport: WSTransport) -> None:
    with contextlib.suppress(WSError):
        await transport.wait_disconnected()
