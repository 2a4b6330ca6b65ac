"""An agent that stays for long costs no more than one that has just come."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from envhive import MCPToolClient
from envhive.bench import procfs
from tests.support.agents import OVER_HTTP, Agent, CallFailedError, Progress
from tests.support.processes import ServerProcess, envhive_serve

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not procfs.available(), reason="needs /proc")]

ROOT = Path(__file__).parents[2]
CALLS = 1000
WARM_UP = 600
"""Calls until Python's arenas, the caches of schemas and the kept streams have their size."""
SAMPLES = 10
MOST_GROWTH = 700_000
"""Bytes, between the least of the first thousand calls and the least of the second: in between, memory rises and falls
by twice as much, as Python looks for cycles now and then. A server that was made to keep all streams grew by 1,900,000
in a thousand calls of FastMCP's client, which always asks for one."""


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
    return procfs.memory(procfs.tree(server.process.pid))


async def growth(server: ServerProcess, work: Callable[[int], Awaitable[None]]) -> int:
    """By how much the least memory of a thousand calls exceeds that of the thousand before."""
    await work(WARM_UP)
    least = []
    for _ in range(2):
        samples = []
        for _ in range(SAMPLES):
            await work(CALLS // SAMPLES)
            samples.append(memory_of(server))
        least.append(min(samples))
    return least[1] - least[0]


@pytest.mark.parametrize("name", list(OVER_HTTP))
def test_a_thousand_calls_of_an_agent_leave_nothing_behind(name: str) -> None:
    async def scenario(server: ServerProcess) -> int:
        async with OVER_HTTP[name](server.url) as agent:
            return await growth(server, functools.partial(work, agent))

    with envhive_serve("tests.support.tools:Shed", "--log-level", "warning", cwd=ROOT) as server:
        assert asyncio.run(scenario(server)) < MOST_GROWTH


def test_a_thousand_calls_of_a_trainer_leave_nothing_behind() -> None:
    async def scenario(server: ServerProcess) -> int:
        async with MCPToolClient(server.url) as env:

            async def add(calls: int) -> None:
                for _ in range(calls):
                    await env.call_tool("add")

            return await growth(server, add)

    with envhive_serve("tests.support.tools:Shed", "--log-level", "warning", cwd=ROOT) as server:
        assert asyncio.run(scenario(server)) < MOST_GROWTH
