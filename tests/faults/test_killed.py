"""Processes are killed under load: each request is answered, or fails with its type, and no place is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from envhive import GenericEnvClient
from envhive.bench.procfs import tree
from envhive.errors import (
    ConnectError,
    ConnectionLostError,
    EnvironmentCrashedError,
    SessionCapacityError,
    SessionError,
    SessionNotFoundError,
)
from tests.support.belongings import Tally, nothing_left_behind
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.servers import eventually
from tests.support.wild import is_alive

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
CLIENTS: Final = 8
ANY_FAILURE: Final = (ConnectionLostError, ConnectError, SessionError, EnvironmentCrashedError)
"""What a client may see when processes are killed: all of them say that it was not its own step's doing."""


async def play(
    server: ServerProcess, tally: Tally, is_over: asyncio.Event, allowed: tuple[type[Exception], ...]
) -> None:
    """Step without a pause; after a failure, which must be of an allowed type, begin anew."""
    client, total = GenericEnvClient(server.url), None
    while not is_over.is_set():
        try:
            if total is None:
                total = (await client.reset(seed=0)).observation["total"]
            else:
                assert (await client.step({"do": "add", "by": 1})).observation["total"] == total + 1
                total += 1
            tally.answered()
        except allowed as error:
            tally.failed(error)
            total = None
            await asyncio.sleep(0.05)
    await client.close()


async def under_load(
    server: ServerProcess, tally: Tally, kill: Callable[[], int], times: int, allowed: tuple[type[Exception], ...]
) -> None:
    """Kill something again and again while clients play, and see that they go on each time."""
    is_over = asyncio.Event()
    players = [asyncio.ensure_future(play(server, tally, is_over, allowed)) for _ in range(CLIENTS)]

    def has_gone_on(since: int) -> bool:
        for player in players:
            if player.done():
                player.result()
        return tally.counts["answered"] > since + 50 * CLIENTS and len(server.sessions()) == CLIENTS

    for _ in range(times):
        await asyncio.to_thread(eventually, lambda since=tally.counts["answered"]: has_gone_on(since), 20)
        pid = await asyncio.to_thread(kill)
        await asyncio.to_thread(eventually, lambda pid=pid: not is_alive(pid))
    await asyncio.to_thread(eventually, lambda since=tally.counts["answered"]: has_gone_on(since), 20)
    is_over.set()
    await asyncio.gather(*players)


def test_killed_environments_cost_their_own_step_alone(tmp_path: Path) -> None:
    options = ("--isolation", "process", "--max-sessions", str(CLIENTS))
    with envhive_serve("tests.support.wild:Wild", *options, cwd=ROOT, log=tmp_path / "log") as server:
        dice = random.Random(3)

        def kill() -> int:
            pid: int = dice.choice([each["env_pid"] for each in server.sessions() if each.get("env_pid")])
            os.kill(pid, signal.SIGKILL)
            return pid

        with nothing_left_behind(server, "10 killed environments under load") as tally:
            asyncio.run(under_load(server, tally, kill, 10, (EnvironmentCrashedError,)))
        assert 1 <= tally.counts["EnvironmentCrashedError"] <= 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_nursery_is_replaced_under_load(workers: int, tmp_path: Path) -> None:
    options = ("--isolation", "process", "--max-sessions", str(CLIENTS), "--workers", str(workers))
    with envhive_serve("tests.support.wild:Wild", *options, cwd=ROOT, log=tmp_path / "log") as server:
        serving = [server.process.pid] if workers == 1 else [each["pid"] for each in server.health()["workers"]]

        def kill() -> int:
            # A serving process has no other child; with two workers, the last one killed may not have been buried yet.
            eventually(lambda: any(map(is_alive, tree(serving[0])[1:])), 20)
            nursery = next(filter(is_alive, tree(serving[0])[1:]))
            os.kill(nursery, signal.SIGKILL)
            return nursery

        # A nursery that is forked later holds, as /dev/null, a descriptor for each that the server had then.
        what = f"3 killed nurseries under load, {workers} worker(s)"
        with nothing_left_behind(server, what, descriptors=8 * CLIENTS) as tally:
            asyncio.run(under_load(server, tally, kill, 3, (SessionError, EnvironmentCrashedError)))
        assert sum(tally.counts.values()) > tally.counts["answered"]


def test_a_killed_worker_under_load_is_replaced_and_no_place_is_lost(tmp_path: Path) -> None:
    options = ("--workers", "2", "--max-sessions", str(CLIENTS))
    with envhive_serve("tests.support.wild:Wild", *options, cwd=ROOT, log=tmp_path / "log") as server:

        def kill() -> int:
            eventually(lambda: len(server.health()["workers"]) == 2 and server.health()["status"] == "healthy", 20)
            pid: int = server.health()["workers"][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            return pid

        allowed = (ConnectionLostError, ConnectError, SessionNotFoundError, SessionCapacityError)
        with nothing_left_behind(server, "3 killed workers under load") as tally:
            asyncio.run(under_load(server, tally, kill, 3, allowed))
            eventually(lambda: len(server.health()["workers"]) == 2 and server.health()["status"] == "healthy", 20)
        assert sum(tally.counts.values()) > tally.counts["answered"]
