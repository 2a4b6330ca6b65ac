"""Places for sessions, in one process and shared by several."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator

import pytest

from envhive.errors import SessionCapacityError
from envhive.server.auth import Owner
from envhive.server.places import Ledger, LocalPlaces, SharedPlaces


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger.create(3)
    for worker in range(3):
        made.set_at_work(worker, True)
    made.set_limit(0, 7)
    yield made
    os.close(made.descriptor)


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
    assert [places.reserve_anywhere(ADA), places.reserve_anywhere(ADA), places.reserve_anywhere(ADA)] == [0, 1, None]
    places.give_back_for(1, ADA)
    assert places.reserve_anywhere(ADA) == 1
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
