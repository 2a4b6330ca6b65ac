"""Connections whose request is not complete yet: how many there may be, how long they may take, how much they may send.

Without this, whoever connects and sends a byte now and then holds a descriptor for ever.
"""

from __future__ import annotations

import asyncio
import sys
from enum import Enum, auto
from functools import partial
from typing import Any, Final, cast
from weakref import WeakMethod

from httptools import HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from envhive.server.config import ServerConfig
from envhive.server.hangups import OWN_RECEIVE
from envhive.server.upgrade import HEAD_TOO_LARGE, UvicornProtocol, begin_upgrade

_LINE_EXTRAS: Final = 4
"""Bytes of a header line beside its name and value."""


class Intake:
    """The connections of a process that are sending a request. `protocols` are for `uvicorn.Config`."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.pending = 0

    @property
    def protocols(self) -> dict[str, Any]:
        return {"http": partial(HttpProtocol, self), "ws": UvicornProtocol}


class Part(Enum):
    """Of a request, what is being received."""

    NONE = auto()
    HEAD = auto()
    BODY = auto()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a deadline for heads and for silence within bodies, and a size for heads."""

    def __init__(self, intake: Intake, **given: Any) -> None:
        super().__init__(**given)
        self._intake = intake
        self._deadline: asyncio.TimerHandle | None = None
        self._part = Part.NONE
        self._head_size = 0
        self._latest = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._intake.pending >= self._intake.config.max_pending_connections:
            transport.abort()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._part is Part.BODY and not self._is_answered():
            self._stop_waiting()  # it goes on, so its time begins anew
            self._await_request()
        elif self._is_answered():
            self._await_request()  # uvicorn's keep-alive time is over with the first byte, whatever it is
        self._latest = data
        super().data_received(data)
        self._latest = b""
        if self._part is Part.HEAD:
            self._head_size += len(data)
            if self._head_is_too_large():
                self.send_400_response("")

    def on_message_begin(self) -> None:
        self._part, self._head_size = Part.HEAD, 0
        self._await_request()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._part = Part.BODY
        self._head_size = len(self.url) + sum(len(name) + len(value) + _LINE_EXTRAS for name, value in self.headers)
        if self._head_is_too_large():
            raise ValueError  # ends the parsing, and then uvicorn calls send_400_response
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # of an upgrade uvicorn makes none
            cast("dict[str, Any]", self.scope)[OWN_RECEIVE] = WeakMethod(self.cycle.receive)

    def on_message_complete(self) -> None:
        self._part = Part.NONE
        if not self._is_answered():
            self._stop_waiting()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
        upgrade = sys.exception()  # the parser's, which tells where the head ended
        early = self._latest[upgrade.args[0] :] if isinstance(upgrade, HttpParserUpgrade) else b""
        if begin_upgrade(self, early):
            return
        super().handle_websocket_upgrade()
        if early and not self.transport.is_closing():
            # Frames of a client that did not wait for the answer; uvicorn would drop what came together with the head.
            self.transport.get_protocol().data_received(early)  # type: ignore[attr-defined]

    def send_400_response(self, msg: str) -> None:
        if self._head_is_too_large():
            self.transport.write(HEAD_TOO_LARGE)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _head_is_too_large(self) -> bool:
        return self._head_size > self._intake.config.max_head_size

    def _await_request(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._intake.pending += 1
            self._deadline = self.loop.call_later(self._intake.config.head_timeout, self._time_is_up)

    def _time_is_up(self) -> None:
        self._stop_waiting()
        if self.flow.read_paused or (self.cycle is not None and self.cycle.waiting_for_100_continue):
            self._await_request()  # it is the app that does not read
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._intake.pending -= 1
            self._deadline.cancel()
            self._deadline = None
