"""How a connection comes to its session: at once, after waiting in line, or back to one that it had."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from envhive.errors import EnvHiveError, QuotaExceededError, SessionCapacityError
from envhive.server.auth import Owner
from envhive.server.hive import Hive
from envhive.server.outlet import NORMAL_CLOSURE, POLICY_VIOLATION, TRY_AGAIN_LATER
from envhive.server.phases import Phase
from envhive.server.session import Session
from envhive.server.turns import INBOX_LIMIT
from envhive.wire.codec import decode_resume, encode_error_reply, encode_queued

_REFUSAL_S: Final = 1.0
"""How long a refused client gets to ask its first question and hear the answer."""
_RESUMPTION_S: Final = 10.0
"""How long a client that comes back gets to send its token."""


class Entrance:
    """What a connection of either lane does until it has a session, and when it will get none."""

    if not TYPE_CHECKING:
        # The fields are in the lanes' own slots: Python cannot lay them out in a second base beside picows's class.
        __slots__ = ()

    owner: Owner | None
    _hive: Hive
    _layer: int
    """The form of the protocol that was agreed on."""
    _wanted: str | None
    """The session that the client wants to go on with, until it does."""
    _session: Session | None
    _ticket: int | None
    """While it waits for a place."""
    _early: list[str | bytes] | None
    """What it has asked meanwhile."""
    _refusal: tuple[int, str] | None
    """How to close the connection of a client that has yet to hear why it is refused."""
    _timer: asyncio.TimerHandle | None

    # What a lane does in its own way.

    @abstractmethod
    def send(self, frame: bytes) -> None: ...

    @abstractmethod
    def close(self, code: int, reason: str) -> None: ...

    @abstractmethod
    def drop(self) -> None: ...

    @abstractmethod
    def pause_reading(self) -> None: ...

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    def _has_left(self) -> bool:
        """Whether the client is known to be gone, although the connection has not been told yet."""

    @abstractmethod
    def _send_elsewhere(self) -> None:
        """Another worker has the session that the client wants: let it try again."""

    # Coming in.

    def _come_in(self, *, reserved: bool = False) -> None:
        if self._wanted is not None:
            if self._layer == 2:
                self._set_timer(_RESUMPTION_S, self.close, POLICY_VIOLATION, "no resume came")
            else:
                self._adopt()
            return
        try:
            self._take_place(reserved=reserved)
        except SessionCapacityError as error:
            if self._hive.line is None or isinstance(error, QuotaExceededError):
                self.refuse(error, TRY_AGAIN_LATER, asked=False)
            else:
                self._early = []
                self._ticket = self._hive.line.join(self)
        except EnvHiveError as error:
            self.refuse(error, TRY_AGAIN_LATER, asked=False)

    def _take_place(self, *, reserved: bool) -> None:
        if self._layer == 2 and self._has_left():
            # It will never see the token that it would come back with, and the session would wait for it all the same.
            if reserved:
                self._hive.give_back_place(self.owner)
            self.drop()
            return
        session = self._hive.admit(self, owner=self.owner, reserved=reserved, layer=self._layer)
        self._session = None if session.phase is Phase.CLOSED else session

    def _adopt(self) -> None:
        """Use a session that was made over HTTP."""
        wanted, self._wanted = self._wanted or "", None
        if self._hive.belongs_elsewhere(wanted):
            self._send_elsewhere()
            return
        try:
            self._session = self._hive.adopt(wanted, self, self.owner)
        except EnvHiveError as error:
            self.refuse(error, NORMAL_CLOSURE, asked=False)

    def _resume(self, frame: str | bytes) -> None:
        """The first frame of a client that comes back."""
        wanted, self._wanted = self._wanted or "", None
        self._stop_timer()
        if self._hive.belongs_elsewhere(wanted):
            self._send_elsewhere()
            return
        try:
            self._session = self._hive.resume(wanted, decode_resume(frame), self, self.owner)
        except EnvHiveError as error:
            self.refuse(error, NORMAL_CLOSURE, asked=True)

    def _receive_early(self, frame: str | bytes) -> None:
        """A frame of a client that has no session."""
        if self._early is not None:
            self._early.append(frame)
            if len(self._early) == INBOX_LIMIT:
                self.pause_reading()
        elif self._wanted is not None:
            self._resume(frame)
        elif self._refusal is not None:
            self.close(*self._refusal)  # it has asked, and will now read why it was refused

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None:
        self._session = None
        self.send(encode_error_reply(error, extended=self._layer == 2))
        if asked:
            self.close(code, error.code)
        else:
            self._refusal = (code, error.code)
            self._set_timer(_REFUSAL_S, self.close, code, error.code)

    # While it waits for a place.

    def admitted(self) -> None:
        early = self._end_wait()
        self.resume_reading()
        try:
            self._take_place(reserved=True)
        except EnvHiveError as error:
            self.refuse(error, TRY_AGAIN_LATER, asked=bool(early))
        for frame in early:
            if self._session is not None:
                give(self._session, frame)

    def told(self, position: int, patience_s: float) -> None:
        if self._layer == 2:
            self.send(encode_queued(position, patience_s))

    def turned_away(self, error: SessionCapacityError) -> None:
        self.refuse(error, TRY_AGAIN_LATER, asked=bool(self._end_wait()))

    def _end_wait(self) -> list[str | bytes]:
        early, self._early, self._ticket = self._early or [], None, None
        return early

    def _leave_line(self) -> None:
        if self._ticket is not None and self._hive.line is not None:
            self._hive.line.leave(self._ticket)
            self._end_wait()

    # One thing at a time that happens if nothing else does.

    def _set_timer(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, callback, *args)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def give(session: Session, frame: str | bytes) -> None:
    """Hand a frame to its session: text, or what came in a binary one."""
    if isinstance(frame, str):
        session.receive(frame)
    else:
        session.receive_binary(frame)
