"""How many sessions there may be, and how many there are: in one process, or over all workers of a server."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar, Final, Protocol

from envhive.errors import QuotaExceededError, SessionCapacityError
from envhive.server.auth import MOST_TOKENS, Owner

MOST_HIVES: Final = 16
"""Environments that one app may serve; each has places of its own."""


def check_quota(owner: Owner, taken: int) -> None:
    """Raises when an owner who has `taken` places may have no more."""
    if owner.quota is not None and taken >= owner.quota:
        message = (
            f"The token {owner.name!r} is good for {owner.quota} session(s) at once, and they are in use. "
            f"Try again when one ends."
        )
        raise QuotaExceededError(taken, owner.quota, message)


class Places(Protocol):
    """The places for sessions that one hive may give away."""

    def take(self, owner: Owner | None = None) -> None:
        """Take a place in this process; raises `SessionCapacityError` when all of the server's or owner's are taken."""

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

    def withdraw(self) -> None:
        """Give back a place that was on offer: its session has ended by itself."""


class LocalPlaces:
    """The places of a server that is one process."""

    _taken_by: ClassVar[Counter[Owner]] = Counter()
    """Places of each owner, over all hives of the process: a quota is for the whole server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._on_offer = 0
        self._tickets = 0
        self._first: int | None = None

    def take(self, owner: Owner | None = None) -> None:
        if self._first is not None or not self._take(owner):
            raise SessionCapacityError(self._taken, self._limit)

    def _take(self, owner: Owner | None) -> bool:
        if owner is not None:
            check_quota(owner, self._taken_by[owner])
        if self._taken < self._limit:
            self._taken += 1
        elif self._on_offer:
            self._on_offer -= 1
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
        return (self._taken < self._limit or self._on_offer > 0) and self._take(owner)

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

    def withdraw(self) -> None:
        self._on_offer -= 1
        self._taken -= 1


_ROWS: Final = 3 * MOST_HIVES + MOST_TOKENS


