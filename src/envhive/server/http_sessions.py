"""Sessions that no connection holds: made over HTTP, found again by their id.

A client that only ever calls `POST /reset` never says that it is done. So a session made by it is at first on offer:
it lives on for a while, but a newcomer who finds the server full gets its place. The first request that names the
session keeps it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from envhive.errors import EnvHiveError, InvalidMessageError, SessionExpiredError, SessionNotFoundError
from envhive.server.auth import Owner
from envhive.server.places import Places
from envhive.server.session import Session

logger: Final = logging.getLogger("envhive.server")

OFFERED_S: Final = 60.0
"""How long a session waits for the first request that names it."""
IDLE_S: Final = 600.0
"""How long it may be idle after that, where the server has no limit of its own."""
_REMEMBERED: Final = 1024
"""Sessions that expired, of which their clients are told so."""


class Guest:
    """One such session, and its last answer: a request that comes again with the same id is not run again."""

    __slots__ = ("_answer", "_request", "conversation", "on_offer", "session")

    def __init__(self, session: Session, *, on_offer: bool, conversation: Any = None) -> None:
        self.session = session
        self.on_offer = on_offer
        self.conversation = conversation
        """What an agent and the session say to each other, if it is an agent."""
        self._request: tuple[str, str, Any] | None = None
        self._answer: asyncio.Task[bytes] | None = None

    async def once(
        self, what: str, request_id: str | None, body: Any, call: Callable[[], Coroutine[Any, Any, bytes]]
    ) -> bytes:
        """Make a call, or answer with what came of it the last time; raises if the id was another request's."""
        if request_id is None:
            return await call()
        request = (what, request_id, body)
        if self._request is None or self._answer is None or self._request[:2] != request[:2]:
            self._request = request
            self._answer = asyncio.get_running_loop().create_task(call())
            self._answer.add_done_callback(_hear_out)
        elif self._request != request:
            raise InvalidMessageError(f"The request_id {request_id!r} was that of another {what}: take a new one")
        return await asyncio.shield(self._answer)


def _hear_out(answer: asyncio.Task[bytes]) -> None:
    """The client may have gone; then nobody else asks whether it failed, and Python would complain."""
    if not answer.cancelled():
        answer.exception()


class HttpSessions:
    """The sessions of one hive that are found by their id."""

    def __init__(self, places: Places, idle_s: float | None) -> None:
        self._places = places
        self._idle_s = idle_s or IDLE_S
        self._guests: OrderedDict[str, Guest] = OrderedDict()
        self._on_offer: OrderedDict[str, Guest] = OrderedDict()
        self._evicted: set[Session] = set()
        self._expired: OrderedDict[str, tuple[Owner | None, EnvHiveError]] = OrderedDict()
        self._had_too_many = False

    def on_offer(self) -> int:
        """How many sessions nobody has come back to so far."""
        return len(self._on_offer)

    def is_on_offer(self, session_id: str) -> bool:
        return session_id in self._on_offer

    def has_place(self, session: Session) -> bool:
        """Whether a session has a place of its own: nobody else has it, nor could take it."""
        return session.id not in self._on_offer and session not in self._evicted

    def add(self, session: Session) -> bool:
        """Let a session live on without a connection; False if others wait for its place."""
        if self._places.anyone_waits() or session.is_over:
            return False
        self._guests[session.id] = self._on_offer[session.id] = Guest(session, on_offer=True)
        self._places.offer(session.owner)
        return True

    def keep(self, session: Session, conversation: Any = None) -> None:
        """Let a session live on that somebody has asked for by name: it is not on offer."""
        if session.is_over:
            raise SessionNotFoundError("The session has ended before it could be used")
        self._guests[session.id] = Guest(session, on_offer=False, conversation=conversation)

    def keeps(self, session: Session) -> bool:
        return session.id in self._guests

    def find(self, session_id: str, owner: Owner | None) -> Guest:
        """The session that a request names, which from now on stays; raises if there is none."""
        guest = self._guests.get(session_id)
        if guest is None or guest.session.owner != owner:
            gone_owner, error = self._expired.get(session_id, (None, None))
            if error is not None and gone_owner == owner:
                raise error
            raise SessionNotFoundError("This session is not there, or not yours")
        if guest.on_offer:
            if not self._places.keep(owner):
                self._expel(guest)  # its place is taken, by somebody on the way here from another worker
                raise self._expired[session_id][1]
            guest.on_offer = False
            del self._on_offer[session_id]
        return guest

    def make_room(self) -> Session | None:
        """End the oldest sessions whose places have been taken; the last of them, if any, may still be closing."""
        expelled = None
        while len(self._on_offer) > self._places.on_offer():
            expelled = self._expel(next(iter(self._on_offer.values())))
        return expelled

    def give_up_place(self, session: Session) -> None:
        """Give back the place of a session that ends, now and not when its environment is closed."""
        self._evicted.add(session)
        self._places.give_back(session.owner)
        if isinstance(session.ended_by, SessionExpiredError):
            self._remember(session, str(session.ended_by))

    def lose_place(self, session: Session) -> None:
        """A session's place has been taken by another, who counts for it."""
        self._evicted.add(session)
        if session.owner is not None:
            self._places.discount(session.owner)

    def give_place(self, session: Session) -> None:
        """Let a session that ends have a place again until its environment is closed: who had got it needs none."""
        self._evicted.discard(session)

    def _expel(self, guest: Guest) -> Session:
        session = guest.session
        del self._guests[session.id], self._on_offer[session.id]
        self._evicted.add(session)
        self._remember(session, "Session expired: its place went to another, as no request had named it yet")
        session.end(because="displaced")
        return session

    def give_way(self, session_id: str) -> bool:
        """End a session that is on offer, as its environment is another's, too; False if it is none."""
        guest = self._on_offer.get(session_id)
        if guest is not None:
            self._remember(
                guest.session, "Session expired: its environment went to another, as no request had named it yet"
            )
            guest.session.end(because="displaced")
        return guest is not None

    def sweep(self, now: float) -> None:
        """End the sessions that nobody came back to."""
        too_many = len(self._on_offer) > self._places.on_offer()
        if too_many and self._had_too_many:
            self.make_room()  # whoever has taken their places was lost on the way here
        self._had_too_many = too_many
        for guest in list(self._guests.values()):
            since = guest.session.idle_since()
            limit = OFFERED_S if guest.on_offer else self._idle_s
            if since is not None and now - since > limit and not guest.session.is_attached:
                logger.info("Session %s expired: idle for more than %g s", guest.session.id, limit)
                guest.session.expire(limit)
            elif guest.on_offer and self._places.anyone_waits():
                guest.session.end()

    def forget(self, session: Session) -> None:
        """A session has ended, whatever its kind: give back the place that it had."""
        guest = self._guests.pop(session.id, None)
        if guest is not None and guest.conversation is not None:
            guest.conversation.hang_up()
        if session in self._evicted:
            self._evicted.discard(session)
            return
        if guest is None or not guest.on_offer:
            self._places.give_back(session.owner)
        else:
            known = len(self._on_offer)
            del self._on_offer[session.id]
            self._places.withdraw(known)
        if guest is not None and isinstance(session.ended_by, SessionExpiredError):
            self._remember(session, str(session.ended_by))

    def _remember(self, session: Session, why: str) -> None:
        self._expired[session.id] = (session.owner, SessionExpiredError(why))
        if len(self._expired) > _REMEMBERED:
            self._expired.popitem(last=False)
