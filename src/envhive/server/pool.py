"""Threads that many sessions share, for what may wait where nothing else does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol

from envhive.server.threads import Baton, Done, Job, Mailbox, Pace, do, forget_this_thread

HANGING_S: Final = 1.0
"""How long a job that nobody waits for may keep a thread from others."""


class Customer(Protocol):
    """Whose jobs a pool does, one at a time."""

    given_up: bool
    """Whether nobody waits for them any longer."""


class Shift(Baton):
    """A thread of a pool that is awake, whom it works for, and since when."""

    __slots__ = ("began", "customer")

    def __init__(self) -> None:
        self.customer: Customer | None = None
        self.began = 0.0

    def given_up_since(self, moment: float) -> bool:
        """Whether it has worked at least so long for one who does not wait for it."""
        return self.customer is not None and self.customer.given_up and self.began <= moment


class Pool:
    """Threads that share their jobs, for work that may wait and has no thread of its own.

    Quick jobs are all done by one thread, which wakes the event loop after the last; several would only fight for the
    interpreter's lock. Jobs that take long get a thread each. A thread whose job is given up, because it hangs, is no
    longer one of the pool's: another may be started for it, and it ends with the job, if that ever does. A job that was
    given up before it began is done all the same, and has its thread for a while: of those there may be thousands.
    """

    __slots__ = (
        "_awake",
        "_bell",
        "_done",
        "_done_before",
        "_jobs",
        "_lock",
        "_looking",
        "_mailbox",
        "_pace",
        "_size",
        "_threads",
    )

    def __init__(self, mailbox: Mailbox, size: int) -> None:
        self._mailbox = mailbox
        self._size = size
        self._pace = Pace()
        self._jobs: deque[tuple[Job, tuple[Any, ...], Done, Customer]] = deque()
        self._bell: SimpleQueue[Shift | None] = SimpleQueue()
        self._awake: set[Shift] = set()
        self._lock = threading.Lock()  # of whom each shift works for, and whether it is still one of the pool's
        self._threads = 0
        self._done = 0  # roughly, as many threads count at once
        self._done_before = 0
        self._looking = False

    def submit(self, job: Job, args: tuple[Any, ...], done: Done, customer: Customer) -> None:
        if not self._threads:
            self._start_thread()
        self._jobs.append((job, args, done, customer))
        if not self._awake or self._pace.is_slow:
            self._wake_one()
        if not self._looking:
            self._looking, self._done_before = True, self._done
            self._mailbox.look_later(self._look)

    def give_up(self, customer: Customer) -> None:
        """Do without the thread that hangs in a job of this one. Called on the event loop."""
        customer.given_up = True
        self._write_off(lambda shift: shift.customer is customer)

    def _write_off(self, hangs: Callable[[Shift], bool]) -> None:
        """Threads that hang are no longer the pool's. Called on the event loop, where they are counted."""
        for shift in list(self._awake):
            with self._lock:
                if not hangs(shift):
                    continue
                self._awake.discard(shift)
            self._threads -= 1
            if self._jobs:
                self._wake_one()

    def stop(self) -> None:
        for _ in range(self._threads):
            self._bell.put(None)

    def _start_thread(self) -> None:
        self._mailbox.start_thread(self._work, ())
        self._threads += 1

    def _wake_one(self) -> None:
        if len(self._awake) >= self._size:
            return
        if len(self._awake) >= self._threads:
            try:
                self._start_thread()
            except RuntimeError:
                return  # with those that there are it only takes longer
        self._awake.add(shift := Shift())
        self._bell.put(shift)

    def _look(self) -> None:
        """Whether there are jobs that nobody gets to."""
        self._mailbox.deliver()
        if self._jobs and self._done == self._done_before:
            self._pace.despair()
            if len(self._awake) >= self._size:
                latest = monotonic() - HANGING_S
                self._write_off(lambda shift: shift.given_up_since(latest))
        if self._pace.is_slow:
            for _ in range(min(len(self._jobs), len(self._awake) or 1)):
                self._wake_one()
        self._done_before = self._done
        self._looking = bool(self._jobs) or self._mailbox.has_letters  # in this order: a job becomes a letter
        if self._looking:
            self._mailbox.look_later(self._look)

    def _work(self) -> None:
        """What a thread does."""
        ours = True
        while ours and (shift := self._bell.get()) is not None:
            ours = self._do_jobs(shift)
            self._mailbox.wake_loop()
        forget_this_thread()

    def _do_jobs(self, shift: Shift) -> bool:
        """Do jobs until there are none; False after one in which this thread was written off."""
        while True:
            try:
                job, args, done, customer = self._jobs.popleft()
            except IndexError:
                self._awake.discard(shift)
                if not self._jobs:
                    return True
                self._awake.add(shift)  # one more came while the shift was being ended
                continue
            with self._lock:
                shift.customer, shift.began = customer, monotonic()
            letter = do((job, args, done))
            del job, args, done  # whoever gets the letter is to have the last of them
            with self._lock:
                self._pace.note(monotonic() - shift.began)
                shift.customer = None
                is_written_off = shift not in self._awake
            self._done += 1
            self._mailbox.leave(letter)
            del letter, customer
            if is_written_off:
                return False
            if self._pace.is_slow:
                self._mailbox.wake_loop()
