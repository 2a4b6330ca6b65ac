"""Threads that many share: every job is done once, those that wait do so side by side, those that hang do not count."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from envhive.errors import ExecutionError
from envhive.server.pool import Pool
from envhive.server.threads import Mailbox
from tests.support.mailboxes import Customer, ask, on_a_loop


def test_a_pool_does_all_jobs_and_answers_each_once() -> None:
    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 8)
        for size in (1, 100, 3):
            assert await asyncio.gather(*(ask(pool, int, number) for number in range(size))) == list(range(size))
        with pytest.raises(ExecutionError, match="ZeroDivisionError"):
            await ask(pool, lambda: 1 / 0)
        pool.stop()

    on_a_loop(test)


@pytest.mark.parametrize("quick_ones_first", [0, 100])
def test_jobs_of_a_pool_that_wait_do_so_side_by_side_up_to_its_size(quick_ones_first: int) -> None:
    release = threading.Event()
    running: set[int] = set()

    def wait() -> None:
        running.add(threading.get_ident())
        release.wait()

    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 6)
        await asyncio.gather(*(ask(pool, int) for _ in range(quick_ones_first)))
        waiting = [ask(pool, wait) for _ in range(5)]
        assert await asyncio.gather(*(ask(pool, int) for _ in range(20))) == [0] * 20  # there is a sixth thread
        waiting += [ask(pool, wait) for _ in range(5)]
        while len(running) < 6:
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*waiting)
        assert len(running) == 6
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        release.set()


def test_a_pool_does_with_the_threads_that_it_gets_and_takes_more_when_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()
    refused = 0

    async def test(mailbox: Mailbox) -> None:
        nonlocal refused

        def refuse(*args: Any) -> int:
            nonlocal refused
            refused += 1
            raise RuntimeError("can't start new thread")

        pool = Pool(mailbox, 4)
        stuck = ask(pool, release.wait)
        monkeypatch.setattr(Mailbox, "start_thread", refuse)
        waiting = [ask(pool, int) for _ in range(3)]
        while refused < 20:
            await asyncio.sleep(0)
        assert not any(answer.done() for answer in waiting)
        monkeypatch.undo()
        assert await asyncio.gather(*waiting) == [0] * 3
        release.set()
        await stuck
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        release.set()


def test_jobs_of_a_pool_that_wait_a_little_do_so_side_by_side() -> None:
    def nap() -> int:
        time.sleep(0.0015)  # too long for quick ones, too short to be waited for in vain
        return threading.get_ident()

    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 64)
        assert len(set(await asyncio.gather(*(ask(pool, nap) for _ in range(200))))) >= 4
        pool.stop()

    on_a_loop(test)


def test_an_answer_of_a_pool_does_not_wait_for_the_job_behind_it() -> None:
    release = threading.Event()

    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 1)
        await asyncio.gather(*(ask(pool, int) for _ in range(100)))
        quick, stuck = ask(pool, lambda: "quick"), ask(pool, release.wait)
        assert await quick == "quick"
        assert not stuck.done()
        release.set()
        await stuck
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        release.set()


class Hang:
    """A job that hangs until it is released, and who does it."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.threads: list[int] = []

    def __call__(self) -> int:
        self.threads.append(threading.get_ident())
        assert self.released.wait(20)
        return threading.get_ident()

    async def has_begun(self, times: int = 1) -> None:
        while len(self.threads) < times:
            await asyncio.sleep(0)


async def side_by_side(pool: Pool, jobs: int) -> int:
    """How many of so many jobs, which all wait for each other, the pool does at once."""
    hang = Hang()
    answers = [ask(pool, hang) for _ in range(jobs)]
    most = 0
    for _ in range(50):  # looks of the pool's at whether somebody waits
        await asyncio.sleep(0.002)
        most = max(most, len(hang.threads))
    hang.released.set()
    await asyncio.gather(*answers)
    return most


