"""Running a session's coroutines, all of them in one task that lives as long as the session.

A task for each message costs 3.5 µs and a turn of the event loop. Here a coroutine is begun at once, in the
name and in the context of the session's task, which meanwhile waits at a `Doorbell`. A step that does not
wait is over when `run` returns, for 0.4 µs; one that does is given to the task, which carries it to its end.
Either way the code finds itself in a real task, so time-outs, cancel scopes and context variables behave as
anywhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from asyncio import _enter_task, _leave_task  # for those who run coroutines themselves
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final
from weakref import WeakKeyDictionary

from envhive.errors import EnvHiveError
from envhive.server.calls import attribute_stray, await_each
from envhive.server.starter import ENDED, Starter

Done = Callable[[Any, EnvHiveError | None], None]
Job = Coroutine[Any, Any, Any]
Entry = tuple[Awaitable[Any], Done]


if sys.version_info >= (3, 12):
    _current_task = asyncio.current_task
else:
    # Before 3.12 it is written in Python, and looks into this dict: 0.13 against 0.05 µs a step.
    _current_task = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]


_starters: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Starter]] = WeakKeyDictionary()
"""One for each event loop: coroutines of all sessions begin in it."""


_NOT_BEGUN: Final = object()
"""The environment of another session runs the event loop within its step, as notebooks do, and has the starter."""


class Doorbell:
    """What an idle session's task waits for. To the task it looks like a future that becomes done again and again.

    A task that waits for a future gives it a callback to be woken by. An event loop would call that later; a
    doorbell calls it when it is rung, unless another task is running, which must not be interrupted.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_context",
        "_entry",
        "_loop",
        "_rung",
        "cancelled",
        "lent",
        "refused_to_cancel",
        "wake",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._entry: Entry | None = None
        self._rung = False
        self._context: contextvars.Context | None = None
        self.cancelled = False
        self.wake: Callable[[Doorbell], Any] | None = None
        """Set while the task waits here."""
        self.lent = False
        """True while a coroutine runs in the name of the task that waits here."""
        self.refused_to_cancel = False
        """True if that coroutine has cancelled the task, which is now marked for good."""

    def ring(self, entry: Entry | None) -> None:
        self._entry, self._rung = entry, True
        wake, self.wake = self.wake, None
        if wake is None:
            return  # the task is on its way here, and will find it rung
        if _current_task(self._loop) is None:
            wake(self)
        else:
            self._loop.call_soon(wake, self, context=self._context)

    def __await__(self) -> Generator[Any, None, Entry | None]:
        if not self._rung:
            self._asyncio_future_blocking = True
            yield self
        entry, self._entry, self._rung = self._entry, None, False
        return entry

    # What a task asks of a future.

    def add_done_callback(
        self, callback: Callable[[Doorbell], Any], *, context: contextvars.Context | None = None
    ) -> None:
        self.wake, self._context = callback, context

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def result(self) -> None:
        if self.cancelled:
            raise asyncio.CancelledError

    def cancel(self, msg: Any = None) -> bool:
        """The event loop is being closed with the session still open, or a coroutine cancels its own task."""
        if self.lent:
            self.refused_to_cancel = True
            return False
        self.cancelled = True
        wake, self.wake = self.wake, None
        if wake is not None:
            self._loop.call_soon(wake, self, context=self._context)
        return True


class CoroutineDriver:
    """Runs one coroutine at a time, all in the same task; a task that was cancelled is replaced by a new one."""

    __slots__ = ("_bell", "_context", "_handed_over", "_loop", "_pending", "_starter", "_task", "stepper")

    def __init__(self, context: contextvars.Context, stepper: Starter) -> None:
        self._loop = asyncio.get_running_loop()
        self._starter = _starters.get(self._loop) or _starters.setdefault(self._loop, Starter(await_each))
        self.stepper = stepper
        """What begins the environment's steps."""
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._pending = False  # a job that did not end at once
        self._handed_over = 0
        self._start_task()

    def _start_task(self) -> None:
        self._bell = Doorbell(self._loop)
        self._task = self._loop.create_task(self._serve(self._bell), context=self._context)

    def run(self, job: Job, done: Done) -> None:
        """Run a coroutine, up to its first real wait before this returns, if no other task is running."""
        if (result := self.begin(self._starter, job, done)) is not None:
            done(result, None)

    def begin(self, starter: Starter, job: Any, done: Done) -> Any:
        """Let a starter begin a job in the same way.

        What comes of one that ends before this returns is returned, unless it is an error or None.
        """
        task, bell, loop = self._task, self._bell, self._loop
        if task is None or bell.wake is None or _current_task(loop) is not None:
            if task is None or task.done() or bell.cancelled:
                self._start_task()  # the last one was cancelled, by whomever
            self._hand_over(starter.whole(job), done)
            return None
        bell.lent = True
        _enter_task(loop, task)
        try:
            waits_for = self._context.run(starter.advance, job)
        except BaseException as failure:
            if starter.is_running:
                waits_for = _NOT_BEGUN
            else:  # it raised what only the end of a generator does
                waits_for, starter.error = ENDED, attribute_stray(failure)
                starter.renew()
        _leave_task(loop, task)
        bell.lent = False
        if bell.refused_to_cancel:
            # It cancelled its own task before it ever waited: a new task goes on, and tells it where it waits.
            bell.ring(None)
            self._start_task()
        if waits_for is ENDED:
            result, starter.result = starter.result, None
            if result is None:
                error, starter.error = starter.error, None
                done(None, error)
            return result
        self._hand_over(starter.whole(job) if waits_for is _NOT_BEGUN else starter.rest(waits_for), done)
        if bell.refused_to_cancel:
            loop.call_soon(self._cancel_if_pending, self._handed_over)
        return None

    def _hand_over(self, job: Awaitable[Any], done: Done) -> None:
        """Let the task carry a job to its end."""
        self._pending = True
        self._handed_over += 1
        self._bell.ring((job, done))

    def cancel(self) -> bool:
        """Cancel the running coroutine, which still answers; False if there is none."""
        if not self._pending:
            return False
        # Soon, so that a coroutine that has yet to begin does so first: cancelled before that, it would not answer.
        self._loop.call_soon(self._cancel_if_pending, self._handed_over)
        return True

    @property
    def running(self) -> Any:
        """What waits for a coroutine that has not ended yet, if there is one."""
        task = self._task
        return task.get_coro() if self._pending and task is not None and not task.done() else None

    def stop(self) -> None:
        """End the task when what it is doing is done."""
        if self._task is not None:
            self._bell.ring(None)

    def _cancel_if_pending(self, job: int) -> None:
        if self._pending and job == self._handed_over and self._task is not None:  # and not the close after it
            self._task.cancel()

    async def _serve(self, bell: Doorbell) -> None:
        task = asyncio.current_task()
        assert task is not None
        while (entry := await bell) is not None:
            job, done = entry
            error: EnvHiveError | None = None
            try:
                result = await job
            except GeneratorExit:
                raise  # the event loop is gone, and this task with it
            except BaseException as failure:  # whatever it is, the session must get its answer
                result, error = None, attribute_stray(failure)
            self._pending = False
            if task.cancelling():
                self._task = None
                done(result, error)
                return
            done(result, error)
            del entry, job, done, result, error  # an idle session keeps nothing alive
