"""From uvicorn to the fast lane: how an accepted upgrade becomes a connection on picows, here or in another worker.

An upgrade passes through the ASGI app once, so routing, mounts, middleware and auth keep working. The
endpoint finds `TakeOver` among the scope's extensions, takes it and accepts; from then on picows has the socket:

    uvicorn ── upgrade ──► FastLaneProtocol ── ASGI ──► endpoint ── accept ──► FastLaneProtocol ──► FastConnection

An endpoint that does not take over (an app's own WebSocket route) is served by uvicorn as usual.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum, auto
from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from envhive.server.asgi_lane import TAKE_OVER
from envhive.server.auth import Owner
from envhive.server.crew import Parcel, current_crew
from envhive.server.fast_lane import FastConnection, Upgrade
from envhive.server.hive import Hive

_EARLY_LIMIT: Final = 64 * 1024
"""Bytes that a client may send before its upgrade is answered."""


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


class FastLaneProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, with a way out of it. For `uvicorn --ws` or `uvicorn.Config(ws=...)`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._http: Any = transport.get_protocol()  # which parsed the upgrade, and is done
        super().connection_made(transport)
        self.conn.debug = False  # it would log the request's headers, and the token among them

    def handle_connect(self, event: Any) -> None:
        self._offer = TakeOver(self.receive)
        self._early = bytearray()
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][TAKE_OVER] = self._offer  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated or self.handshake_complete:
            super().data_received(data)
            return
        self._early += data  # frames sent before the upgrade was answered
        if len(self._early) > _EARLY_LIMIT:
            self.transport.abort()

    async def send(self, message: Any) -> None:
        accepts = message["type"] == "websocket.accept" and not self.handshake_complete
        if accepts and self._offer.hive is not None:
            if self.disconnected or self.transport.is_closing():
                raise ClientDisconnected
            self._take_over(self._offer.hive, message)
            return
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # or uvicorn logs an error for each upgrade that an app has refused
        if accepts and self._early:
            early, self._early = bytes(self._early), bytearray()
            super().data_received(early)

    def _take_over(self, hive: Hive, message: Any) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers") or ()]
        if message.get("subprotocol"):
            headers.append(("Sec-WebSocket-Protocol", message["subprotocol"]))
        transport, self.transport = self.transport, _HandedOver()
        self.connections.discard(self)
        self.handshake_complete = True
        upgrade = Upgrade(
            self.request.headers["Sec-WebSocket-Key"].strip(),
            headers,
            bytes(self._early),
            self._offer.layer,
            self._offer.session,
        )
        owner = self._offer.owner
        place = _find_place(hive, owner, transport, upgrade)
        if place is not Place.ELSEWHERE:
            connection = FastConnection(hive, owner, upgrade, reserved=place is Place.RESERVED_HERE)
            connection.start(transport, upgrade, self.connections)
        self._let_go()

    def _let_go(self) -> None:
        """Drop what is no longer needed now, not when Python next looks for cycles: 14 kB a session until then."""
        if self._http is not None:
            self._http.parser = None
        self._http = None
        del self.conn, self.scope, self.request, self.response, self.queue, self._offer


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
    resuming = upgrade.session is not None
    worker = crew.owner_of(upgrade.session) if upgrade.session is not None else places.reserve_anywhere(owner)
    if worker is None:
        return Place.HERE  # full, over its quota, or nobody's: it is told so here
    if worker == crew.index:
        return Place.HERE if resuming else Place.RESERVED_HERE
    number = None if owner is None else owner.number
    parcel = Parcel(places.hive, upgrade.key, upgrade.headers, upgrade.early, number, upgrade.layer, upgrade.session)
    transport.pause_reading()
    if crew.hand_over(worker, parcel, transport.get_extra_info("socket").fileno()):
        transport.set_protocol(asyncio.Protocol())  # nobody here is to hear of its end
        transport.abort()  # closes this process's descriptor; the connection lives on in the other's
        return Place.ELSEWHERE
    if not resuming:
        places.give_back_for(worker, owner)
    transport.resume_reading()
    return Place.HERE


def receive_parcels(connections: set[Any]) -> None:
    """Serve the connections that other workers hand to this one."""
    crew = current_crew()
    assert crew is not None
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def unpack(hive: Hive, parcel: Parcel, sock: socket.socket) -> None:
        owner = None if parcel.owner is None else hive.config.tokens.owners[parcel.owner]
        try:
            sock.setblocking(False)
            transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, sock)
        except OSError:  # the client is gone already
            sock.close()
            if hive.shared is not None and parcel.session is None:
                hive.shared.give_back(owner)
            return
        upgrade = Upgrade(parcel.key, parcel.headers, parcel.early, parcel.layer, parcel.session)
        FastConnection(hive, owner, upgrade, reserved=parcel.session is None).start(transport, upgrade, connections)

    def take(hive: Hive, parcel: Parcel, sock: socket.socket) -> None:
        tasks.add(task := loop.create_task(unpack(hive, parcel, sock)))
        task.add_done_callback(tasks.discard)

    crew.on_parcel = take


class _HandedOver(asyncio.Transport):
    """Stands where the transport was, for a protocol that has given it away and must not close it."""

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        pass
