"""Who has how many sessions, over all workers of a server: in memory that they share."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from envhive.errors import QuotaExceededError
from envhive.server.auth import MOST_TOKENS, Owner
from envhive.server.filelock import FileLock

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


_ROWS: Final = 4 * MOST_HIVES + MOST_TOKENS
_GONE, _WELCOME, _BUSY_LEAVING = 0, 1, 2
_LIVELY_S: Final = 1.0
"""How long after a worker's last sign of life those who wait there are still waited for. Its process may be stopped, or
code of an environment may hold its event loop up, for hours."""
_MOST_NOTES: Final = 8
"""Cells that one change may concern."""


class Ticket(NamedTuple):
    """For a place that is reserved with another worker, until the connection that it is for has got there."""

    hive: int
    sender: int
    receiver: int
    owner: int | None
    life: int
    """Which of the sender's: another worker may have its number by the time the connection arrives."""


class Ledger:
    """The places of all workers, in memory that they share.

    A row for each hive: its limit, then how many sessions each worker has; and one for each owner of a token, alike.
    Then again one for each hive: the last ticket drawn by those who wait for a place, and the lowest that waits with
    each worker. And two more: whether it drains, and how many of each worker's places are on offer; and on how many
    more of them the client of a session has been away for so long that they are on offer, too. Before these there is a
    row that tells who is at work, behind them one with how many lives each worker's number has had, and one with
    when each gave its last sign of life. The rest is a square for each hive: how many connections each worker is
    handing to each other one. Their places count for the receiver, but end with the sender, which alone knows of them
    until they get there.

    Changes are made under a file lock, which the system takes back from a process that dies with it; each costs two
    system calls, once a session. Before a cell is changed it is noted down what was in it. Of a change that somebody
    died in the midst of nothing remains: whoever has the lock next puts back what was there.
    """

    def __init__(self, descriptor: int, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.descriptor = descriptor
        self.workers = workers
        self._clock = clock
        self._width = 1 + workers
        self._memory = mmap.mmap(descriptor, self._size(workers))
        self._cells = memoryview(self._memory).cast("q")
        self._lock = FileLock(descriptor)

    @staticmethod
    def _size(workers: int) -> int:
        return 8 * ((1 + workers) * (3 + _ROWS) + MOST_HIVES * workers * workers + 1 + 2 * _MOST_NOTES)

    @classmethod
    def create(cls, workers: int, clock: Callable[[], float] = time.monotonic) -> Ledger:
        """A new ledger; its descriptor is to be inherited by the workers."""
        size = cls._size(workers)
        try:
            descriptor = os.memfd_create("envhive-ledger")
            os.ftruncate(descriptor, size)
        except (AttributeError, OSError):  # it is Linux's, and some sandboxes forbid it
            with tempfile.TemporaryFile() as file:
                file.write(bytes(size))  # not only its size: on a disk that is full, its use would be a SIGBUS
                file.flush()
                descriptor = os.dup(file.fileno())
        os.set_inheritable(descriptor, True)
        return cls(descriptor, workers, clock)

    def close(self) -> None:
        self._lock.close()
        os.close(self.descriptor)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[memoryview]:
        with self._lock:
            self._take_back()  # what somebody died in the midst of
            try:
                yield self._cells
            except BaseException:  # a change that is refused half-way is none
                self._take_back()
                raise
            self._cells[self._notes()] = 0

    def _change(self, index: int, by: int) -> None:
        """Change a cell, for good when the lock is given back; no cell gets below zero."""
        cells, notes = self._cells, self._notes()
        before, count = cells[index], cells[notes]
        cells[notes + 1 + 2 * count], cells[notes + 2 + 2 * count] = index, before
        cells[notes] = count + 1
        cells[index] = max(0, before + by)

    def _take_back(self) -> None:
        cells, notes = self._cells, self._notes()
        for count in range(cells[notes], 0, -1):
            index, before = cells[notes - 1 + 2 * count], cells[notes + 2 * count]
            cells[index] = before
        cells[notes] = 0

    def set_limit(self, hive: int, limit: int) -> None:
        with self._locked() as cells:
            cells[self._row(hive)] = limit

    def reserve(
        self,
        hive: int,
        worker: int | None = None,
        *,
        prefer: int = 0,
        owner: Owner | None = None,
        displaces: bool = False,
    ) -> int | None:
        """Take a place with `worker`, or with the one that has the fewest; None when the server is full.

        Of several with equally few, `prefer` is taken if it is one of them. When all places are taken, it is one that
        is on offer, if any, also that of a client who is away if the newcomer `displaces`: with `worker` if there is
        one there, else another's, which notices at its next look. Raises when `owner` may have no more.
        """
        with self._locked():
            return self._reserve(hive, worker, prefer, owner, displaces)

    def _reserve(
        self,
        hive: int,
        worker: int | None,
        prefer: int,
        owner: Owner | None,
        displaces: bool,
        sender: int | None = None,
    ) -> int | None:
        """As `reserve`; with a `sender`, whatever is another worker's is on its way from there."""
        cells = self._cells
        if owner is not None:
            check_quota(owner, sum(self._plain_counts(MOST_HIVES + owner.number)))
        if any(self._firsts(hive)):
            return None
        row, counts = self._row(hive), self.counts(hive)
        at_work = [index for index in range(self.workers) if cells[1 + index] == _WELCOME] or [prefer]
        candidates = at_work if worker is None else [worker]
        full = sum(counts) >= cells[row]
        if full and worker is None:
            # A worker that stands still does not take the newcomer in; its place is had all the same.
            there = self._offering(hive, displaces)[1]
            lively = [index for index in candidates if index in there and self._is_lively(index)]
            candidates = lively or [index for index in candidates if index == prefer]
        if not candidates:
            return None
        worker = min(candidates, key=lambda index: (counts[index], index != prefer))
        if full and not self._take_offered(hive, worker, displaces):
            return None
        if sender is None or sender == worker:
            self._change(row + 1 + worker, 1)
            self._count_for(owner, worker, 1)
        else:
            self._change(self._way(hive, sender, worker), 1)
            self._count_for(owner, sender, 1)
        return worker

    def _offering(self, hive: int, displaces: bool) -> tuple[int, list[int]]:
        """Which workers have places on offer, and the row that says how many each."""
        for row in (self._offers(hive), self._away(hive))[: 1 + displaces]:
            offering = [index for index in range(self.workers) if self._cells[row + 1 + index]]
            if offering:
                return row, offering
        return 0, []

    def _take_offered(self, hive: int, worker: int, displaces: bool) -> bool:
        """Take a place that is on offer away from who has it, which is `worker` if possible; False if there is none."""
        row, offering = self._offering(hive, displaces)
        if not offering:
            return False
        donor = worker if worker in offering else offering[0]
        self._change(row + 1 + donor, -1)
        self._change(self._row(hive) + 1 + donor, -1)
        return True

    def _count_for(self, owner: Owner | None, worker: int, change: int) -> None:
        if owner is not None:
            self._change(self._row(MOST_HIVES + owner.number) + 1 + worker, change)

    def offer(self, hive: int, worker: int, owner: Owner | None) -> None:
        with self._locked():
            self._change(self._offers(hive) + 1 + worker, 1)
            self._count_for(owner, worker, -1)

    def offer_of_away(self, hive: int, worker: int) -> None:
        with self._locked():
            self._change(self._away(hive) + 1 + worker, 1)

    def keep_of_away(self, hive: int, worker: int) -> bool:
        with self._locked() as cells:
            index = self._away(hive) + 1 + worker
            if not cells[index]:
                return False
            self._change(index, -1)
            return True

    def discount(self, worker: int, owner: Owner) -> None:
        with self._locked():
            self._count_for(owner, worker, -1)

    def keep(self, hive: int, worker: int, owner: Owner | None) -> bool:
        with self._locked() as cells:
            index = self._offers(hive) + 1 + worker
            if not cells[index]:
                return False
            if owner is not None:
                check_quota(owner, sum(self._plain_counts(MOST_HIVES + owner.number)))
                self._count_for(owner, worker, 1)
            self._change(index, -1)
            return True

    def withdraw(self, hive: int, worker: int, known: int) -> None:
        with self._locked() as cells:
            offered = self._offers(hive) + 1 + worker
            if cells[offered] >= known:
                self._change(offered, -1)
                self._change(self._row(hive) + 1 + worker, -1)

    # Places on their way.

    def reserve_from(self, sender: int, hive: int, owner: Owner | None = None) -> tuple[int, Ticket | None] | None:
        """A place for a connection that `sender` has, as `reserve`; with a ticket where it is another worker's."""
        with self._locked() as cells:
            worker = self._reserve(hive, None, sender, owner, True, sender)
            if worker is None or worker == sender:
                return None if worker is None else (worker, None)
            number = None if owner is None else owner.number
            return worker, Ticket(hive, sender, worker, number, cells[self._lives() + 1 + sender])

    def arrive(self, ticket: Ticket) -> bool:
        """The connection has got there; False if its place is gone, as the sender is."""
        with self._locked():
            if not self._take_up(ticket):
                return False
            self._change(self._row(ticket.hive) + 1 + ticket.receiver, 1)
            if ticket.owner is not None:
                self._change(self._row(MOST_HIVES + ticket.owner) + 1 + ticket.receiver, 1)
            return True

    def lose(self, ticket: Ticket) -> None:
        """The connection will not get there: its place is free."""
        with self._locked():
            self._take_up(ticket)

    def _take_up(self, ticket: Ticket) -> bool:
        way = self._way(ticket.hive, ticket.sender, ticket.receiver)
        if ticket.life != self._cells[self._lives() + 1 + ticket.sender] or not self._cells[way]:
            return False
        self._change(way, -1)
        if ticket.owner is not None:
            self._change(self._row(MOST_HIVES + ticket.owner) + 1 + ticket.sender, -1)
        return True

    def on_the_way(self, sender: int, receiver: int) -> int:
        """How many connections have yet to get from one to the other."""
        return sum(self._cells[self._way(hive, sender, receiver)] for hive in self._hives())

    def _hives(self) -> list[int]:
        return [hive for hive in range(MOST_HIVES) if self._cells[self._row(hive)]]

    def on_offer(self, hive: int) -> list[int]:
        offers = self._offers(hive)
        return list(self._cells[offers + 1 : offers + self._width])

    def on_offer_of_away(self, hive: int) -> list[int]:
        away = self._away(hive)
        return list(self._cells[away + 1 : away + self._width])

    def anyone_waits(self, hive: int) -> bool:
        return any(self._firsts(hive))

    def release(self, hive: int, worker: int, owner: int | None = None) -> None:
        with self._locked():
            for row in (hive,) if owner is None else (hive, MOST_HIVES + owner):
                self._change(self._row(row) + 1 + worker, -1)

    def set_at_work(self, worker: int, at_work: bool, *, takes_newcomers: bool = True) -> None:
        """Whether a worker is there, from when it is ready until it is told to stop or dies; and whether for more."""
        self.sign(worker)
        with self._locked() as cells:
            cells[1 + worker] = _GONE if not at_work else _WELCOME if takes_newcomers else _BUSY_LEAVING

    def sign(self, worker: int) -> None:
        """A worker shows that it is alive. It needs no lock: nobody else writes this cell."""
        self._cells[self._signs() + 1 + worker] = self._now()

    def _is_lively(self, worker: int) -> bool:
        return self._now() - self._cells[self._signs() + 1 + worker] <= 1000 * _LIVELY_S

    def _now(self) -> int:
        return int(1000 * self._clock())

    def forget(self, worker: int) -> None:
        """A worker died, its sessions with it, and what it was handing over. Who hands to it notices by itself."""
        with self._locked() as cells:
            for hive in self._hives():
                for other in range(self.workers):
                    cells[self._way(hive, worker, other)] = 0
            cells[1 + worker] = _GONE
            cells[self._lives() + 1 + worker] += 1
            for row in range(_ROWS):
                cells[self._row(row) + 1 + worker] = 0

    def set_draining(self, hive: int) -> None:
        with self._locked() as cells:
            cells[self._offers(hive)] = 1

    def is_draining(self, hive: int) -> bool:
        return bool(self._cells[self._offers(hive)])

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
            row = self._row(hive)
            full = sum(self.counts(hive)) >= cells[row]
            # Also for whoever would displace nobody by itself: it is in the way of those who would.
            if self.ahead_of(hive, ticket) or (full and not self._take_offered(hive, worker, displaces=True)):
                return False
            if owner is not None:
                check_quota(owner, sum(self._plain_counts(MOST_HIVES + owner.number)))
                self._count_for(owner, worker, 1)
            self._change(row + 1 + worker, 1)
            return True

    def at_work(self) -> list[bool]:
        return [bool(flag) for flag in self._cells[1 : self._width]]

    def lively(self) -> list[bool]:
        """Who of them has given a sign of life just now."""
        return [self._is_lively(worker) for worker in range(self.workers)]

    def welcoming(self) -> list[bool]:
        """Who of them takes newcomers."""
        return [flag == _WELCOME for flag in self._cells[1 : self._width]]

    def counts(self, hive: int) -> list[int]:
        """How many sessions each worker has, with those that are on their way to it."""
        first = self._way(hive, 0, 0)
        ways = self._cells[first : first + self.workers * self.workers].tolist()
        own = self._plain_counts(hive)
        if not any(ways):
            return own
        return [count + sum(ways[worker :: self.workers]) for worker, count in enumerate(own)]

    def _plain_counts(self, row: int) -> list[int]:
        first = self._row(row) + 1
        return list(self._cells[first : first + self.workers])

    def limit(self, hive: int) -> int:
        return self._cells[self._row(hive)]

    def _firsts(self, hive: int) -> list[int]:
        """The lowest ticket of each worker; 0 if there is none, or the worker is not lively: it holds nobody up."""
        firsts = list(self._cells[self._line(hive) + 1 : self._line(hive) + self._width])
        return [ticket if ticket and self._is_lively(worker) else 0 for worker, ticket in enumerate(firsts)]

    def _row(self, hive: int) -> int:
        return (1 + hive) * self._width  # the first row tells who is at work

    def _line(self, hive: int) -> int:
        return self._row(MOST_HIVES + MOST_TOKENS + hive)

    def _offers(self, hive: int) -> int:
        return self._row(2 * MOST_HIVES + MOST_TOKENS + hive)

    def _away(self, hive: int) -> int:
        return self._row(3 * MOST_HIVES + MOST_TOKENS + hive)

    def _lives(self) -> int:
        return self._row(_ROWS)

    def _signs(self) -> int:
        return self._row(_ROWS + 1)

    def _way(self, hive: int, sender: int, receiver: int) -> int:
        return self._row(_ROWS + 2) + (hive * self.workers + sender) * self.workers + receiver

    def _notes(self) -> int:
        return self._way(MOST_HIVES, 0, 0)
