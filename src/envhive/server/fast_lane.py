"""WebSocket frames through picows: the hot path.

Once `upgrade.py` has taken a connection over from uvicorn, ASGI is out of the picture:

    socket bytes ──► picows ──► FastConnection.on_ws_frame ──► Session.receive ──► ... ──► FastConnection.send
"""

from __future__ import annotations

import asyncio
import logging
import select
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)

from envhive.server.auth import Owner
from envhive.server.entrance import Entrance
from envhive.server.hive import Hive
from envhive.server.outlet import GOING_AWAY, INTERNAL_ERROR, NORMAL_CLOSURE
from envhive.server.protocols import Deaf, Lingering, PicowsProtocol, ReadingLess
from envhive.server.session import Session

logger: Final = logging.getLogger("envhive.server")

_TEXT: Final = WSMsgType.TEXT
_BINARY: Final = WSMsgType.BINARY
_CONTINUATION: Final = WSMsgType.CONTINUATION
_CLOSE: Final = WSMsgType.CLOSE
_PING: Final = WSMsgType.PING
_DATA: Final = (_TEXT, _BINARY, _CONTINUATION)

_LINGER_S: Final = 5.0
"""How long a closed connection waits for the peer's own close before it is cut."""
_LAST_LINGER_S: Final = 1.0
"""The same when the server ends: it is not to overrun its grace for a peer that says nothing."""
_MOST_TOGETHER: Final = 64
"""Frames that are read before they are handled and answered. More would push one another's sessions out of the caches:
with 512 sessions a step costs a tenth less CPU than when all are read first."""
_LONGEST_DELAY_S: Final = 0.001
"""How long a reply may wait for the others of the same turn of the event loop."""
_LONGEST_REASON: Final = 123
"""Bytes that a close frame has room for."""
_HUNG_UP: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)  # the last is Linux's
_NOBODY: Final = asyncio.Protocol()


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What is left to do of an accepted upgrade: answer it, and read on."""

    key: str
    headers: list[tuple[str, str]]
    early: bytes
    layer: int = 1
    """The form of the protocol that was agreed on."""
    session: str | None = None
    """The session that a client wants to go on with."""


class Turn:
    """What arrives and leaves in one turn of the event loop, over all connections.

    First all frames are read, then all are handled, then all replies are sent. Each kind of work finds its code
    in the processor's caches, and a client program with many sessions is woken once, not for every reply: with 64
    sessions of one program a step costs a third less CPU than when each reply is sent at once.
    """

    __slots__ = ("_loop", "due", "is_handling", "received", "replies")

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Turn]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.proxy(loop)
        self.is_handling = False
        """Whether what was received is being handled: it sees to the replies that are given meanwhile."""
        self.received: list[tuple[WSTransport, Session, str]] = []
        self.replies: list[tuple[WSTransport, bytes]] = []
        self.due = 0.0
        """When replies are to go even though there are more to come: the steps of this turn take long."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Turn:
        return cls._all.get(loop) or cls._all.setdefault(loop, cls(loop))

    def begin(self) -> None:
        """The first frame has been received."""
        self._loop.call_soon(self.handle)

    def reply(self, transport: WSTransport, frame: bytes) -> None:
        """Send a reply that came later, together with others."""
        self.replies.append((transport, frame))
        together = len(self.replies)
        if together == 1:
            self.due = monotonic() + _LONGEST_DELAY_S
            self._loop.call_soon(self.flush)
        elif not together % 8 and monotonic() > self.due:
            self.flush()

    def handle(self) -> None:
        """Handle what was received, and send what is answered by then: another turn of the loop would cost 1 µs."""
        received, self.received = self.received, []
        self.due = monotonic() + _LONGEST_DELAY_S
        self.is_handling = True
        try:
            for ws, session, text in received:
                try:
                    if (reply := session.take(text)) is not None:
                        self.replies.append((ws, reply))
                except Exception:  # whatever it is, the others are to be handled too
                    logger.exception("Session %s failed", session.id, extra=session.log_fields())
                    session.end(INTERNAL_ERROR, "internal error", because="failed")
                if session.last_active > self.due:
                    self.due = session.last_active + _LONGEST_DELAY_S
                    self.flush()
        finally:
            self.is_handling = False
            if self.replies:
                self.flush()

    def flush(self) -> None:
        """Send the replies."""
        replies, self.replies = self.replies, []
        text = _TEXT
        for ws, frame in replies:
            try:
                ws.send(text, frame)
            except Exception:  # whatever it is, the others are to be sent too
                logger.exception("A reply could not be sent")


