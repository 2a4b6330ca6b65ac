"""How many sessions there may be, and how many there are: in one process, or over all workers of a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, Protocol

from envhive.errors import SessionCapacityError
from envhive.server.auth import Owner
from envhive.server.ledger import Ledger, Ticket, check_quota


class Places(Protocol):
    """The places for sessions that one hive may give away."""

    def take(self, owner: Owner | None = None, *, displaces: bool = False) -> None:
        """Take a place in this process; raises `SessionCapacityError` when all of the server's or owner's are taken.

        `displaces` says whether it may be that of a client that is away.
        """

    def give_back(self, owner: Owner | None = None) -> None:
        """Give back a place in this process."""

    def taken(self) -> int:
        """How many are taken, and not on offer, in the whole server."""

    def limit(self) -> int:
        """How many there are, in the whole server."""

    # For those who wait for one. While anybody does, `take` finds none: nobody overtakes.

    def draw_ticket(self) -> int:
        """A number, higher than all drawn before."""

    def show_first(self, ticket: int | None) -> None:
        """Say which is the lowest ticket that waits in this process."""

    def ahead_of(self, ticket: int) -> int:
        """How many, at most, wait with a lower ticket."""

    def take_in_turn(self, ticket: int, owner: Owner | None = None) -> bool:
        """Take a place if one is free and nobody has a lower ticket; raises when the owner may have no more."""

    def anyone_waits(self) -> bool:
        """Whether somebody does, in the whole server."""

    # For sessions that may have been left by their clients. A newcomer who finds all places taken gets one of theirs.

    def offer(self, owner: Owner | None = None) -> None:
        """A session in this process gives its place to whoever needs it. It no longer counts for its owner."""

    def keep(self, owner: Owner | None = None) -> bool:
        """Such a session is needed after all; False if too late. Raises when the owner may have no more."""

    def on_offer(self) -> int:
        """How many offered places of this process nobody has taken so far."""

    def withdraw(self, known: int) -> None:
        """One of `known` sessions on offer here has ended by itself: give its place back, if nobody has taken it."""

    # For sessions whose clients have been away for long. They count as any other, but a newcomer who finds nothing else
    # gets one of their places.

    def offer_of_away(self) -> None:
        """The client of a session in this process will hardly come back."""

    def keep_of_away(self) -> bool:
        """It has come back, or the session ends by itself; False if too late."""

    def on_offer_of_away(self) -> int:
        """How many such places of this process nobody has taken so far."""

    def discount(self, owner: Owner) -> None:
        """A session in this process has lost its place to another: it counts no longer for its owner."""


class LocalPlaces:
    """The places of a server that is one process."""

    _taken_by: ClassVar[Counter[Owner]] = Counter()
    """Places of each owner, over all hives of the process: a quota is for the whole server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._on_offer = 0
        self._of_away = 0
        self._tickets = 0
        self._first: int | None = None

    def take(self, owner: Owner | None = None, *, displaces: bool = False) -> None:
        if self._first is not None or not self._take(owner, displaces):
            raise SessionCapacityError(self._taken, self._limit)

    def _take(self, owner: Owner | None, displaces: bool) -> bool:
        if owner is not None:
            check_quota(owner, self._taken_by[owner])
        if self._taken < self._limit:
            self._taken += 1
        elif self._on_offer:
            self._on_offer -= 1
        elif displaces and self._of_away:
            self._of_away -= 1
        else:
            return False
        if owner is not None:
            self._taken_by[owner] += 1
        return True

    def give_back(self, owner: Owner | None = None) -> None:
        self._taken -= 1
        if owner is not None:
            self._taken_by[owner] -= 1

    def taken(self) -> int:
        return self._taken - self._on_offer

    def limit(self) -> int:
        return self._limit

    def draw_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def show_first(self, ticket: int | None) -> None:
        self._first = ticket

    def ahead_of(self, ticket: int) -> int:
        return 0 if self._first is None else ticket - self._first

    def take_in_turn(self, ticket: int, owner: Owner | None = None) -> bool:
        full = self._taken >= self._limit
        return not (full and not self._on_offer and not self._of_away) and self._take(owner, displaces=True)

    def anyone_waits(self) -> bool:
        return self._first is not None

    def offer(self, owner: Owner | None = None) -> None:
        self._on_offer += 1
        if owner is not None:
            self._taken_by[owner] -= 1

    def keep(self, owner: Owner | None = None) -> bool:
        if not self._on_offer:
            return False
        if owner is not None:
            check_quota(owner, self._taken_by[owner])
            self._taken_by[owner] += 1
        self._on_offer -= 1
        return True

    def on_offer(self) -> int:
        return self._on_offer

    def withdraw(self, known: int) -> None:
        if self._on_offer >= known:
            self._on_offer -= 1
            self._taken -= 1

    def offer_of_away(self) -> None:
        self._of_away += 1

    def keep_of_away(self) -> bool:
        if not self._of_away:
            return False
        self._of_away -= 1
        return True

    def on_offer_of_away(self) -> int:
        return self._of_away

    def discount(self, owner: Owner) -> None:
        self._taken_by[owner] -= 1


