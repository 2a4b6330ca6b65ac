"""Running one environment's code where it belongs: on the event loop, or on a thread of its own.

A runner is given one job at a time and answers each by calling `done` on the event loop, with the
job's result or with the failure it was attributed to.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Final

from envhive.errors import EnvHiveError, ExecutionError
from envhive.inspection import ClassPlan, Place, plan_for
from envhive.server.calls import Calls, describe

Done = Callable[[Any, EnvHiveError | None], None]
Job = Callable[..., Any]
AsyncJob = Callable[..., Awaitable[Any]]
Inbox = SimpleQueue[tuple[Job, tuple[Any, ...], Done] | None]


class Runner(ABC):
    """Owns one environment and says where its methods run."""

    __slots__ = ("calls", "env", "plan")

    plan: ClassPlan

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.env: Any = None

    @abstractmethod
    def open(self, done: Done) -> None:
        """Make the environment."""

    @abstractmethod
    def run(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        """Run a plain function on the environment."""

    @abstractmethod
    def run_async(self, job: AsyncJob, args: tuple[Any, ...], done: Done) -> None:
        """Run a coroutine function on the environment, on the event loop."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop the running job if its kind of code can be stopped. `done` is called either way."""

    @abstractmethod
    def close(self, done: Done) -> None:
        """Close the environment, if there is one, and give back what the runner holds."""

    def _opened(self, done: Done, env: Any, error: EnvHiveError | None) -> None:
        if error is None:
            self.env, self.plan = env, plan_for(type(env))
        done(env, error)

    def reset(self, keywords: dict[str, Any], done: Done) -> None:
        plan = self.plan.reset
        if plan.is_async:
            self.run_async(self.calls.reset_async, (self.env, plan, keywords), done)
        else:
            self.run(self.calls.reset, (self.env, plan, keywords), done)

    def step(self, action: bytes, keywords: dict[str, Any], done: Done) -> None:
        plan = self.plan.step
        if plan.is_async:
            self.run_async(self.calls.step_async, (self.env, plan, action, keywords), done)
        else:
            self.run(self.calls.step, (self.env, plan, action, keywords), done)

    def state(self, done: Done) -> None:
        self.run(self.calls.state, (self.env,), done)


class LoopRunner(Runner):
    """For coroutines, and for plain methods that promise never to wait.

    The constructor and `close` of an environment with coroutines may still wait (they load, they
    connect), so they run on a small pool, unless the class promises that nothing in it ever waits.
    """

    __slots__ = ("_pool", "_task")

    def __init__(self, calls: Calls, pool: Pool | None) -> None:
        super().__init__(calls)
        self._pool = pool
        self._task: asyncio.Task[None] | None = None

    def open(self, done: Done) -> None:
        place = self.run if self._pool is None else self._pool.submit
        place(self.calls.make, (), functools.partial(self._opened, done))

    def run(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        try:
            result = job(*args)
        except EnvHiveError as error:
            done(None, error)
        else:
            done(result, None)

    def run_async(self, job: AsyncJob, args: tuple[Any, ...], done: Done) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drive(job, args, done))

    async def _drive(self, job: AsyncJob, args: tuple[Any, ...], done: Done) -> None:
        try:
            result, error = await job(*args), None
        except EnvHiveError as failure:
            result, error = None, failure
        self._task = None
        done(result, error)

    def cancel(self) -> None:
        if self._task is not None:
            # Soon, not now: a task that is cancelled before its first line never runs, and would never answer.
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def close(self, done: Done) -> None:
        env, self.env = self.env, None
        if env is None:
            done(None, None)
        elif self.plan.async_close:
            self.run_async(self.calls.close_async, (env,), done)
        else:
            place = self.run if self._pool is None else self._pool.submit
            place(self.calls.close, (env,), done)


class ThreadRunner(Runner):
    """For plain methods: all of them run on one thread, in order. Coroutines still run on the loop."""

    __slots__ = ("_loop_side", "_owns_thread", "_thread")

    def __init__(self, calls: Calls, thread: Worker, *, owns_thread: bool) -> None:
        super().__init__(calls)
        self._thread = thread
        self._owns_thread = owns_thread
        self._loop_side: LoopRunner | None = None

    def open(self, done: Done) -> None:
        self._thread.submit(self.calls.make, (), functools.partial(self._opened, done))

    def run(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        self._thread.submit(job, args, done)

    def run_async(self, job: AsyncJob, args: tuple[Any, ...], done: Done) -> None:
        if self._loop_side is None:
            self._loop_side = LoopRunner(self.calls, None)
            self._loop_side.env = self.env
        self._loop_side.run_async(job, args, done)

    def cancel(self) -> None:
        if self._loop_side is not None:
            self._loop_side.cancel()

    def close(self, done: Done) -> None:
        env, self.env = self.env, None
        finish = functools.partial(self._closed, done)
        if env is None:
            finish(None, None)
        elif self.plan.async_close:
            self.run_async(self.calls.close_async, (env,), finish)
        else:
            self._thread.submit(self.calls.close, (env,), finish)

    def _closed(self, done: Done, result: Any, error: EnvHiveError | None) -> None:
        if self._owns_thread:
            self._thread.stop()
        done(result, error)


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
            result, error = None, ExecutionError(describe(failure))
        answer(done, result, error)
        del entry, job, args, done, result, error  # an idle thread keeps nothing alive


_SMALLEST_STACK: Final = 256 * 1024
_POOL_THREADS: Final = 64


class Runners:
    """Makes the runner that fits an environment; one per server and event loop."""

    def __init__(
        self, calls: Calls, env_cls: type | None, loop: asyncio.AbstractEventLoop, thread_stack_size: int
    ) -> None:
        self.loop = loop
        self._calls = calls
        self._place = Place.THREAD if env_cls is None else plan_for(env_cls).place
        self._never_waits = getattr(env_cls, "BLOCKING", True) is False
        self._mailbox = Mailbox(loop, thread_stack_size)
        self._shared_worker = Worker(self._mailbox, "envhive-shared")
        self._pool = Pool(self._mailbox, _POOL_THREADS)

    def make(self, session_id: str) -> Runner:
        if self._place is Place.LOOP:
            return LoopRunner(self._calls, None if self._never_waits else self._pool)
        if self._place is Place.SHARED_THREAD:
            return ThreadRunner(self._calls, self._shared_worker, owns_thread=False)
        return ThreadRunner(self._calls, Worker(self._mailbox, f"envhive-{session_id[:8]}"), owns_thread=True)

    def stop(self) -> None:
        self._shared_worker.stop()
        self._pool.stop()
