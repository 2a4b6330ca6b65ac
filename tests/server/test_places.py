"""Places for sessions, in one process and shared by several."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from envhive.errors import SessionCapacityError
from envhive.server.auth import Owner
from envhive.server.ledger import MOST_HIVES, Ledger, Ticket
from envhive.server.places import LocalPlaces, Places, SharedPlaces


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger.create(3)
    for worker in range(3):
        made.set_at_work(worker, True)
    made.set_limit(0, 7)
    yield made
    made.close()


def test_a_local_place_is_taken_once_and_given_again() -> None:
    places = LocalPlaces(1)
    places.take()
    with pytest.raises(SessionCapacityError) as full:
        places.take()
    assert (full.value.active_sessions, full.value.max_sessions) == (1, 1)
    places.give_back()
    places.take()


def test_places_go_to_whoever_has_the_fewest_and_to_oneself_when_even(ledger: Ledger) -> None:
    assert [ledger.reserve(0, prefer=1) for _ in range(7)] == [1, 0, 2, 1, 0, 2, 1]
    assert ledger.reserve(0, prefer=1) is None
    assert ledger.counts(0) == [2, 3, 2]
    ledger.release(0, 2)
    assert ledger.reserve(0, prefer=1) == 2


def test_a_worker_that_is_not_at_work_gets_none(ledger: Ledger) -> None:
    ledger.set_at_work(0, False)
    assert {ledger.reserve(0) for _ in range(6)} == {1, 2}


def test_a_dead_workers_places_are_free_again(ledger: Ledger) -> None:
    for _ in range(7):
        ledger.reserve(0)
    ledger.forget(1)
    assert ledger.at_work() == [True, False, True]
    assert sum(ledger.counts(0)) == 5
    assert [ledger.reserve(0), ledger.reserve(0), ledger.reserve(0)] == [2, 0, None]


def test_a_worker_that_drains_gets_no_newcomers_and_is_still_there(ledger: Ledger) -> None:
    ledger.set_at_work(0, True, takes_newcomers=False)
    assert {ledger.reserve(0) for _ in range(6)} == {1, 2}
    assert ledger.at_work() == [True, True, True]
    assert SharedPlaces(ledger, 0, 0, 7).best_worker(Counter()) in (1, 2)


def test_a_server_that_drains_does_so_in_every_life_of_a_worker(ledger: Ledger) -> None:
    places = SharedPlaces(ledger, 0, 0, 7)
    assert not places.is_draining()
    places.drain()
    ledger.forget(1)
    assert SharedPlaces(ledger, 0, 1, 7).is_draining()
    assert not SharedPlaces(ledger, 1, 1, 7).is_draining()


def handed_over(ledger: Ledger, sender: int, receiver: int, owner: Owner | None = None) -> Ticket:
    """A place with another worker, for a connection on its way there."""
    for worker in range(3):
        ledger.set_at_work(worker, worker == receiver)
    reserved = ledger.reserve_from(sender, 0, owner)
    assert reserved is not None
    assert reserved[0] == receiver
    assert reserved[1] is not None
    return reserved[1]


def test_what_a_dead_worker_was_handing_over_gives_its_place_back(ledger: Ledger) -> None:
    ada = Owner("ada", 5, 1)
    arrived, on_its_way = handed_over(ledger, 0, 1, ada), handed_over(ledger, 0, 1, ada)
    assert ledger.arrive(arrived)
    ledger.forget(0)
    assert ledger.counts(0) == [0, 1, 0]
    for _ in range(4):
        ledger.reserve(0, 2, owner=ada)  # of her five
    with pytest.raises(SessionCapacityError, match="'ada'"):
        ledger.reserve(0, 2, owner=ada)
    ledger.forget(2)
    assert not ledger.arrive(on_its_way)  # it comes after all, and has to find a place anew
    assert ledger.counts(0) == [0, 1, 0]
    assert ledger.arrive(handed_over(ledger, 2, 1))
    assert ledger.counts(0) == [0, 2, 0]


def test_a_connection_that_did_not_get_there_gives_its_place_back_once(ledger: Ledger) -> None:
    ticket = handed_over(ledger, 0, 1)
    ledger.lose(ticket)
    ledger.lose(ticket)
    assert ledger.counts(0) == [0, 0, 0]


def test_a_dead_receivers_places_are_not_given_back_a_second_time_by_the_sender(ledger: Ledger) -> None:
    ticket = handed_over(ledger, 0, 1)
    ledger.forget(1)
    handed_over(ledger, 2, 1)  # to its successor
    ledger.lose(ticket)
    ledger.forget(0)
    assert ledger.counts(0) == [0, 1, 0]


def test_a_place_on_offer_with_another_worker_is_had_where_a_newcomer_has_got_to(ledger: Ledger) -> None:
    here, there = SharedPlaces(ledger, 0, 0, 2), SharedPlaces(ledger, 0, 1, 2)
    here.take()
    there.take()
    there.offer()
    here.take()
    assert (ledger.counts(0), there.on_offer()) == ([2, 0, 0], 0)
    assert not there.keep()
    with pytest.raises(SessionCapacityError):
        here.take()
    there.withdraw(known=1)  # the session that was on offer ends: its place is none of its own any more
    assert ledger.counts(0) == [2, 0, 0]


def test_newcomers_who_are_on_their_way_count_where_they_go(ledger: Ledger) -> None:
    places, coming = SharedPlaces(ledger, 0, 1, 7), Counter[int]()
    for _ in range(7):
        coming[places.best_worker(coming)] += 1
    assert sorted(coming.values()) == [2, 2, 3]


def test_a_place_on_offer_that_is_on_its_way_is_free_again_when_it_does_not_get_there(ledger: Ledger) -> None:
    ledger.set_limit(0, 1)
    receiver = SharedPlaces(ledger, 0, 1, 1)
    receiver.take()
    receiver.offer()
    ticket = handed_over(ledger, 0, 1)
    assert (receiver.taken(), receiver.on_offer()) == (1, 0)
    with pytest.raises(SessionCapacityError):
        receiver.take()
    ledger.lose(ticket)
    assert receiver.taken() == 0
    assert ledger.arrive(handed_over(ledger, 0, 1))
    assert receiver.taken() == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_place_on_offer_that_another_has_taken_is_not_given_back_with_its_session(
    ledger: Ledger, shared: bool
) -> None:
    places: Places = SharedPlaces(ledger, 0, 0, 2) if shared else LocalPlaces(2)
    for _ in range(2):
        places.take()
        places.offer()
    places.take()  # one of those two
    places.withdraw(known=2)  # whose session ends before it is told
    assert (places.taken(), places.on_offer()) == (1, 1)
    places.withdraw(known=1)
    assert (places.taken(), places.on_offer()) == (1, 0)
    places.take()
    with pytest.raises(SessionCapacityError):
        places.take()


@pytest.mark.parametrize("shared", [False, True])
def test_places_of_clients_that_are_away_go_to_newcomers_who_find_no_other(ledger: Ledger, shared: bool) -> None:
    places: Places = SharedPlaces(ledger, 0, 0, 2) if shared else LocalPlaces(2)
    places.take()
    places.offer_of_away()
    places.take(displaces=True)  # the other
    assert (places.taken(), places.on_offer_of_away()) == (2, 1)
    with pytest.raises(SessionCapacityError):
        places.take()
    places.offer()
    places.take(displaces=True)  # what nobody wants back goes first
    assert (places.on_offer(), places.on_offer_of_away()) == (0, 1)
    places.take(displaces=True)
    assert not places.keep_of_away()
    with pytest.raises(SessionCapacityError):
        places.take(displaces=True)
    places.offer_of_away()
    assert places.keep_of_away()
    with pytest.raises(SessionCapacityError):
        places.take(displaces=True)
    places.offer_of_away()
    ticket = places.draw_ticket()
    places.show_first(ticket)
    assert [places.take_in_turn(ticket), places.take_in_turn(ticket)] == [True, False]
    assert (places.taken(), places.limit(), places.on_offer_of_away()) == (2, 2, 0)


def test_a_place_of_a_client_that_is_away_is_had_where_it_is_unless_its_worker_stands_still() -> None:
    now = 1000.0
    ledger = Ledger.create(2, lambda: now)
    for worker in range(2):
        ledger.set_at_work(worker, True)
    here, there = SharedPlaces(ledger, 0, 0, 2), SharedPlaces(ledger, 0, 1, 2)
    for _ in range(2):
        there.take()
        there.offer_of_away()
    sent = here.reserve_anywhere()
    assert sent is not None
    assert sent[0] == 1
    assert here.best_worker(Counter()) == 1
    now += 1.1
    ledger.sign(0)
    assert here.best_worker(Counter()) == 0
    assert here.reserve_anywhere() == (0, None)
    assert here.reserve_anywhere() is None
    assert ledger.counts(0) == [1, 1]
    os.close(ledger.descriptor)


def test_a_dead_workers_places_are_on_offer_no_more(ledger: Ledger) -> None:
    here, there = SharedPlaces(ledger, 0, 0, 1), SharedPlaces(ledger, 0, 1, 1)
    there.take()
    there.offer_of_away()
    ledger.forget(1)
    here.take()
    with pytest.raises(SessionCapacityError):
        here.take(displaces=True)


def test_who_waits_with_a_worker_that_stands_still_holds_nobody_up_and_has_its_turn_back() -> None:
    now = 1000.0
    ledger = Ledger.create(2, lambda: now)
    for worker in range(2):
        ledger.set_at_work(worker, True)
    stalled, other = SharedPlaces(ledger, 0, 0, 2), SharedPlaces(ledger, 0, 1, 2)
    for places in (stalled, other):
        places.take()
    first, second = stalled.draw_ticket(), other.draw_ticket()
    stalled.show_first(first)
    other.show_first(second)
    other.give_back()
    now += 0.9
    assert (other.ahead_of(second), other.take_in_turn(second)) == (1, False)
    now += 0.2
    ledger.sign(1)
    assert (other.ahead_of(second), other.take_in_turn(second)) == (0, True)
    other.show_first(None)
    assert not other.anyone_waits()
    other.give_back()
    other.take()
    assert not stalled.take_in_turn(first)
    other.give_back()
    with pytest.raises(SessionCapacityError):  # no newcomer of its own gets before it when it is awake again
        stalled.take()
    with pytest.raises(SessionCapacityError):
        other.take()
    assert stalled.take_in_turn(first)
    assert (ledger.counts(0), stalled.limit()) == ([2, 0], 2)
    os.close(ledger.descriptor)


def test_each_hive_has_places_of_its_own(ledger: Ledger) -> None:
    ledger.set_limit(1, 1)
    one, other = SharedPlaces(ledger, 0, 0, 7), SharedPlaces(ledger, 1, 0, 1)
    other.take()
    with pytest.raises(SessionCapacityError):
        other.take()
    one.take()
    assert (one.taken(), other.taken(), one.limit(), other.limit()) == (1, 1, 7, 1)


ADA, BOB = Owner("ada", 2, 0), Owner("bob", None, 1)


@pytest.mark.parametrize("shared", [False, True])
def test_an_owner_takes_no_more_places_than_its_quota(ledger: Ledger, shared: bool) -> None:
    one, other = (
        (SharedPlaces(ledger, 0, 0, 7), SharedPlaces(ledger, 1, 1, 7)) if shared else (LocalPlaces(7), LocalPlaces(7))
    )
    one.take(ADA)
    other.take(ADA)  # of another hive: the quota is the server's
    for places in (one, other):
        with pytest.raises(SessionCapacityError, match="'ada' is good for 2 session") as over:
            places.take(ADA)
        assert (over.value.active_sessions, over.value.max_sessions) == (2, 2)
    for _ in range(6):
        one.take(BOB)
    with pytest.raises(SessionCapacityError, match="Server at capacity: 7 of 7"):
        one.take(BOB)
    other.give_back(ADA)
    other.take(ADA)
    for places in (one, other):
        places.give_back(ADA)
    for _ in range(6):
        one.give_back(BOB)
    assert (one.taken(), other.taken()) == (0, 0)


def test_a_reservation_counts_in_the_quota_wherever_it_is(ledger: Ledger) -> None:
    places = SharedPlaces(ledger, 0, 0, 7)
    here, there, nowhere = (places.reserve_anywhere(ADA) for _ in range(3))
    assert (here, nowhere) == ((0, None), None)
    assert there is not None
    assert there[0] == 1
    assert there[1] is not None
    ledger.lose(there[1])
    again = places.reserve_anywhere(ADA)
    assert again is not None
    assert again[0] == 1
    assert again[1] is not None
    assert ledger.arrive(again[1])
    ledger.forget(0)
    places.take(ADA)
    with pytest.raises(SessionCapacityError, match="'ada'"):
        places.take(ADA)


def _take_and_give(descriptor: int, worker: int, rounds: int) -> None:
    ledger = Ledger(descriptor, 3)
    for _ in range(rounds):
        if ledger.reserve(0, worker) is not None:
            ledger.release(0, worker)


def test_processes_that_take_and_give_at_once_lose_nothing(ledger: Ledger) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_take_and_give, args=(ledger.descriptor, index, 2000)) for index in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    assert [process.exitcode for process in workers] == [0, 0, 0]
    assert ledger.counts(0) == [0, 0, 0]


class Dying(BaseException):
    """A process is killed."""


class LastCells:
    """A ledger's memory, to a process that is killed after it has written so many cells."""

    def __init__(self, cells: Any, writes: int) -> None:
        self._cells = cells
        self._left = writes

    def __getitem__(self, index: Any) -> Any:
        return self._cells[index]

    def __setitem__(self, index: int, value: int) -> None:
        if self._left == 0:
            raise Dying
        self._left -= 1
        self._cells[index] = value