class SharedPlaces:
    """The places of one hive, over all workers, as one of them sees them."""

    def __init__(self, ledger: Ledger, hive: int, worker: int, limit: int) -> None:
        self._ledger = ledger
        self.hive = hive
        self._worker = worker
        ledger.set_limit(hive, limit)

    def take(self, owner: Owner | None = None, *, displaces: bool = False) -> None:
        self._ledger.sign(self._worker)  # after a standstill those who wait here are again before this newcomer
        if self._ledger.reserve(self.hive, self._worker, owner=owner, displaces=displaces) is None:
            raise SessionCapacityError(self.taken(), self.limit())

    def give_back(self, owner: Owner | None = None) -> None:
        self._ledger.release(self.hive, self._worker, None if owner is None else owner.number)

    def reserve_anywhere(self, owner: Owner | None = None) -> tuple[int, Ticket | None] | None:
        """A place with the worker that has the fewest sessions, which is returned; None if there is none.

        With a ticket where it is another worker, which gets it with the connection.
        """
        self._ledger.sign(self._worker)  # as in `take`
        try:
            return self._ledger.reserve_from(self._worker, self.hive, owner)
        except SessionCapacityError:
            return None

    def drain(self) -> None:
        """Give no more places away, in any worker, also in those that are yet to be started."""
        self._ledger.set_draining(self.hive)

    def is_draining(self) -> bool:
        return self._ledger.is_draining(self.hive)

    def taken(self) -> int:
        return sum(self._ledger.counts(self.hive)) - sum(self._ledger.on_offer(self.hive))

    def limit(self) -> int:
        return self._ledger.limit(self.hive)

    def draw_ticket(self) -> int:
        return self._ledger.draw_ticket(self.hive)

    def show_first(self, ticket: int | None) -> None:
        self._ledger.show_first(self.hive, self._worker, ticket)

    def ahead_of(self, ticket: int) -> int:
        return self._ledger.ahead_of(self.hive, ticket)

    def take_in_turn(self, ticket: int, owner: Owner | None = None) -> bool:
        return self._ledger.reserve_in_turn(self.hive, self._worker, ticket, owner)

    def anyone_waits(self) -> bool:
        return self._ledger.anyone_waits(self.hive)

    def offer(self, owner: Owner | None = None) -> None:
        self._ledger.offer(self.hive, self._worker, owner)

    def keep(self, owner: Owner | None = None) -> bool:
        return self._ledger.keep(self.hive, self._worker, owner)

    def on_offer(self) -> int:
        return self._ledger.on_offer(self.hive)[self._worker]

    def withdraw(self, known: int) -> None:
        self._ledger.withdraw(self.hive, self._worker, known)

    def offer_of_away(self) -> None:
        self._ledger.offer_of_away(self.hive, self._worker)

    def keep_of_away(self) -> bool:
        return self._ledger.keep_of_away(self.hive, self._worker)

    def on_offer_of_away(self) -> int:
        return self._ledger.on_offer_of_away(self.hive)[self._worker]

    def discount(self, owner: Owner) -> None:
        self._ledger.discount(self._worker, owner)

    def best_worker(self, coming: Mapping[int, int]) -> int:
        """Where a new session would go now: to the worker with the fewest, or, when all is taken, a place on offer.

        `coming` are those who have been sent to each, and may not be there yet.
        """
        counts, offers = self._ledger.counts(self.hive), self._ledger.on_offer(self.hive)
        at_work = [worker for worker, yes in enumerate(self._ledger.welcoming()) if yes]
        if sum(counts) >= self.limit():
            offers = offers if any(offers) else self._ledger.on_offer_of_away(self.hive)
            lively = self._ledger.lively()
            at_work = [worker for worker in at_work if offers[worker] and lively[worker]]
        return min(
            at_work or [self._worker], key=lambda worker: (counts[worker] + coming[worker], worker != self._worker)
        )
