"""An agent that stays for long costs no more than one that has just come."""

from __future__ import annotations

import asyncio
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
MOST_GROWTH = 250_000
"""Bytes. Whatever a call leaves behind (a future, a task, a stream with its events) is more than 250 bytes. A server
that keeps nothing grew by less than 40,000 here; one that was made to keep all streams grew by 356,000 with the SDK's
client, which asks for them in one call of four, and by 1,900,000 with FastMCP's, which always does."""


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


@pytest.mark.parametrize("name", list(OVER_HTTP))
def test_a_thousand_calls_of_an_agent_leave_nothing_behind(name: str) -> None:
    async def scenario(server: ServerProcess) -> int:
        async with OVER_HTTP[name](server.url) as agent:
            await work(agent, WARM_UP)
            before = memory_of(server)
            await work(agent, CALLS)
            return memory_of(server) - before

    with envhive_serve("tests.support.tools:Shed", "--log-level", "warning", cwd=ROOT) as server:
        growth = asyncio.run(scenario(server))
    assert growth < MOST_GROWTH, f"{growth} bytes in {CALLS} calls"


def test_a_thousand_calls_of_a_trainer_leave_nothing_behind() -> None:
    async def scenario(server: ServerProcess) -> int:
        async with MCPToolClient(server.url) as env:
            for _ in range(WARM_UP):
                await env.call_tool("add")
            before = memory_of(server)
            for _ in range(CALLS):
                await env.call_tool("add")
            return memory_of(server) - before

    with envhive_serve("tests.support.tools:Shed", "--log-level", "warning", cwd=ROOT) as server:
        growth = asyncio.run(scenario(server))
    assert growth < MOST_GROWTH, f"{growth} bytes in {CALLS} calls"
