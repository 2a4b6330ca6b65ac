"""Running one environment's code where it belongs: on the event loop, on a thread of its own, or in another process.

A runner is given one job at a time and answers each by calling `done` on the event loop, with the
job's result or with the failure it was attributed to.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final

from envhive.errors import EnvHiveError, ExecutionError, SessionCapacityError
from envhive.inspection import ClassPlan, Place, plan_for
from envhive.server import coroutines, stacks
from envhive.server.calls import Calls, attribute_stray, has_to_be_closed
from envhive.server.coroutines import CoroutineDriver
from envhive.server.instances import Instances
from envhive.server.logs import LogTag, inline_here
from envhive.server.metrics import Metrics
from envhive.server.pool import Pool
from envhive.server.stacks import Stack
from envhive.server.threads import Done, Job, Mailbox, Worker

if TYPE_CHECKING:
    from envhive.server.nursery import Nursery
    from envhive.server.processes import NurseryLink


class Runner(ABC):
    """Owns one environment, wherever that is."""

    __slots__ = ()

    may_answer_at_once: ClassVar[bool] = False
    """Whether a step can be over when `begin_step` returns."""

    tag: LogTag
    """Of what the environment logs."""

    @property
    @abstractmethod
    def env_name(self) -> str:
        """The name of the environment's class; empty while there is none."""

    @property
    def env_pid(self) -> int | None:
        """The environment's process, if that is not this one."""
        return None

    @property
    @abstractmethod
    def on_loop(self) -> bool:
        """Whether the environment's own code is coroutines, which must not wait for anything else."""

    async def stack(self) -> Stack:
        """What the running job is doing at this moment, as far as that can be found out."""
        return []

    @abstractmethod
    def open(self, done: Done) -> None:
        """Make the environment."""

    @abstractmethod
    def reset(self, keywords: dict[str, Any], timeout_s: float | None, done: Done) -> None: ...

    @abstractmethod
    def step(self, action: bytes, keywords: dict[str, Any], done: Done) -> None: ...

    def begin_step(self, action: bytes, keywords: dict[str, Any], done: Done) -> Any:
        """The same, but the reply to a step that is over before this returns may be returned, not told to `done`."""
        self.step(action, keywords, done)
        return None

    @abstractmethod
    def state(self, done: Done) -> None: ...

    @abstractmethod
    def call(self, job: Callable[[Any], Any], done: Done) -> None:
        """Run `job(environment)`. A job that can be pickled runs wherever the environment is."""

    @abstractmethod
    def call_async(self, job: Callable[[Any], Coroutine[Any, Any, Any]], done: Done) -> None:
        """Run the coroutine function `job(environment)`."""

    @abstractmethod
    def cancel(self) -> bool:
        """Tell the running job to stop, if its kind of code can be told. `done` is called when it ends."""

    def interrupt(self) -> bool:
        """Stop the running job whatever it does, at the cost of the environment; False where that cannot be done."""
        return False

    def leave_behind(self) -> None:
        """Nobody waits any longer for the running job, nor for the closing after it; both may hang for ever."""
        return

    @abstractmethod
    def close(self, done: Done) -> None:
        """Close the environment, if there is one, and give back what the runner holds."""


