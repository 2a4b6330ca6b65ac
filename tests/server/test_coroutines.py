"""A session's coroutines find themselves in a real task, whether or not they ever wait."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from envhive.errors import EnvHiveError, ExecutionError, InvalidMessageError
from envhive.server.calls import await_each
from envhive.server.coroutines import CoroutineDriver
from envhive.server.starter import Starter

Answer = tuple[Any, EnvHiveError | None]
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def a_driver() -> CoroutineDriver:
    return CoroutineDriver(contextvars.copy_context(), Starter(await_each))


class Bench:
    """A driver whose task is waiting for its first coroutine, and what came of those it was given."""

    def __init__(self) -> None:
        self.driver = a_driver()

    def begin(self, job: Coroutine[Any, Any, Any]) -> asyncio.Future[Answer]:
        """Run a coroutine from outside any task, as a frame does."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def done(result: Any, error: EnvHiveError | None) -> None:
            assert not answer.done(), "answered twice"
            answer.set_result((result, error))

        loop.call_soon(self.driver.run, job, done)
        return answer

    async def run(self, job: Coroutine[Any, Any, Any]) -> Answer:
        return await asyncio.wait_for(asyncio.shield(self.begin(job)), 5)


def on_a_loop(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await asyncio.sleep(0)
        await test(bench)
        bench.driver.stop()

    asyncio.run(main())


def test_a_coroutine_that_does_not_wait_is_over_when_run_returns() -> None:
    async def main() -> None:
        driver = a_driver()
        await asyncio.sleep(0)
        over: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()

        async def at_once() -> int:
            return 7

        def frame() -> None:
            answers: list[Answer] = []
            driver.run(at_once(), lambda result, error: answers.append((result, error)))
            over.set_result(answers.copy())

        asyncio.get_running_loop().call_soon(frame)
        assert await over == [(7, None)]
        driver.stop()

    asyncio.run(main())


def test_it_is_the_same_task_before_and_after_a_wait_and_from_one_coroutine_to_the_next() -> None:
    async def tasks() -> set[asyncio.Task[Any] | None]:
        seen = {asyncio.current_task()}
        await asyncio.sleep(0)
        seen.add(asyncio.current_task())
        await asyncio.sleep(0.001)
        seen.add(asyncio.current_task())
        return seen

    async def test(bench: Bench) -> None:
        (first, _), (second, _) = await bench.run(tasks()), await bench.run(tasks())
        assert len(first | second) == 1
        assert None not in first

    on_a_loop(test)


@pytest.mark.parametrize("waits", [False, True])
def test_context_variables_last_from_one_coroutine_to_the_next(waits: bool) -> None:
    async def set_it() -> None:
        token = variable.set("set")
        if waits:
            await asyncio.sleep(0)
        variable.reset(token)  # fails in any other context than that of `set`
        variable.set("kept")

    async def get_it() -> str:
        if waits:
            await asyncio.sleep(0)
        return variable.get()

    async def test(bench: Bench) -> None:
        assert await bench.run(set_it()) == (None, None)
        assert await bench.run(get_it()) == ("kept", None)
        assert variable.get() == "unset"

    on_a_loop(test)


@pytest.mark.parametrize("waits", [False, True])
def test_what_it_raises_is_its_answer_and_in_the_log(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(error: BaseException) -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    async def test(bench: Bench) -> None:
        refused = InvalidMessageError("no", [])
        assert await bench.run(fail(refused)) == (None, refused)
        for error in (KeyError("k"), SystemExit(3), KeyboardInterrupt()):
            result, failure = await bench.run(fail(error))
            assert result is None
            assert isinstance(failure, ExecutionError)
            assert type(error).__name__ in str(failure)
            assert (caplog.records[-1].levelname, type(error).__name__ in caplog.text) == ("ERROR", True)

    on_a_loop(test)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("in_a_task", [False, True])
def test_what_only_the_end_of_a_generator_raises_is_an_answer_too(waits: bool, in_a_task: bool) -> None:
    async def leave() -> None:
        if waits:
            await asyncio.sleep(0)
        raise GeneratorExit

    async def quick() -> int:
        return 1

    async def test(bench: Bench) -> None:
        if in_a_task:
            answers: list[Answer] = []
            bench.driver.run(leave(), lambda result, error: answers.append((result, error)))
            async with asyncio.timeout(5):
                while not answers:
                    await asyncio.sleep(0)
            result, failure = answers[0]
        else:
            result, failure = await bench.run(leave())
        assert (result, type(failure)) == (None, ExecutionError)
        assert "GeneratorExit" in str(failure)
        assert await bench.run(quick()) == (1, None)

    on_a_loop(test)


@pytest.mark.parametrize("waits", [False, True])
def test_a_coroutine_that_runs_the_event_loop_itself_lets_those_of_others_begin(waits: bool) -> None:
    async def inner() -> str:
        if waits:
            await asyncio.sleep(0)
        return "inner"

    async def test(bench: Bench) -> None:
        other, answers = Bench(), list[Answer]()
        await asyncio.sleep(0)

        async def outer() -> str:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            asyncio._leave_task(loop, task)  # as what nests event loops does
            other.driver.run(inner(), lambda result, error: answers.append((result, error)))
            asyncio._enter_task(loop, task)
            if waits:
                await asyncio.sleep(0)
            return "outer"

        assert await bench.run(outer()) == ("outer", None)
        await asyncio.sleep(0)
        assert answers == [("inner", None)]
        assert await bench.run(inner()) == await other.run(inner()) == ("inner", None)
        other.driver.stop()

    on_a_loop(test)


def test_coroutines_of_many_sessions_wait_side_by_side_and_each_gets_its_own_answer() -> None:
    async def wait_for(opened: asyncio.Event, answer: int) -> int:
        await opened.wait()
        await asyncio.sleep(0)
        if answer % 2:
            raise ValueError(answer)
        return answer

    async def at_once(answer: int) -> int:
        return answer

    async def test(_: Bench) -> None:
        benches, opened = [Bench() for _ in range(6)], asyncio.Event()
        await asyncio.sleep(0)
        waiting = [bench.begin(wait_for(opened, number)) for number, bench in enumerate(benches)]
        others = [Bench() for _ in range(3)]
        await asyncio.sleep(0)
        for number, bench in enumerate(others):
            assert await bench.run(at_once(number)) == (number, None)
        assert not any(answer.done() for answer in waiting)
        opened.set()
        answers = [await asyncio.wait_for(answer, 5) for answer in waiting]
        assert [result for result, _ in answers] == [0, None, 2, None, 4, None]
        assert [str(error) for _, error in answers if error] == ["ValueError: 1", "ValueError: 3", "ValueError: 5"]
        for bench in [*benches, *others]:
            bench.driver.stop()

    on_a_loop(test)


def test_a_time_out_set_before_the_first_wait_takes_effect_in_it() -> None:
    async def too_long() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "timed out"
        return "slept"

    async def test(bench: Bench) -> None:
        assert await bench.run(too_long()) == ("timed out", None)
        assert await bench.run(too_long()) == ("timed out", None)

    on_a_loop(test)


def test_a_task_group_sees_its_children_fail() -> None:
    async def fail() -> None:
        raise ValueError("child")

    async def parent() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(60)
        except ExceptionGroup:
            return "seen"
        return "missed"

    async def test(bench: Bench) -> None:
        assert await bench.run(parent()) == ("seen", None)
        assert await bench.run(parent()) == ("seen", None)

    on_a_loop(test)


def test_a_cancelled_coroutine_answers_and_the_next_one_runs() -> None:
    async def sleep(cleaned_up: list[bool]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    async def quick() -> int:
        return 1

    async def test(bench: Bench) -> None:
        cleaned_up: list[bool] = []
        answer = bench.begin(sleep(cleaned_up))
        await asyncio.sleep(0.01)
        bench.driver.cancel()
        result, failure = await asyncio.wait_for(answer, 5)
        assert (result, type(failure), cleaned_up) == (None, ExecutionError, [True])
        assert await bench.run(quick()) == (1, None)

    on_a_loop(test)


@pytest.mark.parametrize("begins_with_a_wait", [False, True])
@pytest.mark.parametrize("ends_with_a_wait", [False, True])
def test_a_coroutine_that_cancels_its_own_task_harms_no_other(begins_with_a_wait: bool, ends_with_a_wait: bool) -> None:
    async def cancel_myself() -> str:
        if begins_with_a_wait:
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if ends_with_a_wait:
            await asyncio.sleep(60)
        return "finished"

    async def wait() -> str:
        await asyncio.sleep(0)
        return "waited"

    async def test(bench: Bench) -> None:
        result, failure = await bench.run(cancel_myself())
        if ends_with_a_wait:
            assert isinstance(failure, ExecutionError)
            assert "CancelledError" in str(failure)
        else:
            assert (result, failure) == ("finished", None)
        for _ in range(3):
            assert await bench.run(wait()) == ("waited", None)

    on_a_loop(test)


def test_a_task_that_somebody_else_cancels_while_it_waits_is_replaced() -> None:
    async def me() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    async def test(bench: Bench) -> None:
        task, _ = await bench.run(me())
        task.cancel()
        for _ in range(3):
            other, failure = await bench.run(me())
            assert failure is None
            assert other is not task

    on_a_loop(test)


def test_the_context_is_the_sessions_own_also_when_another_task_asks() -> None:
    async def set_it() -> None:
        variable.set("mine")

    async def get_it() -> str:
        await asyncio.sleep(0)
        return variable.get()

    async def test(bench: Bench) -> None:
        variable.set("the caller's")
        for job, expected in ((set_it(), None), (get_it(), "mine")):
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            bench.driver.run(job, lambda result, error, answer=answer: answer.set_result(result))
            assert await asyncio.wait_for(answer, 5) == expected

    on_a_loop(test)


def test_closing_the_event_loop_ends_its_task_whatever_it_is_doing() -> None:
    async def sleep() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        idle, busy = Bench(), Bench()
        await asyncio.sleep(0)
        busy.begin(sleep())
        await asyncio.sleep(0.01)
        assert idle.driver is not busy.driver

    asyncio.run(asyncio.wait_for(main(), 5))  # and returns, for all its tasks end when they are cancelled