def _state(ledger: Ledger) -> list[Any]:
    with ledger._locked():  # whatever was left half done is taken back
        offers = [ledger.on_offer(0), ledger.on_offer_of_away(0)]
        return [ledger.counts(0), offers, ledger._plain_counts(MOST_HIVES), ledger.on_the_way(0, 1)]


CHANGES: dict[str, Callable[[Ledger, Ticket], Any]] = {
    "take": lambda ledger, ticket: ledger.reserve(0, owner=ADA),
    "take another's that is on offer": lambda ledger, ticket: ledger.reserve_from(0, 0),
    "take that of a client who is away": lambda ledger, ticket: ledger.reserve(0, 2, owner=ADA, displaces=True),
    "take in turn": lambda ledger, ticket: ledger.reserve_in_turn(0, 2, 1, ADA),
    "give back": lambda ledger, ticket: ledger.release(0, 1, ADA.number),
    "arrive": lambda ledger, ticket: ledger.arrive(ticket),
    "lose": lambda ledger, ticket: ledger.lose(ticket),
    "offer": lambda ledger, ticket: ledger.offer(0, 1, ADA),
    "keep": lambda ledger, ticket: ledger.keep(0, 1, ADA),
    "withdraw": lambda ledger, ticket: ledger.withdraw(0, 1, 1),
    "offer of away": lambda ledger, ticket: ledger.offer_of_away(0, 1),
    "keep of away": lambda ledger, ticket: ledger.keep_of_away(0, 1),
    "discount": lambda ledger, ticket: ledger.discount(0, ADA),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_somebody_dies_in_the_midst_of_is_none(ledger: Ledger, name: str) -> None:
    change = CHANGES[name]
    whole = name not in ("take another's that is on offer", "take that of a client who is away")
    for writes in range(100):
        ledger.set_limit(0, 7)
        ticket = handed_over(ledger, 0, 1, ADA)
        for worker in range(3):
            ledger.set_at_work(worker, True)
            assert ledger.reserve(0, worker) is not None
        if name != "take that of a client who is away":
            ledger.offer(0, 1, None)
        ledger.offer_of_away(0, 1)
        ledger.set_limit(0, 7 if whole else 4)
        before, cells = _state(ledger), ledger._cells
        ledger._cells = cast("Any", LastCells(cells, writes))
        try:
            change(ledger, ticket)
        except Dying:
            ledger._cells = cells
            assert _state(ledger) == before
            for worker in range(3):
                ledger.forget(worker)
        else:
            ledger._cells = cells
            assert writes > 4
            assert _state(ledger) != before
            return
    raise AssertionError("it never came to an end")


def _die_with_the_lock(descriptor: int) -> None:
    ledger = Ledger(descriptor, 3)
    with ledger._locked():
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_with_the_lock_gives_it_back(ledger: Ledger) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_with_the_lock, args=(ledger.descriptor,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert ledger.reserve(0) is not None


def test_a_ledger_can_be_had_where_memory_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(errno.EACCES, "not in here")

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    made = Ledger.create(2)
    assert Ledger(made.descriptor, 2).reserve(0) is None  # of a limit of none
    made.set_limit(0, 1)
    assert Ledger(made.descriptor, 2).reserve(0) == 0
    made.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system keeps such files on a disk")
def test_a_ledger_needs_no_disk_that_may_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/dev/full")
    made = Ledger.create(2)
    made.set_limit(0, 1)
    assert made.limit(0) == 1
    made.close()