class LocalRunner(Runner):
    """Runs an environment in this process. Coroutines run on the event loop in any case."""

    __slots__ = ("_driver", "_instances", "calls", "env", "plan", "tag")

    plan: ClassPlan

    def __init__(self, calls: Calls, tag: LogTag, instances: Instances | None) -> None:
        self.calls = calls
        self.tag = tag
        self.env: Any = None
        self._driver: CoroutineDriver | None = None
        self._instances = instances

    # Where things run.

    @abstractmethod
    def run(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        """Run a plain function on the environment."""

    @abstractmethod
    def run_patiently(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        """Run the constructor, or `close`, which may wait even where nothing else does."""

    def run_async(self, job: coroutines.Job, done: Done) -> None:
        """Run a coroutine."""
        (self._driver or self._start_driver()).run(job, done)

    def _start_driver(self) -> CoroutineDriver:
        self._driver = CoroutineDriver(self.tag.context(), self.calls.stepper())
        return self._driver

    def release(self) -> None:
        """Give back what the runner itself holds; its environment is closed."""
        if self._driver is not None:
            self._driver.stop()
        self._give_back()

    def leave_behind(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        if self._instances is not None:
            self._instances.give_back(self.tag.session_id)

    # What is run.

    @property
    def env_name(self) -> str:
        return "" if self.env is None else type(self.env).__name__

    @property
    def on_loop(self) -> bool:
        return self.plan.place is Place.LOOP

    def open(self, done: Done) -> None:
        self.run_patiently(self.calls.make, (), functools.partial(self._opened, done))

    def _opened(self, done: Done, env: Any, error: EnvHiveError | None) -> None:
        if error is None:
            try:
                if not self._claim(env, functools.partial(self._opened, done, env, None)):
                    return
                self.env, self.plan = env, plan_for(type(env))
            except SessionCapacityError as taken:  # it is another session's: not ours to close, either
                env, error = None, taken
        done(env, error)

    def _claim(self, env: Any, again: Callable[[], None]) -> bool:
        return self._instances is None or self._instances.claim(env, self.tag.session_id, again)

    def reset(self, keywords: dict[str, Any], timeout_s: float | None, done: Done) -> None:
        plan = self.plan.reset
        self.tag.begin_episode(keywords)
        if timeout_s is not None and "timeout_s" in plan.names:
            keywords = {**keywords, "timeout_s": timeout_s}
        if plan.is_async:
            self.run_async(self.calls.reset_async(self.env, plan, keywords), done)
        else:
            self.run(self.calls.reset, (self.env, plan, keywords), done)

    def step(self, action: bytes, keywords: dict[str, Any], done: Done) -> None:
        if (reply := self.begin_step(action, keywords, done)) is not None:
            done(reply, None)

    def begin_step(self, action: bytes, keywords: dict[str, Any], done: Done) -> Any:
        plan = self.plan.step
        if plan.is_async:
            driver = self._driver or self._start_driver()
            return driver.begin(driver.stepper, (self.env, plan, action, keywords), done)
        self.run(self.calls.step, (self.env, plan, action, keywords), done)
        return None

    def state(self, done: Done) -> None:
        self.run(self.calls.state, (self.env,), done)

    def call(self, job: Callable[[Any], Any], done: Done) -> None:
        self.run(job, (self.env,), done)

    def call_async(self, job: Callable[[Any], Coroutine[Any, Any, Any]], done: Done) -> None:
        self.run_async(job(self.env), done)

    def cancel(self) -> bool:
        return self._driver is not None and self._driver.cancel()

    @property
    def coroutine(self) -> Any:
        """What waits for a coroutine of the environment's, if there is one."""
        return None if self._driver is None else self._driver.running

    async def stack(self) -> Stack:
        return [] if self.coroutine is None else stacks.of_coroutine(self.coroutine)

    def close(self, done: Done) -> None:
        env, self.env = self.env, None
        finish = functools.partial(self._closed, done)
        if env is None:
            finish(None, None)
        elif self.plan.async_close:
            self.run_async(self.calls.close_async(env), finish)
        else:
            self.run_patiently(self.calls.close, (env,), finish)

    def _closed(self, done: Done, result: Any, error: EnvHiveError | None) -> None:
        self.release()
        done(result, error)


class LoopRunner(LocalRunner):
    """For coroutines, and for plain methods that promise never to wait.

    The constructor and `close` of an environment with coroutines may still wait (they load, they
    connect), so they run on a small pool, unless the class promises that nothing in it ever waits.
    """

    __slots__ = ("_inline", "_opening", "_pool", "given_up")

    may_answer_at_once = True

    def __init__(self, calls: Calls, pool: Pool | None, tag: LogTag, instances: Instances | None = None) -> None:
        super().__init__(calls, tag, instances)
        self._pool = pool
        self.given_up = False
        self._opening: Queued | None = None
        self._inline = inline_here()

    def open(self, done: Done) -> None:
        if self._pool is None:
            super().open(done)
        else:
            self._opening = Queued(self.calls.make, functools.partial(self._opened, done))
            self.run_patiently(self._opening.work, (), self._opening.finish)

    def _opened(self, done: Done, env: Any, error: EnvHiveError | None) -> None:
        self._opening = None
        super()._opened(done, env, error)

    def cancel(self) -> bool:
        return super().cancel() or (self._opening is not None and self._opening.cancel())

    def run(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        error: EnvHiveError | None = None
        self._inline.tag = self.tag
        try:
            result = job(*args)
        except EnvHiveError as failure:
            result, error = None, failure
        except BaseException as failure:  # an environment may raise anything, and the server must live on
            result, error = None, attribute_stray(failure)
        self._inline.tag = None
        done(result, error)

    def run_patiently(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        if self._pool is None:
            self.run(job, args, done)
        else:
            self._pool.submit(self.tag.call, (job, *args), done, self)

    def leave_behind(self) -> None:
        super().leave_behind()
        if self._pool is not None:
            self._pool.give_up(self)  # its threads are for sessions that are waited for

    def close(self, done: Done) -> None:
        if self.env is not None and not has_to_be_closed(self.env):
            self.env = None  # no need to have a thread find that out
        super().close(done)


class Queued:
    """A job for a thread that many sessions share: until it begins, it can be taken back."""

    __slots__ = ("_done", "_job", "_over", "_unclaimed")

    def __init__(self, job: Job, done: Done) -> None:
        self._job = job
        self._done = done
        self._unclaimed = [True]
        self._over = False

    def _claim(self) -> bool:
        """Whether it can still be begun, or taken back. Of two threads that ask at once, one gets it."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def work(self, *args: Any) -> Any:
        return self._job(*args) if self._claim() else None

    def finish(self, result: Any, error: EnvHiveError | None) -> None:
        if not self._over:
            self._over = True
            self._done(result, error)

    @property
    def is_running(self) -> bool:
        return not self._unclaimed and not self._over

    def cancel(self) -> bool:
        if not self._claim():
            return False
        self._over = True
        self._done(None, ExecutionError("It was still waiting for a thread that many sessions share"))
        return True


class ThreadRunner(LocalRunner):
    """For plain methods: all of them run on one thread, in order."""

    __slots__ = ("_owns_thread", "_queued", "_thread")

    def __init__(
        self, calls: Calls, thread: Worker, *, owns_thread: bool, tag: LogTag, instances: Instances | None
    ) -> None:
        super().__init__(calls, tag, instances)
        self._thread = thread
        self._owns_thread = owns_thread
        self._queued: Queued | None = None

    def run(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        if self._owns_thread:
            self._thread.submit(job, args, done)
        else:
            self._queued = queued = Queued(self._tagged(job), done)
            self._thread.submit(queued.work, args, queued.finish)

    def run_patiently(self, job: Job, args: tuple[Any, ...], done: Done) -> None:
        self._thread.submit(self._tagged(job), args, done)

    def _tagged(self, job: Job) -> Job:
        """A thread of the session's own has its tag already."""
        return job if self._owns_thread else functools.partial(self.tag.call, job)

    def cancel(self) -> bool:
        return super().cancel() or (self._queued is not None and self._queued.cancel())

    async def stack(self) -> Stack:
        of_coroutine = await super().stack()
        has_begun = self._owns_thread or (self._queued is not None and self._queued.is_running)
        return of_coroutine or (stacks.of_thread(self._thread.ident) if has_begun else [])

    def release(self) -> None:
        super().release()
        if self._owns_thread:
            self._thread.stop()


_POOL_THREADS: Final = 64


class Runners:
    """Makes the runner that fits an environment; one per server and event loop."""

    def __init__(
        self,
        calls: Calls,
        env_cls: type | None,
        loop: asyncio.AbstractEventLoop,
        thread_stack_size: int,
        nursery: Nursery | None = None,
        metrics: Metrics | None = None,
        instances: Instances | None = None,
    ) -> None:
        self.loop = loop
        self._calls = calls
        self._instances = instances
        self._place = Place.THREAD if env_cls is None else plan_for(env_cls).place
        self._never_waits = getattr(env_cls, "BLOCKING", True) is False
        self._mailbox = Mailbox(loop, thread_stack_size)
        self._shared_worker = Worker(self._mailbox)
        self._pool = Pool(self._mailbox, _POOL_THREADS)
        self._link: NurseryLink | None = None
        if nursery is not None:
            from envhive.server.processes import NurseryLink  # late: it is made of what is in here

            self._link = NurseryLink(loop, nursery, metrics or Metrics())

    def make(self, session_id: str) -> Runner:
        if self._link is not None:
            return self._link.make_runner(session_id)
        tag = LogTag(session_id)
        if self._place is Place.LOOP:
            return LoopRunner(self._calls, None if self._never_waits else self._pool, tag, self._instances)
        shares = self._place is Place.SHARED_THREAD
        worker = self._shared_worker if shares else Worker(self._mailbox, tag)
        return ThreadRunner(self._calls, worker, owns_thread=not shares, tag=tag, instances=self._instances)

    def stop(self) -> None:
        """Give back what they share; environments that there still are can go on."""
        self._shared_worker.stop()
        self._pool.stop()
        if self._link is not None:
            self._link.stop()

    def shut_down(self) -> None:
        """The same, and nobody waits for what is still running."""
        self.stop()
        self._mailbox.stop()