def test_a_thread_of_a_pool_that_hangs_in_a_job_that_was_given_up_does_not_count() -> None:
    hang = Hang()

    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 3)
        customers = [Customer() for _ in range(5)]
        hung = [ask(pool, hang, customer=customer) for customer in customers[:3]]
        await hang.has_begun(3)
        waiting = ask(pool, int)
        for customer in customers[:3]:
            pool.give_up(customer)
        assert await waiting == 0
        assert await side_by_side(pool, 6) == 3
        hung += [ask(pool, hang, customer=customer) for customer in customers[3:]]
        await hang.has_begun(5)
        pool.give_up(customers[3])
        assert await side_by_side(pool, 6) == 2  # the other one counts: somebody waits for it
        hang.released.set()
        assert sorted(await asyncio.gather(*hung)) == sorted(hang.threads)
        left = set(hang.threads[:3])
        while left & sys._current_frames().keys():  # they end: there are others in their place
            await asyncio.sleep(0)
        assert await side_by_side(pool, 6) == 3
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        hang.released.set()


def test_a_job_of_a_pool_that_was_given_up_before_it_began_keeps_its_thread_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envhive.server.pool.HANGING_S", 0.02)
    first, second = Hang(), Hang()

    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 1)
        customer = Customer()
        running = ask(pool, first)
        await first.has_begun()
        hung = ask(pool, second, customer=customer)
        pool.give_up(customer)
        waiting = ask(pool, int)
        first.released.set()
        await running
        assert await waiting == 0
        assert not hung.done()
        second.released.set()
        await hung
        third = Hang()
        hung = ask(pool, third, customer=customer)  # such as the `close` after a constructor
        await third.has_begun()
        assert await ask(pool, int) == 0
        third.released.set()
        await hung
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        first.released.set()
        second.released.set()


def test_many_jobs_of_a_pool_that_are_given_up_before_they_begin_are_not_all_done_at_once() -> None:
    hang = Hang()

    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 3)
        customers = [Customer() for _ in range(100)]
        answers = [ask(pool, hang, customer=customer) for customer in customers]
        await hang.has_begun(3)
        for customer in customers[3:]:
            pool.give_up(customer)
        for _ in range(50):  # looks of the pool's at whether somebody waits
            await asyncio.sleep(0.002)
        assert len(hang.threads) == 3
        hang.released.set()
        await asyncio.gather(*answers)
        assert len(hang.threads) == 100
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        hang.released.set()


def test_a_pool_that_has_given_up_its_last_thread_takes_another_when_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hang = Hang()
    refused = 0

    async def test(mailbox: Mailbox) -> None:
        def refuse(*args: Any) -> int:
            nonlocal refused
            refused += 1
            raise RuntimeError("can't start new thread")

        pool = Pool(mailbox, 1)
        customer = Customer()
        hung = ask(pool, hang, customer=customer)
        await hang.has_begun()
        waiting = ask(pool, int)
        monkeypatch.setattr(Mailbox, "start_thread", refuse)
        pool.give_up(customer)
        while refused < 5:
            await asyncio.sleep(0)
        monkeypatch.undo()
        assert await waiting == 0
        hang.released.set()
        await hung
        pool.stop()

    try:
        on_a_loop(test)
    finally:
        hang.released.set()


def test_giving_up_a_job_of_a_pool_that_is_over_changes_nothing() -> None:
    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 1)
        customer = Customer()
        before = await ask(pool, threading.get_ident, customer=customer)
        pool.give_up(customer)
        pool.give_up(customer)
        assert await ask(pool, threading.get_ident) == before
        pool.stop()

    on_a_loop(test)


def test_jobs_of_a_pool_that_are_given_up_at_any_moment_are_all_done_and_its_size_stays() -> None:
    async def test(mailbox: Mailbox) -> None:
        pool = Pool(mailbox, 3)
        for number in range(400):
            customers = [Customer() for _ in range(4)]
            answers = [ask(pool, time.sleep, number % 7 * 20e-6, customer=customer) for customer in customers]
            for customer in customers[::2]:
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                pool.give_up(customer)
            await asyncio.gather(*answers)
        assert await side_by_side(pool, 6) == 3
        pool.stop()

    on_a_loop(test)
