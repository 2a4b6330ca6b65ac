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
Inbox = SimpleQueue[tuple[Job, tuple[Any, ...], Done] | None]

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
        self._inbox.put((job, args, done))
        if not self._started:
            self._started = True
            self._mailbox.start_thread(self._name, self._inbox)

    def stop(self) -> None:
        """End the thread after the jobs already given to it."""
        if self._started:
            self._inbox.put(None)


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
        self._pending += 1
        if self._threads < min(self._pending, self._size):
            self._threads += 1
            self._mailbox.start_thread(f"envhive-pool-{self._threads}", self._inbox)
        self._inbox.put((job, args, functools.partial(self._finished, done)))

    def _finished(self, done: Done, result: Any, error: EnvHiveError | None) -> None:
        self._pending -= 1
        done(result, error)

    def stop(self) -> None:
        for _ in range(self._threads):
            self._inbox.put(None)


class Mailbox:
    """Brings the answers of all threads to the event loop, with one wake-up per batch."""

    __slots__ = ("_letters", "_loop", "_stack_size", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, stack_size: int) -> None:
        self._loop = loop
        self._letters: deque[tuple[Done, Any, EnvHiveError | None]] = deque()
        self._woken = False
        self._stack_size = max(stack_size, _SMALLEST_STACK)

    def start_thread(self, name: str, inbox: Inbox) -> None:
        """Start a thread that works through `inbox` and answers here."""
        # A daemon, so that a step that never returns cannot keep the process from ending.
        thread = threading.Thread(target=_work, args=(inbox, self.put), name=name, daemon=True)
        before = threading.stack_size(self._stack_size)  # the setting is the process's, so it is put back
        try:
            thread.start()
        finally:
            threading.stack_size(before)

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


def _work(inbox: Inbox, answer: Callable[[Done, Any, EnvHiveError | None], None]) -> None:
    while (entry := inbox.get()) is not None:
        job, args, done = entry
        try:
            result, error = job(*args), None
        except EnvHiveError as failure:
            result, error = None, failure
        except BaseException as failure:  # an environment may raise anything, and the thread must live on
            result, error = None, ExecutionError(f"{type(failure).__name__}: {failure}")
        answer(done, result, error)
        del entry, job, args, done, result, error  # an idle thread keeps nothing alive
