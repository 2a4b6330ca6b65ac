"""From uvicorn to the fast lane: how an accepted upgrade becomes a connection on picows, here or in another worker.

An upgrade passes through the ASGI app once, so routing, mounts, middleware and auth keep working. The
endpoint finds `TakeOver` among the scope's extensions, takes it and accepts; from then on picows has the socket:

    HttpProtocol ── upgrade ──► Upgrading ── ASGI ──► endpoint ── accept ──► Upgrading ──► FastConnection

An endpoint that does not take over (an app's own WebSocket route) is served by uvicorn as usual.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from envhive.server.asgi_lane import TAKE_OVER
from envhive.server.auth import Owner
from envhive.server.crew import Parcel, current_crew
from envhive.server.fast_lane import FastConnection, Upgrade
from envhive.server.hive import Hive

logger: Final = logging.getLogger("envhive.server")

_EARLY_LIMIT: Final = 64 * 1024
"""Bytes that a client may send before its upgrade is answered."""
_NO_CODE: Final = 1005
_ABNORMAL: Final = 1006
HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


class TakeOver:
    """What the fast lane offers an endpoint: take it before accepting, and the frames go to the hive directly."""

    __slots__ = ("hive", "layer", "owner", "receive", "session")

    def __init__(self, receive: Any) -> None:
        self.hive: Hive | None = None
        self.owner: Owner | None = None
        self.layer = 1
        self.session: str | None = None
        self.receive = receive
        """The server's own `receive`: if the endpoint sees another, some middleware wants to see the frames."""

    def take(self, hive: Hive, owner: Owner | None, layer: int, session: str | None) -> None:
        self.hive, self.owner, self.layer, self.session = hive, owner, layer, session


def begin_upgrade(http: HttpToolsProtocol, early: bytes) -> bool:
    """Ask the app about an upgrade that `http` has parsed. False if it is not in order, and uvicorn is to say why."""
    key = _key_of(http)
    if key is None:
        return False
    Upgrading(http, key, early).begin()
    return True


def _key_of(http: HttpToolsProtocol) -> bytes | None:
    """The key of an upgrade that has all that an upgrade must have, once."""
    if http.scope["method"] != "GET" or http.scope["http_version"] != "1.1":
        return None
    if not http.url.startswith(b"/") or not http.url.isascii():
        return None
    found: dict[bytes, bytes] = {}
    for name, value in http.headers:
        if name in (b"sec-websocket-key", b"sec-websocket-version", b"upgrade"):
            if name in found:
                return None
            found[name] = value
    key = found.get(b"sec-websocket-key", b"")
    return key if found.get(b"sec-websocket-version") == b"13" and _KEY.fullmatch(key) else None


