"""Sessions whose clients have lost their connection: how long they are kept, and who gets their places.

A client that was killed never comes back, and the run that is started in its stead needs the places. So when a client
has been away for a while, the place of its session is on offer: a newcomer to a full server, in whichever worker, takes
it without asking. The worker that has the session notices at its next look, or when the client is back after all.
"""

from __future__ import annotations

import logging
from typing import Final

from envhive.server.http_sessions import HttpSessions
from envhive.server.places import Places
from envhive.server.session import Session

logger: Final = logging.getLogger("envhive.server")

_RETURNING_S: Final = 10.0
"""How long a client that has lost its connection keeps its place in any case."""


class Away:
    """Those of one hive."""

    def __init__(self, places: Places, http: HttpSessions) -> None:
        self._places = places
        self._http = http
        self._sessions: set[Session] = set()
        self._on_offer: set[Session] = set()
        self._had_too_many = False

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: Session) -> None:
        self._sessions.add(session)

    def take_back(self, session: Session) -> bool:
        """Its client is back, or it ends by itself; False if another has its place by now."""
        self._sessions.discard(session)
        if session not in self._on_offer:
            return True
        self._on_offer.discard(session)
        if self._places.keep_of_away():
            return True
        self._http.lose_place(session)
        return False

    def offer(self, now: float) -> None:
        """Offer the places of those who will hardly come back."""
        for session in self._sessions - self._on_offer:
            if _is_long_away(session, now):
                self._places.offer_of_away()
                self._on_offer.add(session)

    def give_way(self, session: Session, now: float) -> bool:
        """End a session whose environment another needs; False if its client may come back."""
        if not _is_long_away(session, now):
            return False
        _displace(session)
        return True

    def make_room(self) -> Session | None:
        """If a place has been taken, end the session that has been left for longest; it may still be closing."""
        if len(self._on_offer) <= self._places.on_offer_of_away():
            return None
        session = min(self._on_offer, key=lambda each: each.away_since() or 0.0)
        self._on_offer.discard(session)
        self._http.lose_place(session)
        _displace(session)
        return session

    def sweep(self, now: float) -> None:
        """End those whose leases or places are gone."""
        too_many = len(self._on_offer) > self._places.on_offer_of_away()
        # Not at the first look: whoever is on the way here from another worker waits for the session to be closed.
        while too_many and self._had_too_many and self.make_room():
            pass
        self._had_too_many = too_many
        for session in list(self._sessions):
            session.lapse(now)
        self.offer(now)


def _is_long_away(session: Session, now: float) -> bool:
    since = session.away_since()
    return since is not None and now - since > _RETURNING_S


def _displace(session: Session) -> None:
    logger.info("Session %s ends: its client is away, and another needs its place", session.id)
    session.end(because="displaced")
