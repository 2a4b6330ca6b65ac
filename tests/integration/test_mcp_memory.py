"""An agent that stays for long costs no more than one that has just come."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from envhive import MCPToolClient
from envhive.bench import procfs
from tests.support.agents import OVER_HTTP, Agent, CallFailedError, Progress
from tests.support.belongings import own_memory
from tests.support.processes import ServerProcess, envhive_serve

pytestmark = [
    pytest.mark.integration,
    pytest.mark.alone,
    pytest.mark.skipif(not procfs.available(), reason="needs /proc"),
]

ROOT = Path(__file__).parents[2]
CALLS = 1000
WARM_UP = 600
"""Calls until Python's arenas, the caches of schemas and the kept streams have their size."""
MOST_GROWTH = 700_000
"""Bytes, after Python has looked for cycles. A server that was made to keep all streams grew by 1,900,000 in a thousand
calls of FastMCP's client, which always asks for one."""
ROUNDS = 4
"""What is left behind makes every thousand calls grow; arenas that are needed for once, one."""


async def work(agent: Agent, calls: int) -> None:
    """Calls of every kind: plain, with progress, failing."""
    for number in range(calls):
        if number % 4 == 0:
            heard: Progress = []
            await agent.call("climb", heard, rungs=3)
        elif number % 4 == 1:
            with pytest.raises(CallFailedError):
                await agent.call("fail")
        else:
            await agent.call("add")


def memory_of(server: ServerProcess) -> int:
    return sum(map(own_memory, procfs.tree(server.process.pid)))


async def growth(
    server: ServerProcess, work: Callable[[int], Awaitable[None]], tidy: Callable[[], Awaitable[Any]]
) -> int:
    """By how much memory grows with a thousand calls, at least."""
    await work(WARM_UP)
    await tidy()
    sizes = [memory_of(server)]
    for _ in range(ROUNDS):
        await work(CALLS)
        await tidy()
        sizes.append(memory_of(server))
        if sizes[-1] - sizes[-2] < MOST_GROWTH:
            break
    return min(after - before for before, after in itertools.pairwise(sizes))


@pytest.mark.parametrize("name", list(OVER_HTTP))
def test_a_thousand_calls_of_an_agent_leave_nothing_behind(name: str) -> None:
    async def scenario(server: ServerProcess) -> int:
        async with OVER_HTTP[name](server.url) as agent:
            return await growth(server, functools.partial(work, agent), functools.partial(agent.call, "tidy"))

    with envhive_serve("tests.support.tools:TidyShed", "--log-level", "warning", cwd=ROOT) as server:
        assert asyncio.run(scenario(server)) < MOST_GROWTH


def test_a_thousand_calls_of_a_trainer_leave_nothing_behind() -> None:
    async def scenario(server: ServerProcess) -> int:
        async with MCPToolClient(server.url) as env:

            async def add(calls: int) -> None:
                for _ in range(calls):
                    await env.call_tool("add")

            return await growth(server, add, functools.partial(env.call_tool, "tidy"))

    with envhive_serve("tests.support.tools:TidyShed", "--log-level", "warning", cwd=ROOT) as server:
        assert asyncio.run(scenario(server)) < MOST_GROWTH
