"""Threads that run plain environments, and the way of their answers back to the event loop."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final

from envhive.errors import EnvHiveError
from envhive.server import forks
from envhive.server.bell import Bell
from envhive.server.calls import attribute_stray
from envhive.server.logs import LogTag, set_tag

Done = Callable[[Any, EnvHiveError | None], None]
Job = Callable[..., Any]
Entry = tuple[Job, tuple[Any, ...], Done]
Letter = tuple[Done, Any, EnvHiveError | None]

logger: Final = logging.getLogger("envhive.server")

_SMALLEST_STACK: Final = 256 * 1024
_QUICK_S: Final = 100e-6
"""Jobs shorter than this are better done one after the other than side by side."""
_PATIENCE_S: Final = 0.002
"""How long one that was taken for quick may hold up the others."""
MANY_THREADS: Final = 256
FUTEX_LISTS: Final = 4096
_PR_FUTEX_HASH: Final = 78
_SET_SLOTS: Final = 1
_SLOW: Final = 8
_SLOWEST: Final = 16


class Baton:
    """Whoever has it wakes the next worker."""

    __slots__ = ()


class Worker:
    """A thread with an inbox, started on first use."""

    __slots__ = ("_inbox", "_mailbox", "_tag", "ident")

    def __init__(self, mailbox: Mailbox, tag: LogTag | None = None) -> None:
        self._mailbox = mailbox
        self._tag = tag  # of the session whose own thread it is
        self._inbox: SimpleQueue[tuple[Entry | None, Baton]] = SimpleQueue()
        self.ident = 0
        """The thread's own name for itself; 0 until it has started."""

    def submit(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        if not self.ident:
            self.ident = self._mailbox.start_thread(self._work, ())
        self._mailbox.dispatch(self._inbox, (job, args, done))

    def stop(self) -> None:
        """End the thread after the jobs already given to it."""
        if self.ident:
            self._mailbox.dispatch(self._inbox, None)

    def _work(self) -> None:
        """What the thread does."""
        be_patient()
        set_tag(self._tag)
        get, work = self._inbox.get, self._mailbox.work
        while True:
            entry, baton = get()
            if entry is None:
                forget_this_thread()
                self._mailbox.pass_on(baton)
                return
            work(entry, baton)
            del entry, baton  # an idle thread keeps nothing alive


class Pace:
    """Whether jobs are quick, judged by the last ones."""

    __slots__ = ("slowness",)

    def __init__(self) -> None:
        self.slowness = 0

    @property
    def is_slow(self) -> bool:
        return self.slowness >= _SLOW

    def note(self, seconds: float) -> None:
        """A job has taken so long."""
        if seconds > _QUICK_S:
            self.slowness = min(self.slowness + 2, _SLOWEST)
        elif self.slowness:
            self.slowness -= 1

    def despair(self) -> None:
        """One takes so long that it is not worth waiting for its end."""
        self.slowness = _SLOWEST


class Mailbox:
    """Brings jobs to workers and answers to the event loop.

    Waking hundreds of threads at once makes them all queue for the interpreter's lock, each looking at it every
    5 ms. So one is woken, and it wakes the next. As long as jobs are quick it does so after its own, and the last
    of them wakes the event loop: one thread runs at a time, none fights for the lock, and the answers go out
    together. Where jobs take long (they wait, or work without the lock), it wakes the next before it begins its own.
    Which of the two it is, is judged by the last jobs; a job that turns out to take long is noticed by the event
    loop, which then sees to those behind it.
    """

    __slots__ = (
        "__weakref__",
        "_batons",
        "_bell",
        "_letters",
        "_looking",
        "_loop",
        "_pace",
        "_passed",
        "_passed_before",
        "_spread",
        "_stack_size",
        "_waiting",
        "_woken",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, stack_size: int) -> None:
        self._loop = loop
        self._stack_size = max(stack_size, _SMALLEST_STACK)
        self._waiting: deque[tuple[SimpleQueue[tuple[Entry | None, Baton]], Entry | None]] = deque()
        self._batons: set[Baton] = set()
        self._passed = 0  # how often; roughly, as many threads count at once
        self._pace = Pace()
        self._letters: deque[Letter] = deque()
        self._woken = False
        self._looking = False
        self._passed_before = 0
        self._spread = False
        self._bell = Bell(loop, self.deliver)

    def stop(self) -> None:
        """Bring no more answers: nobody waits for them. Called on the event loop."""
        self._bell.stop()

    def start_thread(self, work: Callable[..., None], args: tuple[Any, ...]) -> int:
        """Start a thread that does not keep the process from ending; raises `RuntimeError` if the system has no more.

        A `threading.Thread` takes 2.4 kB, and starting one waits until it runs: opening sessions takes a sixth longer.
        """
        if not self._spread and _thread._count() >= MANY_THREADS:
            self._spread = True
            spread_futexes()
        before = threading.stack_size(self._stack_size)  # the setting is the process's, so it is put back
        try:
            return _thread.start_new_thread(work, args)
        finally:
            threading.stack_size(before)

    # Jobs.

    def dispatch(self, inbox: SimpleQueue[tuple[Entry | None, Baton]], entry: Entry | None) -> None:
        """Bring a job to a worker, now or when it is its turn. Called on the event loop."""
        self._waiting.append((inbox, entry))
        if not self._batons:
            self._start_round()
        elif not self._looking:  # it waits behind others
            self._looking, self._passed_before = True, self._passed
            self.look_later(self._look)

    def look_later(self, look: Callable[[], None]) -> None:
        """Have somebody look whether jobs that were taken for quick are."""
        self._loop.call_later(_PATIENCE_S, look)

    def work(self, entry: Entry, baton: Baton) -> None:
        """Do a job, and wake the next worker before or after. Called on a worker's thread."""
        pace = self._pace
        if slow := pace.slowness >= _SLOW:
            self.pass_on(baton)
        began = monotonic()
        letter = do(entry)
        took = monotonic() - began
        if took > _QUICK_S or pace.slowness:
            pace.note(took)
        self._letters.append(letter)
        if slow:
            self.wake_loop()
        else:
            self.pass_on(baton)

    def pass_on(self, baton: Baton) -> None:
        """Wake the next worker; after the last, the event loop. Called on any thread."""
        self._passed += 1
        while baton in self._batons:
            try:
                inbox, entry = self._waiting.popleft()
            except IndexError:
                self._batons.discard(baton)
                if not self._waiting or self._batons:
                    break
                self._batons.add(baton)  # one more came while the baton was being laid down
            else:
                inbox.put((entry, baton))
                return
        self.wake_loop()

    def _start_round(self) -> None:
        self._batons.add(baton := Baton())
        self.pass_on(baton)

    def _look(self) -> None:
        """Whether a worker that was to wake others after its job keeps them waiting."""
        self.deliver()
        if self._batons and self._passed == self._passed_before:
            self._pace.despair()
            self._batons.clear()
            if self._waiting:
                self._start_round()
        self._passed_before = self._passed
        if self._batons or self._waiting or self._letters:
            self.look_later(self._look)
        else:
            self._looking = False

    # Answers.

    @property
    def has_letters(self) -> bool:
        return bool(self._letters)

    def leave(self, letter: Letter) -> None:
        """Called on any thread, and followed by `wake_loop` sooner or later."""
        self._letters.append(letter)

    def wake_loop(self) -> None:
        """Have the letters delivered, if there are any. They are in the box before the flag is read: none is lost."""
        if self._letters and not self._woken:
            self._woken = True
            self._bell.ring()

    def deliver(self) -> None:
        self._woken = False
        letters = self._letters
        try:
            for _ in range(len(letters)):
                done, result, error = letters.popleft()
                done(result, error)
        except Exception:  # whatever it is, the others are to get their answers
            logger.exception("An answer could not be delivered")
        finally:
            if letters and not self._woken:
                self._woken = True
                self._loop.call_soon(self.deliver)


def spread_futexes() -> None:
    """Let the kernel find a thread that is to be woken at once.

    Since 6.16 Linux keeps the waiting threads of a process in a few lists, 16 on two cores, and a wake-up looks through
    one of them. With 16,384 sessions, p99 of the storm was 10 to 13 s instead of 15 to 18 s.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _SET_SLOTS, ctypes.c_ulong(FUTEX_LISTS), 0, 0)  # others refuse: no harm


def be_patient() -> None:
    """Ask the system not to interrupt whoever wakes this thread.

    Otherwise it takes the processor at once, only to find that the waker still has the interpreter's lock: a
    quarter more CPU a step, measured with 64 sessions. What the environment starts (programs, threads) is not affected.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some containers forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def forget_this_thread() -> None:
    """If the environment asked for the current thread, `threading` made up one, and before 3.13 keeps it for ever."""
    threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]


def do(entry: Entry) -> Letter:
    """A job's answer, whatever comes of it."""
    job, args, done = entry
    result, error = None, None
    try:
        result = job(*args)
    except EnvHiveError as failure:
        error = failure
    except BaseException as failure:  # an environment may raise anything, and the thread must live on
        if forks.forked:
            forks.end_child(failure)
        error = attribute_stray(failure)
    if forks.forked:
        forks.end_child(error)
    return done, result, error