class Ledger:
    """The places of all workers, in memory that they share.

    A row for each hive: its limit, then how many sessions each worker has; and one for each owner of a token, alike.
    Then again one for each hive: the last ticket drawn by those who wait for a place, and the lowest that waits with
    each worker. And one more: how many of each worker's places are on offer. Changes are made under a file lock, which
    the system takes back from a process that dies with it; each costs two system calls, once a session.
    """

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self.workers = workers
        self._width = 1 + workers
        self._memory = mmap.mmap(descriptor, self._size(workers))
        self._cells = memoryview(self._memory).cast("q")

    @staticmethod
    def _size(workers: int) -> int:
        return 8 * (1 + workers) * (1 + _ROWS)

    @classmethod
    def create(cls, workers: int) -> Ledger:
        """A new ledger; its descriptor is to be inherited by the workers."""
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, cls._size(workers))
        os.set_inheritable(descriptor, True)
        return cls(descriptor, workers)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[memoryview]:
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield self._cells
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def set_limit(self, hive: int, limit: int) -> None:
        with self._locked() as cells:
            cells[self._row(hive)] = limit

    def reserve(
        self, hive: int, worker: int | None = None, *, prefer: int = 0, owner: Owner | None = None
    ) -> int | None:
        """Take a place with `worker`, or with the one that has the fewest; None when the server is full.

        Of several with equally few, `prefer` is taken if it is one of them. When all places are taken, it is one that
        is on offer, if any. Raises when `owner` may have no more.
        """
        with self._locked() as cells:
            if owner is not None:
                check_quota(owner, sum(self.counts(MOST_HIVES + owner.number)))
            if any(self._firsts(hive)):
                return None
            row, offers = self._row(hive), self._offers(hive)
            counts = cells[row + 1 : row + self._width]
            at_work = [index for index in range(self.workers) if cells[1 + index]] or [prefer]
            candidates = at_work if worker is None else [worker]
            full = sum(counts) >= cells[row]
            if full:
                candidates = [index for index in candidates if cells[offers + 1 + index]]
                if not candidates:
                    return None
            worker = min(candidates, key=lambda index: (counts[index], index != prefer))
            if full:
                cells[offers + 1 + worker] -= 1
            else:
                cells[row + 1 + worker] += 1
            self._count_for(owner, worker, 1)
            return worker

    def _count_for(self, owner: Owner | None, worker: int, change: int) -> None:
        if owner is not None:
            index = self._row(MOST_HIVES + owner.number) + 1 + worker
            self._cells[index] = max(0, self._cells[index] + change)

    def offer(self, hive: int, worker: int, owner: Owner | None) -> None:
        with self._locked() as cells:
            cells[self._offers(hive) + 1 + worker] += 1
            self._count_for(owner, worker, -1)

    def keep(self, hive: int, worker: int, owner: Owner | None) -> bool:
        with self._locked() as cells:
            index = self._offers(hive) + 1 + worker
            if not cells[index]:
                return False
            if owner is not None:
                check_quota(owner, sum(self.counts(MOST_HIVES + owner.number)))
                self._count_for(owner, worker, 1)
            cells[index] -= 1
            return True

    def withdraw(self, hive: int, worker: int) -> None:
        with self._locked() as cells:
            for index in (self._offers(hive) + 1 + worker, self._row(hive) + 1 + worker):
                cells[index] = max(0, cells[index] - 1)

    def on_offer(self, hive: int) -> list[int]:
        offers = self._offers(hive)
        return list(self._cells[offers + 1 : offers + self._width])

    def anyone_waits(self, hive: int) -> bool:
        return any(self._firsts(hive))

    def release(self, hive: int, worker: int, owner: int | None = None) -> None:
        with self._locked() as cells:
            for row in (hive,) if owner is None else (hive, MOST_HIVES + owner):
                index = self._row(row) + 1 + worker
                cells[index] = max(0, cells[index] - 1)

    def set_at_work(self, worker: int, at_work: bool) -> None:
        """Whether a worker takes sessions: from when it is ready until it is told to stop or dies."""
        with self._locked() as cells:
            cells[1 + worker] = int(at_work)

    def forget(self, worker: int) -> None:
        """A worker died, and its sessions with it."""
        with self._locked() as cells:
            cells[1 + worker] = 0
            for row in range(_ROWS):
                cells[self._row(row) + 1 + worker] = 0

    def draw_ticket(self, hive: int) -> int:
        with self._locked() as cells:
            cells[self._line(hive)] += 1
            return cells[self._line(hive)]

    def show_first(self, hive: int, worker: int, ticket: int | None) -> None:
        with self._locked() as cells:
            cells[self._line(hive) + 1 + worker] = ticket or 0

    def ahead_of(self, hive: int, ticket: int) -> int:
        return max(0, ticket - min(filter(None, self._firsts(hive)), default=ticket))

    def reserve_in_turn(self, hive: int, worker: int, ticket: int, owner: Owner | None) -> bool:
        """Take a place with `worker` for the holder of a ticket, if there is one and it is the lowest."""
        with self._locked() as cells:
            row, offered = self._row(hive), self._offers(hive) + 1 + worker
            full = sum(cells[row + 1 : row + self._width]) >= cells[row]
            if (full and not cells[offered]) or self.ahead_of(hive, ticket):
                return False
            if owner is not None:
                check_quota(owner, sum(self.counts(MOST_HIVES + owner.number)))
                self._count_for(owner, worker, 1)
            if full:
                cells[offered] -= 1
            else:
                cells[row + 1 + worker] += 1
            return True

    def at_work(self) -> list[bool]:
        return [bool(flag) for flag in self._cells[1 : self._width]]

    def counts(self, hive: int) -> list[int]:
        row = self._row(hive)
        return list(self._cells[row + 1 : row + self._width])

    def limit(self, hive: int) -> int:
        return self._cells[self._row(hive)]

    def _firsts(self, hive: int) -> list[int]:
        return list(self._cells[self._line(hive) + 1 : self._line(hive) + self._width])

    def _row(self, hive: int) -> int:
        return (1 + hive) * self._width  # the first row tells who is at work

    def _line(self, hive: int) -> int:
        return self._row(MOST_HIVES + MOST_TOKENS + hive)

    def _offers(self, hive: int) -> int:
        return self._row(2 * MOST_HIVES + MOST_TOKENS + hive)


class SharedPlaces:
    """The places of one hive, over all workers, as one of them sees them."""

    def __init__(self, ledger: Ledger, hive: int, worker: int, limit: int) -> None:
        self._ledger = ledger
        self.hive = hive
        self._worker = worker
        ledger.set_limit(hive, limit)

    def take(self, owner: Owner | None = None) -> None:
        if self._ledger.reserve(self.hive, self._worker, owner=owner) is None:
            raise SessionCapacityError(self.taken(), self.limit())

    def give_back(self, owner: Owner | None = None) -> None:
        self.give_back_for(self._worker, owner)

    def reserve_anywhere(self, owner: Owner | None = None) -> int | None:
        """A place with the worker that has the fewest sessions, whose number is returned; None if there is none."""
        try:
            return self._ledger.reserve(self.hive, prefer=self._worker, owner=owner)
        except SessionCapacityError:
            return None

    def give_back_for(self, worker: int, owner: Owner | None = None) -> None:
        self._ledger.release(self.hive, worker, None if owner is None else owner.number)

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

    def withdraw(self) -> None:
        self._ledger.withdraw(self.hive, self._worker)

    def best_worker(self) -> int:
        """Where a new session would go now: to the worker with the fewest, or, when all is taken, a place on offer."""
        counts, offers = self._ledger.counts(self.hive), self._ledger.on_offer(self.hive)
        full = sum(counts) >= self.limit()
        at_work = [worker for worker, yes in enumerate(self._ledger.at_work()) if yes and (offers[worker] or not full)]
        return min(at_work or [self._worker], key=lambda worker: (counts[worker], worker != self._worker))