class FastConnection(Entrance, WSListener):
    """One WebSocket connection on picows: the outlet of its session."""

    __slots__ = (
        "_close_received",
        "_connections",
        "_early",
        "_headers",
        "_held",
        "_hive",
        "_layer",
        "_listening",
        "_parts",
        "_parts_kind",
        "_refusal",
        "_reserved",
        "_session",
        "_ticket",
        "_timer",
        "_transport",
        "_turn",
        "_wanted",
        "_ws",
        "close_sent",
        "heard",
        "owner",
        "pinged_at",
        "quiet_since",
    )

    def __init__(self, hive: Hive, owner: Owner | None, upgrade: Upgrade, *, reserved: bool = False) -> None:
        self._hive = hive
        self.owner = owner
        self._layer = upgrade.layer
        self._wanted = upgrade.session
        self._turn = Turn.of(asyncio.get_running_loop())
        self._reserved = reserved
        self._session: Session | None = None
        self._ticket: int | None = None
        self._early: list[str | bytes] | None = None
        self._ws: WSTransport | None = None
        self._transport: asyncio.Transport | None = None
        self._connections: set[Any] | None = None
        self._headers: Sequence[tuple[str, str]] = ()
        self._parts: bytearray | None = None
        self._parts_kind = _TEXT
        self._refusal: tuple[int, str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.close_sent = False
        self._close_received = False
        self.heard = True
        self._listening = True
        self._held = False
        self.quiet_since = 0.0
        self.pinged_at = 0.0

    def start(self, transport: asyncio.Transport, upgrade: Upgrade, connections: set[Any]) -> None:
        """Answer the upgrade and read frames from `transport` from now on."""
        self._transport = transport
        self._connections = connections
        connections.add(self)
        self._headers = upgrade.headers
        protocol = PicowsProtocol(self, self._hive.config.max_message_size)
        protocol.connection_made(Lingering(self, transport))
        # uvicorn has read and checked the request; picows wants one too, and is strict about its form.
        protocol.feed(
            b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + upgrade.key.encode() + b"\r\n\r\n"
        )
        if upgrade.early:
            protocol.feed(upgrade.early)
        # uvloop keeps the last plain protocol's method when it is given a buffered one: 4 kB of uvicorn's a session.
        transport.set_protocol(_NOBODY)
        transport.set_protocol(protocol)

    # What picows tells.

    def answer(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        headers, self._headers = self._headers, ()
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(list(headers)), self)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ws = transport
        # Nobody asks picows for the headers again, and they would take 1.2 kB for as long as the session lives.
        transport.request.headers.clear()
        transport.response.headers.clear()
        self._hive.heartbeat.watch(self)
        self._come_in(reserved=self._reserved)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.heard = True
        kind = frame.msg_type
        session = self._session
        if session is None or transport.is_close_frame_sent:
            if kind is _PING:
                self._answer_ping(transport, frame)
            elif kind is _CLOSE:
                self._peer_closes(frame)
            elif kind in _DATA and not transport.is_close_frame_sent:
                self._receive_without_session(kind, frame)
        elif kind is _TEXT and frame.fin and self._parts is None:
            try:
                text = frame.get_payload_as_utf8_text()
            except UnicodeDecodeError:
                self._turn.handle()  # which came before it
                self._fail(WSCloseCode.INVALID_TEXT, "invalid UTF-8")
                return
            turn = self._turn
            turn.received.append((transport, session, text))
            waiting = len(turn.received)
            if waiting == 1:
                turn.begin()
            elif waiting >= _MOST_TOGETHER:
                turn.handle()
                if not frame.last_in_buffer:
                    self._read_less()  # a flood: the session stops reading now, not when all that has arrived is read
        elif kind is _PING:
            self._answer_ping(transport, frame)
        else:
            self._turn.handle()  # which came before it
            if kind is _CLOSE:
                self._peer_closes(frame)
            elif kind is _TEXT or kind is _BINARY or kind is _CONTINUATION:
                self._receive_part(session, kind, frame)

    def _answer_ping(self, transport: WSTransport, frame: WSFrame) -> None:
        if not self._held and not transport.is_close_frame_sent:  # or answers that nobody reads would fill the memory
            transport.send_pong(frame.get_payload_as_bytes())
        if not frame.last_in_buffer:
            self._read_less()  # it may be a flood

    def on_ws_disconnected(self, transport: WSTransport | None) -> None:
        self._hive.heartbeat.forget(self)
        if self._connections is not None:
            self._connections.discard(self)
        self._stop_timer()
        self._leave_line()
        session, self._session = self._session, None
        if session is not None:
            self._turn.handle()  # it may have been the last thing that the peer did
            session.detach()
        self._transport = self._ws = None

    @property
    def excused(self) -> bool:
        """Its requests wait for the environment; if they wait for the peer to read replies, that is no excuse."""
        return not self._listening and not self._held

    def pause_writing(self) -> None:
        self._held = True
        if self._session is not None:
            self._session.hold()

    def resume_writing(self) -> None:
        self._held = False
        if self._session is not None:
            self._session.unhold()

    def _receive_without_session(self, kind: WSMsgType, frame: WSFrame) -> None:
        if self._refusal is None and (kind is _CONTINUATION or not frame.fin):
            self._fail(WSCloseCode.POLICY_VIOLATION, "no message in parts before there is a session")
        elif frame.fin:  # a refused client has asked when its last part is there
            payload = frame.get_payload_as_bytes()
            self._receive_early(payload.decode(errors="replace") if kind is _TEXT else payload)

    def _receive_part(self, session: Session, kind: WSMsgType, frame: WSFrame) -> None:
        """Messages in several frames, and binary ones."""
        if kind is not _CONTINUATION:
            if self._parts is not None:
                self._fail(WSCloseCode.PROTOCOL_ERROR, "a new message before the last one ended")
                return
            self._parts, self._parts_kind = bytearray(), kind
        elif self._parts is None:
            self._fail(WSCloseCode.PROTOCOL_ERROR, "a continuation of nothing")
            return
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._hive.config.max_message_size:
            self._fail(WSCloseCode.MESSAGE_TOO_BIG, "message too big")
        elif not frame.fin:
            if not frame.last_in_buffer:
                self._read_less()  # tiny parts, by the thousand: other sessions have their turn in between
        else:
            parts, self._parts = self._parts, None
            if self._parts_kind is _BINARY:
                session.receive_binary(bytes(parts))
                return
            try:
                session.receive(parts.decode())
            except UnicodeDecodeError:
                self._fail(WSCloseCode.INVALID_TEXT, "invalid UTF-8")

    def _peer_closes(self, frame: WSFrame) -> None:
        self._close_received = True
        if self.close_sent:
            self._hang_up()
        elif self._session is None:
            self.close(NORMAL_CLOSURE, "")
        elif self._session.outlives_connections or (self._layer == 2 and frame.get_close_code() is not WSCloseCode.OK):
            # Not the client's own wish: a proxy on the way ends the connection. The session waits for its client.
            session, self._session = self._session, None
            session.detach()
            self.close(NORMAL_CLOSURE, "")
        else:
            # The peer waits for our close: give it when the environment is closed and the place is free,
            # so that a client that comes straight back finds room.
            session, self._session = self._session, None
            session.end()
            self._cut_off_in(_LINGER_S)

    def _fail(self, code: WSCloseCode, reason: str) -> None:
        self._parts = None
        session, self._session = self._session, None
        self.close(code.value, reason)
        if session is not None:
            session.detach()

    # What a session, the heartbeat and the server want.

    def send(self, frame: bytes) -> None:
        if self._ws is None:
            return
        turn = self._turn
        if turn.is_handling:
            turn.replies.append((self._ws, frame))
        else:
            turn.reply(self._ws, frame)

    def close(self, code: int, reason: str) -> None:
        """Say goodbye, and hang up when the peer has said it too: closing at once could destroy what was sent."""
        if self._ws is None or self.close_sent:
            return
        self.close_sent = True
        self._refusal = None
        self._leave_line()
        self.resume_reading()  # or the peer's own close would never be seen
        self._turn.flush()
        self._ws.send_close(code, reason.encode()[:_LONGEST_REASON].decode(errors="ignore"))  # type: ignore[arg-type]
        if self._close_received:
            self._hang_up()
        else:
            self._cut_off_in(_LINGER_S if self._hive.closing_at is None else _LAST_LINGER_S)

    def drop(self) -> None:
        self._session = None
        self.abort("replaced by another connection")

    def _has_left(self) -> bool:
        if self._transport is None or self._transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _HUNG_UP)
        return bool(poll.poll(0))

    def _send_elsewhere(self) -> None:
        self.abort("it could not be handed to the worker that has the session")  # and may get there next time

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._listening = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._listening and self._transport is not None and not self._transport.is_closing():
            self._listening = True
            self._transport.resume_reading()

    def _read_less(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            protocol = self._transport.get_protocol()
            if isinstance(protocol, PicowsProtocol):
                self._transport.set_protocol(ReadingLess(protocol))

    def ping(self) -> None:
        if self._ws is not None:
            self._ws.send_ping()

    def abort(self, reason: str) -> None:
        """The peer is not there: cut the connection without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    def shutdown(self) -> None:
        """uvicorn is shutting down: answer what is running, then go."""
        if self._session is not None:
            self._session.retire(GOING_AWAY, "server shutting down")
        else:
            self.close(GOING_AWAY, "server shutting down")

    def broken(self) -> None:
        """The peer broke the WebSocket protocol; picows has sent the close frame that says how.

        Send no more, but let the peer finish sending: closing on unread data would take back the close frame.
        """
        self.close_sent = True
        self._leave_line()
        session, self._session = self._session, None
        if session is not None:
            session.detach()
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.set_protocol(Deaf(self))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._cut_off_in(_LINGER_S)

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _cut_off_in(self, seconds: float) -> None:
        self._set_timer(seconds, self.abort, "closing took too long")

    def _set_timer(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        if self._transport is not None:
            super()._set_timer(seconds, callback, *args)