class Upgrading(asyncio.Protocol):
    """An upgrade on its way through the app: what it receives and sends, until the answer is known.

    uvicorn's own protocol is made only where it is needed. It parses the request anew, and to do so for every session
    was a fifth of what opening one costs.
    """

    def __init__(self, http: HttpToolsProtocol, key: bytes, early: bytes) -> None:
        self.http = http
        self.early = bytearray(early)
        self.scope = _scope_of(http)
        self._key = key
        self._offer: TakeOver | None = TakeOver(self._receive)
        self.scope["extensions"][TAKE_OVER] = self._offer
        self.is_announced = False
        """Whether the app has heard that there is a connection."""
        self._is_taken_over = False
        self._plain: UvicornProtocol | None = None

    def begin(self) -> None:
        http = self.http
        http.connections.discard(http)
        http.connections.add(self)  # type: ignore[arg-type]  # a set of what has a `shutdown`
        http.transport.set_protocol(self)
        task = http.loop.create_task(self._ask())
        http.tasks.add(task)
        task.add_done_callback(http.tasks.discard)

    # What the transport and the server tell.

    def data_received(self, data: bytes) -> None:
        """Frames of a client that does not wait for the answer."""
        self.early += data
        if len(self.early) > _EARLY_LIMIT:
            self.http.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_to_uvicorn().connection_lost(exc)

    def shutdown(self) -> None:
        self._leave_to_uvicorn().shutdown()

    # What the app sees.

    async def _ask(self) -> None:
        failure, result = None, None
        try:
            result = await self.http.app(self.scope, self._receive, self._send)
        except BaseException as error:  # uvicorn's protocol knows what to do with each
            failure = error
        try:
            if not self._is_taken_over:
                await self._leave_to_uvicorn().end(result, failure)
                self._let_go()
            elif failure is not None and not isinstance(failure, ClientDisconnected):
                logger.error("The app failed after it had accepted a session's connection", exc_info=failure)
        finally:
            if failure is not None:
                failure.__traceback__ = None  # it holds the frames that hold the failure

    async def _receive(self) -> Any:
        if not self.is_announced:
            self.is_announced = True
            return {"type": "websocket.connect"}
        if self._is_taken_over:
            return {"type": "websocket.disconnect", "code": _NO_CODE}
        return await self._leave_to_uvicorn().receive()

    async def _send(self, message: Any) -> None:
        if self._is_taken_over:
            raise ClientDisconnected
        if message["type"] != "websocket.accept" or self._offer is None or self._offer.hive is None:
            await self._leave_to_uvicorn().send(message)
        elif self.http.transport.is_closing():
            raise ClientDisconnected
        else:
            self._take_over(self._offer, self._offer.hive, message)

    # How it ends.

    def _leave_to_uvicorn(self) -> UvicornProtocol:
        if self._plain is None:
            self._plain = UvicornProtocol(self.http.config, self.http.server_state, self.http.app_state)
            self._plain.go_on(self)
        return self._plain

    def _take_over(self, offer: TakeOver, hive: Hive, message: Any) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers") or ()]
        if message.get("subprotocol"):
            headers.append(("Sec-WebSocket-Protocol", message["subprotocol"]))
        transport, connections = self.http.transport, self.http.connections
        upgrade = Upgrade(self._key.decode(), headers, bytes(self.early), offer.layer, offer.session)
        place = _find_place(hive, offer.owner, transport, upgrade)
        if place is not Place.ELSEWHERE:
            connection = FastConnection(hive, offer.owner, upgrade, reserved=place is Place.RESERVED_HERE)
            connection.start(transport, upgrade, connections)
        connections.difference_update((self, self._plain))
        self._is_taken_over = True
        self._let_go()

    def _let_go(self) -> None:
        """Drop what is no longer needed now, not when Python next looks for cycles: 14 kB a session until then."""
        (self.scope.get("extensions") or {}).pop(TAKE_OVER, None)
        self._offer = self.http.parser = None  # type: ignore[assignment]
        del self.http, self.scope


class UvicornProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which can go on with an upgrade that was begun without it."""

    _begun: Upgrading | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.conn.debug = False  # it would log the request's headers, and the token among them
        self._early = bytearray()

    def go_on(self, begun: Upgrading) -> None:
        """Take the connection over, as if this had been asked from the start."""
        self._begun, self.scope, http = begun, begun.scope, begun.http  # type: ignore[assignment]
        self.connection_made(http.transport)
        http.connections.discard(begun)
        lines = [b"GET %b HTTP/1.1\r\n" % http.url, *(b"%b: %b\r\n" % header for header in http.headers), b"\r\n"]
        self.data_received(b"".join(lines))
        self._begun, self._early = None, begun.early
        http.transport.set_protocol(self)

    async def end(self, result: Any, failure: BaseException | None) -> None:
        """The app has returned, or has failed: do what is left to do."""

        async def app(*_: Any) -> Any:
            if failure is not None:
                raise failure
            return result

        self.app = app
        await self.run_asgi()
        del self.app

    def handle_connect(self, event: Any) -> None:
        if self._begun is None:
            super().handle_connect(event)
            return
        self.request, self.response = event, self.conn.accept(event)
        self.handshake_initiated = True
        if not self._begun.is_announced:
            self._begun.is_announced = True
            self.queue.put_nowait({"type": "websocket.connect"})
        if self.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:  # it is stricter than we are
            self.conn.send_response(self.response)
            self._refuse(b"".join(self.conn.data_to_send()))

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data  # frames sent before the upgrade was answered
            if len(self._early) > _EARLY_LIMIT:
                self.transport.abort()
            return
        super().data_received(data)
        if not self.handshake_initiated:  # it got the whole head, and says nothing
            self._refuse(HEAD_TOO_LARGE)

    def _refuse(self, answer: bytes) -> None:
        """Whatever the app says, this is the answer."""
        self.transport.write(answer)
        self.transport.close()
        self.handshake_complete = self.close_sent = self.disconnected = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": _ABNORMAL})

    async def send(self, message: Any) -> None:
        accepts = message["type"] == "websocket.accept" and not self.handshake_complete
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # or uvicorn logs an error for each upgrade that an app has refused
        if accepts and self._early:
            early, self._early = bytes(self._early), bytearray()
            super().data_received(early)


def _scope_of(http: HttpToolsProtocol) -> dict[str, Any]:
    raw_path, _, query = http.url.partition(b"?")
    offered = [value.decode("latin-1") for name, value in http.headers if name == b"sec-websocket-protocol"]
    return {
        "type": "websocket",
        "asgi": {"version": http.asgi_version, "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "wss" if http.scheme == "https" else "ws",
        "server": http.server,
        "client": http.client,
        "root_path": http.root_path,
        "path": http.root_path + unquote(raw_path.decode()),
        "raw_path": http.root_path.encode() + raw_path,
        "query_string": query,
        "headers": [(name, value.rstrip(b" \t")) for name, value in http.headers],
        "subprotocols": [each.strip() for line in offered for each in line.split(",")],
        "state": http.app_state.copy(),
        "extensions": {"websocket.http.response": {}},
    }


class Place(Enum):
    """Where a new connection belongs."""

    HERE = auto()
    RESERVED_HERE = auto()
    ELSEWHERE = auto()


def _find_place(hive: Hive, owner: Owner | None, transport: asyncio.Transport, upgrade: Upgrade) -> Place:
    """Among several workers, send a connection to the one that has its session, or the fewest sessions."""
    crew, places = hive.crew, hive.shared
    if crew is None or places is None or transport.get_extra_info("ssl_object") is not None:
        return Place.HERE
    worker: int | None
    if upgrade.session is not None:
        worker, ticket = crew.owner_of(upgrade.session), None
    else:
        worker, ticket = places.reserve_anywhere(owner) or (None, None)
    if worker is None:
        return Place.HERE  # full, over its quota, or nobody's: it is told so here
    if worker == crew.index:
        return Place.RESERVED_HERE if upgrade.session is None else Place.HERE
    number = None if owner is None else owner.number
    parcel = Parcel(
        places.hive, upgrade.key, upgrade.headers, upgrade.early, number, upgrade.layer, upgrade.session, ticket
    )
    transport.pause_reading()
    if crew.hand_over(worker, parcel, transport.get_extra_info("socket").fileno()):
        transport.set_protocol(asyncio.Protocol())  # nobody here is to hear of its end
        transport.abort()  # closes this process's descriptor; the connection lives on in the other's
        return Place.ELSEWHERE
    transport.resume_reading()
    return Place.HERE


class _Reading(asyncio.Protocol):
    """Keeps what a client sends before its connection has got to whom it is for."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


def receive_parcels(connections: set[Any]) -> None:
    """Serve the connections that other workers hand to this one."""
    crew = current_crew()
    assert crew is not None
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def unpack(hive: Hive, parcel: Parcel, sock: socket.socket, reserved: bool) -> None:
        owner = None if parcel.owner is None else hive.config.tokens.owners[parcel.owner]
        try:
            sock.setblocking(False)
            transport, read = await loop.connect_accepted_socket(_Reading, sock)
        except OSError:  # the client is gone already
            sock.close()
            if hive.shared is not None and reserved:
                hive.shared.give_back(owner)
            return
        early = parcel.early + read.data
        upgrade = Upgrade(parcel.key, parcel.headers, early, parcel.layer, parcel.session)
        FastConnection(hive, owner, upgrade, reserved=reserved).start(transport, upgrade, connections)

    def take(hive: Hive, parcel: Parcel, sock: socket.socket) -> None:
        # Where the sender has died meanwhile, its place is gone, and another is to be found for the connection.
        reserved = parcel.ticket is not None and crew.ledger.arrive(parcel.ticket)
        tasks.add(task := loop.create_task(unpack(hive, parcel, sock, reserved)))
        task.add_done_callback(tasks.discard)

    crew.on_parcel = take
