"""Threads that run plain environments, and the way of their answers back to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from envhive.errors import EnvHiveError, ExecutionError

Done = Callable[[Any, EnvHiveError | None], None]
Job = Callable[..., Any]
Entry = tuple[Job, tuple[Any, ...], Done]
Inbox = SimpleQueue[Entry | None]

_SMALLEST_STACK: Final = 256 * 1024


class Worker:
    """A thread with an inbox, started on first use."""

    __slots__ = ("_inbox", "_mailbox", "_name", "_started")

    def __init__(self, mailbox: Mailbox, name: str) -> None:
        self._mailbox = mailbox
        self._name = name
        self._inbox: Inbox = SimpleQueue()
        self._started = False

    def submit(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        if not self._started:
            self._mailbox.start_thread(self._name, _work_in_turn, (self._inbox, self._mailbox))
            self._started = True
        self._mailbox.dispatch(self._inbox, (job, args, done))

    def stop(self) -> None:
        """End the thread after the jobs already given to it."""
        if self._started:
            self._mailbox.dispatch(self._inbox, None)


class Pool:
    """Threads with one inbox, started as they are needed; for work that may wait and has no thread of its own."""

    __slots__ = ("_inbox", "_mailbox", "_pending", "_size", "_threads")

    def __init__(self, mailbox: Mailbox, size: int) -> None:
        self._mailbox = mailbox
        self._size = size
        self._inbox: Inbox = SimpleQueue()
        self._threads = 0
        self._pending = 0

    def submit(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        if self._threads < min(self._pending + 1, self._size):
            self._mailbox.start_thread(f"envhive-pool-{self._threads + 1}", _work, (self._inbox, self._mailbox.put))
            self._threads += 1
        self._pending += 1
        self._inbox.put((job, args, functools.partial(self._finished, done)))

    def _finished(self, done: Done, result: Any, error: EnvHiveError | None) -> None:
        self._pending -= 1
        done(result, error)

    def stop(self) -> None:
        for _ in range(self._threads):
            self._inbox.put(None)


class Mailbox:
    """Brings the answers of all threads to the event loop, with one wake-up per batch."""

    __slots__ = ("_baton", "_letters", "_loop", "_stack_size", "_waiting", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, stack_size: int) -> None:
        self._loop = loop
        self._letters: deque[tuple[Done, Any, EnvHiveError | None]] = deque()
        self._woken = False
        self._waiting: deque[tuple[Inbox, Entry | None]] = deque()
        self._baton = False
        self._stack_size = max(stack_size, _SMALLEST_STACK)

    def start_thread(self, name: str, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        # A daemon, so that a step that never returns cannot keep the process from ending.
        thread = threading.Thread(target=work, args=args, name=name, daemon=True)
        before = threading.stack_size(self._stack_size)  # the setting is the process's, so it is put back
        try:
            thread.start()
        finally:
            threading.stack_size(before)

    def dispatch(self, inbox: Inbox, entry: Entry | None) -> None:
        """Bring a job to a worker, or leave it to the workers to do so in turn.

        Waking hundreds of threads at once makes them all queue for the interpreter's lock, each looking at it
        every 5 ms. So only one is woken, and before it begins its own job it wakes the next: a sixth less CPU a
        step, and the steps that block hold nobody up.
        """
        self._waiting.append((inbox, entry))
        if not self._baton:
            self._baton = True
            self.pass_baton()

    def pass_baton(self) -> None:
        """Bring the next job to its worker, which wakes it. Called on any thread."""
        while True:
            try:
                inbox, entry = self._waiting.popleft()
            except IndexError:
                self._baton = False
                if not self._waiting or self._baton:
                    return
                self._baton = True  # one more came while the baton was being laid down
            else:
                inbox.put(entry)
                return

    def put(self, done: Done, result: Any, error: EnvHiveError | None) -> None:
        """Called on any thread. The letter is in the box before the flag is read, so none is ever overlooked."""
        self._letters.append((done, result, error))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server ended, nobody waits for this
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        letters = self._letters
        try:
            for _ in range(len(letters)):
                done, result, error = letters.popleft()
                done(result, error)
        finally:
            if letters and not self._woken:
                self._woken = True
                self._loop.call_soon(self._deliver)


def _work_in_turn(inbox: Inbox, mailbox: Mailbox) -> None:
    """What a worker's thread does: wait for a job, see that the next worker gets its own, and do it."""
    while True:
        entry = inbox.get()
        mailbox.pass_baton()
        if entry is None:
            return
        _do(entry, mailbox.put)
        del entry  # an idle thread keeps nothing alive


def _work(inbox: Inbox, answer: Callable[[Done, Any, EnvHiveError | None], None]) -> None:
    """What a pool's thread does."""
    while (entry := inbox.get()) is not None:
        _do(entry, answer)
        del entry


def _do(entry: Entry, answer: Callable[[Done, Any, EnvHiveError | None], None]) -> None:
    job, args, done = entry
    try:
        result, error = job(*args), None
    except EnvHiveError as failure:
        result, error = None, failure
    except BaseException as failure:  # an environment may raise anything, and the thread must live on
        result, error = None, ExecutionError(f"{type(failure).__name__}: {failure}")
    answer(done, result, error)
