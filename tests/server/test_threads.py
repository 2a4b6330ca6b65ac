"""Every job given to a thread is done once, in order, on that thread, and nobody's job waits for another's."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time

import pytest

from envhive.errors import ExecutionError
from envhive.server import threads
from envhive.server.threads import Mailbox, Worker
from tests.support.mailboxes import ask, on_a_loop


def futex_lists() -> int | None:
    """How many the kernel has for this process's threads; None if it knows of none."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).prctl(78, 2, 0, 0, 0)
    return None if found < 0 else int(found)


def test_a_worker_does_its_jobs_in_order_and_always_on_the_same_thread() -> None:
    async def test(mailbox: Mailbox) -> None:
        workers = [Worker(mailbox) for number in range(20)]
        answers = [
            [ask(worker, lambda n: (n, threading.get_ident()), number) for number in range(50)] for worker in workers
        ]
        idents = []
        for of_worker in answers:
            results = await asyncio.gather(*of_worker)
            assert [number for number, _ in results] == list(range(50))
            idents.append({ident for _, ident in results})
        assert all(len(of_worker) == 1 for of_worker in idents)
        assert len(set.union(*idents)) == len(workers)
        for worker in workers:
            worker.stop()

    on_a_loop(test)


@pytest.mark.parametrize("quick_ones_first", [0, 100])
def test_a_job_that_never_ends_holds_nobody_up(quick_ones_first: int) -> None:
    release = threading.Event()

    async def test(mailbox: Mailbox) -> None:
        workers = [Worker(mailbox) for number in range(10)]
        for _ in range(quick_ones_first):  # so that the next ones are taken for quick as well
            await asyncio.gather(*(ask(worker, int) for worker in workers))
        stuck = [ask(worker, release.wait) for worker in workers[::2]]
        for _ in range(20):
            assert await asyncio.gather(*(ask(worker, int) for worker in workers[1::2])) == [0] * 5
        assert not any(answer.done() for answer in stuck)
        release.set()
        assert await asyncio.gather(*stuck) == [True] * 5
        assert await asyncio.gather(*(ask(worker, int) for worker in workers)) == [0] * 10

    try:
        on_a_loop(test)
    finally:
        release.set()


def test_jobs_that_wait_do_so_side_by_side() -> None:
    """They meet at a barrier: one after the other, none would ever pass it."""
    together = threading.Barrier(30, timeout=20)

    async def test(mailbox: Mailbox) -> None:
        workers = [Worker(mailbox) for number in range(30)]
        await asyncio.gather(*(ask(worker, int) for worker in workers))
        for _ in range(3):
            assert sorted(await asyncio.gather(*(ask(worker, together.wait) for worker in workers))) == list(range(30))

    on_a_loop(test)


def test_an_answer_does_not_wait_for_the_jobs_behind_it() -> None:
    release = threading.Event()

    async def test(mailbox: Mailbox) -> None:
        first, second = Worker(mailbox), Worker(mailbox)
        await asyncio.gather(ask(first, int), ask(second, int))
        quick, stuck = ask(first, lambda: "quick"), ask(second, release.wait)
        assert await quick == "quick"
        assert not stuck.done()
        release.set()
        await stuck

    try:
        on_a_loop(test)
    finally:
        release.set()


@pytest.mark.skipif(futex_lists() is None, reason="only Linux from 6.16 on has futex lists of a process's own")
def test_where_there_are_many_threads_the_kernel_keeps_them_in_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MANY_THREADS", 0)  # with which the first is one of many
    monkeypatch.setattr(threads, "FUTEX_LISTS", 512)

    async def test(mailbox: Mailbox) -> None:
        worker = Worker(mailbox)
        async with asyncio.timeout(20):
            while await ask(worker, futex_lists) != 512:  # the kernel does it when nobody is just being woken
                await asyncio.sleep(0)

    on_a_loop(test)


def test_what_a_job_raises_is_its_answer() -> None:
    def fail(error: BaseException) -> None:
        raise error

    async def test(mailbox: Mailbox) -> None:
        worker = Worker(mailbox)
        for error in (KeyError("k"), SystemExit(1), KeyboardInterrupt()):
            with pytest.raises(ExecutionError, match=type(error).__name__):
                await ask(worker, fail, error)
        assert await ask(worker, int) == 0

    on_a_loop(test)


def test_a_job_that_nobody_waits_behind_sets_no_timer() -> None:
    """At 300 steps a second on 64 sessions it would cost a fifth of the CPU."""

    async def test(mailbox: Mailbox) -> None:
        loop, worker = asyncio.get_running_loop(), Worker(mailbox)
        await ask(worker, int)
        assert all(handle._when > loop.time() + 1 for handle in loop._scheduled)  # type: ignore[attr-defined]
        worker.stop()

    on_a_loop(test)


def test_an_idle_mailbox_keeps_no_timer() -> None:
    """A step of an hour must not mean an event loop that looks after it for an hour."""
    release = threading.Event()

    async def test(mailbox: Mailbox) -> None:
        loop = asyncio.get_running_loop()
        worker, other = Worker(mailbox), Worker(mailbox)
        await ask(worker, int)
        stuck, _ = ask(worker, release.wait), ask(other, int)  # the second waits behind the first, for a while
        deadline = time.monotonic() + 20
        while loop._scheduled and time.monotonic() < deadline:  # type: ignore[attr-defined]
            if all(handle._when > loop.time() + 1 for handle in loop._scheduled):  # type: ignore[attr-defined]
                break  # only this test's own time-out is left
            await asyncio.sleep(0)
        assert time.monotonic() < deadline
        release.set()
        await stuck

    try:
        on_a_loop(test)
    finally:
        release.set()
