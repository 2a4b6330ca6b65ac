"""The line before a full server: first come, first served, also over several workers."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from envhive.errors import QuotaExceededError, SessionCapacityError
from envhive.server.auth import Owner
from envhive.server.metrics import Metrics
from envhive.server.places import Places

logger: Final = logging.getLogger("envhive.server")

_LOOK_S: Final = 0.02
"""How often to look whether a place is free: another worker's session may have ended."""


class Newcomer(Protocol):
    """Who waits for a place."""

    owner: Owner | None

    def admitted(self) -> None:
        """A place has been taken for you."""

    def told(self, position: int, patience_s: float) -> None:
        """This many are to be admitted until you are; and how long you may wait at most."""

    def turned_away(self, error: SessionCapacityError) -> None:
        """You have waited for too long."""


class Line:
    """Newcomers of one process who wait. Their tickets, numbered over all workers, say whose turn it is."""

    def __init__(self, places: Places, patience_s: float, clock: Callable[[], float], metrics: Metrics) -> None:
        self._places = places
        self._patience_s = patience_s
        self._clock = clock
        self._metrics = metrics
        self._waiting: OrderedDict[int, tuple[Newcomer, float]] = OrderedDict()
        self._looking = False
        self._admitting = False

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, newcomer: Newcomer) -> int:
        """Wait; the ticket is for `leave`."""
        ticket = self._places.draw_ticket()
        self._waiting[ticket] = (newcomer, self._clock() + self._patience_s)
        self._show_first()
        newcomer.told(self._places.ahead_of(ticket) + 1, self._patience_s)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        return ticket

    async def wait(self, owner: Owner | None) -> None:
        """Wait until a place has been taken for `owner`, who has no connection to be told of it."""
        visitor = _Visitor(owner, asyncio.get_running_loop().create_future(), self._places)
        ticket = self.join(visitor)
        try:
            await visitor.place
        except asyncio.CancelledError:
            self.leave(ticket)
            if visitor.has_place:
                self._places.give_back(owner)
            raise

    def leave(self, ticket: int) -> None:
        """Whoever has this ticket is gone."""
        if self._waiting.pop(ticket, None) is not None:
            self._show_first()

    def look(self) -> None:
        """Admit whoever's turn it is, and turn away those who have waited for too long."""
        if self._admitting:
            return  # a session that ended at once: the loop below sees its place
        self._admitting = True
        try:
            while self._waiting:
                ticket, (newcomer, until) = next(iter(self._waiting.items()))
                try:
                    if not self._places.take_in_turn(ticket, newcomer.owner):
                        break
                    answer: Callable[[], None] = newcomer.admitted
                except QuotaExceededError as used_up:
                    answer = functools.partial(newcomer.turned_away, used_up)
                    self._metrics.refusals["quota"] += 1
                self._metrics.waits.observe(self._clock() - until + self._patience_s)
                del self._waiting[ticket]
                self._show_first()
                self._tell(answer)
            now = self._clock()
            for ticket in [ticket for ticket, (_, until) in self._waiting.items() if until <= now]:
                newcomer, until = self._waiting.pop(ticket)
                self._metrics.waits.observe(now - until + self._patience_s)
                self._metrics.refusals["admission_timeout"] += 1
                error = SessionCapacityError(self._places.taken(), self._places.limit())
                self._tell(functools.partial(newcomer.turned_away, error))
            self._show_first()
        finally:
            self._admitting = False

    @staticmethod
    def _tell(what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:  # whatever it is, the others go on waiting for their turn
            logger.exception("A newcomer could not be told")

    def _look(self) -> None:
        try:
            self.look()
        finally:
            self._looking = bool(self._waiting)
            if self._looking:
                asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _show_first(self) -> None:
        self._places.show_first(next(iter(self._waiting), None))


@dataclass(slots=True)
class _Visitor:
    """An HTTP request that waits for a place."""

    owner: Owner | None
    place: asyncio.Future[None]
    places: Places
    has_place: bool = False

    def admitted(self) -> None:
        if self.place.done():
            self.places.give_back(self.owner)  # it has been cancelled, and is about to leave the line
        else:
            self.has_place = True
            self.place.set_result(None)

    def told(self, position: int, patience_s: float) -> None:
        """HTTP has no way to say so before the answer."""

    def turned_away(self, error: SessionCapacityError) -> None:
        if not self.place.done():
            self.place.set_exception(error)
