"""The benchmark environment, in both its forms."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import envhive.envs.benchmark
from envhive import check_environment
from envhive.envs.benchmark import (
    AsyncBenchmarkEnvironment,
    BenchmarkAction,
    BenchmarkEnvironment,
    BenchmarkObservation,
)
from envhive.inspection import Place, plan_for
from envhive.server.target import load_target
from tests.support.servers import running

README = Path(envhive.envs.benchmark.__file__).with_name("README.md").read_text(encoding="utf-8")
BOTH = [BenchmarkEnvironment, AsyncBenchmarkEnvironment]
SHORT_WAIT = 0.01


def call(result: Any) -> Any:
    """What a method of either form brings."""

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited()) if inspect.isawaitable(result) else result


@pytest.mark.parametrize("cls", BOTH)
def test_it_keeps_the_contract(cls: type[Any]) -> None:
    assert check_environment(cls).findings == []


@pytest.mark.parametrize(
    ("cls", "place"), [(BenchmarkEnvironment, Place.THREAD), (AsyncBenchmarkEnvironment, Place.LOOP)]
)
def test_each_form_runs_where_it_is_meant_to(cls: type[Any], place: Place) -> None:
    assert plan_for(cls).place is place


@pytest.mark.parametrize("cls", BOTH)
def test_an_episode_begins_without_a_wait_or_a_reward(cls: type[Any]) -> None:
    observation = call(cls().reset())
    assert observation == BenchmarkObservation(pid=os.getpid(), waited_seconds=0.0, reward=None, done=False)


@pytest.mark.parametrize("cls", BOTH)
def test_a_step_takes_as_long_as_it_is_told_to(cls: type[Any]) -> None:
    env = cls()
    call(env.reset())
    began = time.perf_counter()
    observation = call(env.step(BenchmarkAction(wait_seconds=SHORT_WAIT)))
    assert time.perf_counter() - began >= SHORT_WAIT * 0.9  # a timer may fire a moment early
    assert (observation.waited_seconds, observation.reward) == (SHORT_WAIT, SHORT_WAIT)
    assert observation.pid == os.getpid()
    assert not observation.done


def test_the_async_form_leaves_the_loop_free_while_it_waits() -> None:
    async def scenario() -> bool:
        env = AsyncBenchmarkEnvironment()
        await env.reset()
        step = asyncio.ensure_future(env.step(BenchmarkAction(wait_seconds=SHORT_WAIT)))
        await asyncio.sleep(0)
        waiting = not step.done()
        await step
        return waiting

    assert asyncio.run(scenario())


@pytest.mark.parametrize("cls", BOTH)
def test_steps_are_counted_from_reset(cls: type[Any]) -> None:
    env = cls()
    call(env.reset(episode_id="e1"))
    for _ in range(3):
        call(env.step(BenchmarkAction()))
    assert (env.state.episode_id, env.state.step_count) == ("e1", 3)
    call(env.reset())
    assert (env.state.episode_id, env.state.step_count) == (None, 0)


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ValidationError, match="wait_seconds"):
        BenchmarkAction(wait_seconds=-1)


def test_the_readme_names_every_field() -> None:
    fields = (BenchmarkAction.model_fields | BenchmarkObservation.model_fields).keys() - {"metadata"}
    assert not {field for field in fields if f"| `{field}` |" not in README}


@pytest.mark.parametrize("name", ["benchmark", "benchmark-async"])
def test_the_snippet_of_the_readme_works_with_both_forms(capsys: pytest.CaptureFixture[str], name: str) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*)`\.", README)
    assert f"| `{name}` |" in README
    with running(load_target(name).app, "fast") as server:
        exec(snippet.replace("http://localhost:8000", server.url), {"__name__": "readme"})
    assert capsys.readouterr().out == f"{promised}\n"
