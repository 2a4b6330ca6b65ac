"""A full server lets newcomers wait, in the order in which they came."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from envhive import GenericEnvClient
from envhive.errors import SessionCapacityError
from tests.support.envs import async_counting, counting
from tests.support.metrics import scrape
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.servers import Lane, eventually, receive, reset, serving, serving_one

BOTH_LANES = pytest.mark.parametrize("lane", ["fast", "asgi"])
LAYER_2: list[Any] = ["envhive.v1"]


async def episode(url: str, number: int, **options: Any) -> int:
    async with GenericEnvClient(url, **options) as client:
        await client.reset(seed=number)
        for step in range(1, 4):
            assert (await client.step({"by": 1, "seconds": 0.005})).observation["total"] == number + step
    return number


@BOTH_LANES
@pytest.mark.parametrize("make", [counting, async_counting])
def test_a_burst_of_four_times_the_capacity_completes(lane: Lane, make: Any) -> None:
    async def burst(url: str) -> list[int]:
        return await asyncio.gather(*(episode(url, number) for number in range(32)))

    with serving(make(), lane, config={"admission_timeout": 30.0}, max_concurrent_envs=8) as server:
        assert asyncio.run(burst(server.url)) == list(range(32))
        server.wait_until_empty()
        assert len(server.server.hive.line or ()) == 0


@BOTH_LANES
def test_newcomers_are_told_their_place_and_served_in_order(lane: Lane) -> None:
    with serving(counting(), lane, config={"admission_timeout": 30.0}, max_concurrent_envs=1) as server:
        with server.connect(subprotocols=LAYER_2) as first:
            receive(first)
            waiting = []
            for position in (1, 2, 3):
                context = server.connect(subprotocols=LAYER_2)
                ws = context.__enter__()
                told = receive(ws)
                assert (told["type"], told["position"], told["admission_timeout_s"]) == ("queued", position, 30.0)
                waiting.append((context, ws))
        for context, ws in waiting:
            assert receive(ws)["type"] == "hello"
            assert server.server.active_sessions == 1
            context.__exit__(None, None, None)


@BOTH_LANES
def test_a_plain_client_just_waits_for_its_first_reply(lane: Lane) -> None:
    with serving_one(lane, admission_timeout=30.0) as (server, first), server.connect() as second:
        second.send('{"type":"reset","data":{"seed":5}}')
        eventually(lambda: len(server.server.hive.line or ()) == 1)
        first.close()
        assert receive(second)["data"]["observation"]["total"] == 5


@BOTH_LANES
def test_all_that_was_asked_in_line_is_answered_in_order(lane: Lane) -> None:
    with serving_one(lane, admission_timeout=30.0) as (server, first), server.connect() as second:
        eventually(lambda: len(server.server.hive.line or ()) == 1)
        second.send(b"not text")
        second.send('{"type":"reset","data":{"seed":0}}')
        for _ in range(150):  # more than a session lets wait
            second.send('{"type":"step","data":{"by":1}}')
        first.close()
        assert receive(second)["data"]["code"] == "INVALID_JSON"
        assert [receive(second)["data"]["observation"]["total"] for _ in range(151)] == list(range(151))


@BOTH_LANES
def test_who_leaves_the_line_is_not_waited_for(lane: Lane) -> None:
    env = counting()
    with serving(env, lane, config={"admission_timeout": 30.0}, max_concurrent_envs=1) as server:
        line = server.server.hive.line
        assert line is not None
        with server.connect() as first:
            reset(first)
            with server.connect() as second:
                eventually(lambda: len(line) == 1)
                second.socket.close()
            eventually(lambda: len(line) == 0)
        with server.connect() as third:
            assert reset(third)["type"] == "observation"
    assert env.journal.count("make") == 2


@BOTH_LANES
def test_who_waits_too_long_is_turned_away(lane: Lane) -> None:
    async def wait(url: str) -> None:
        with pytest.raises(SessionCapacityError, match="1 of 1"):
            await GenericEnvClient(url).reset()

    with serving_one(lane, admission_timeout=0.2) as (server, _):
        asyncio.run(wait(server.url))
        assert len(server.server.hive.line or ()) == 0


def test_an_http_call_waits_in_the_same_line() -> None:
    def call(url: str) -> int:
        body = urllib.request.Request(f"{url}/reset", b"{}", {"Content-Type": "application/json"})
        with urllib.request.urlopen(body, timeout=20) as answer:
            assert json.load(answer)["observation"]["total"] == 0
            return int(answer.status)

    async def both(server: Any, first: Any) -> None:
        calling = asyncio.create_task(asyncio.to_thread(call, server.url))
        await asyncio.to_thread(eventually, lambda: len(server.server.hive.line) == 1)
        first.close()
        assert await calling == 200

    with serving_one("fast", admission_timeout=30.0) as (server, first):
        asyncio.run(both(server, first))
        server.wait_until_empty()


@pytest.mark.integration
def test_a_burst_over_two_workers_completes_and_leaves_all_places_free() -> None:
    async def one(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            for _ in range(3):
                await client.step({"wait_seconds": 0.01})

    async def burst(url: str) -> None:
        await asyncio.gather(*(one(url) for _ in range(40)))

    options = ("--workers", "2", "--max-sessions", "10", "--admission-timeout", "60")
    with envhive_serve("benchmark", *options) as server:
        asyncio.run(burst(server.url))
        eventually(lambda: server.health()["active_sessions"] == 0)


def comer(server: ServerProcess) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, subprotocols=LAYER_2)


@pytest.mark.integration
def test_who_waits_with_a_worker_that_stands_still_does_not_close_the_server_to_others() -> None:
    options = ("--workers", "2", "--max-sessions", "2", "--admission-timeout", "60")
    with envhive_serve("benchmark", *options) as server, ExitStack() as stack:
        pids = [worker["pid"] for worker in server.health()["workers"]]
        held = [stack.enter_context(comer(server)) for _ in pids]
        held_by = [int(receive(ws)["session_id"].rpartition("-")[2]) for ws in held]
        assert sorted(held_by) == [0, 1]
        first = stack.enter_context(comer(server))
        assert receive(first)["type"] == "queued"
        waiting = scrape(server)
        stalled = next(i for i in range(2) if waiting.value("envhive_admission_waiting", worker=str(i)))
        os.kill(pids[stalled], signal.SIGSTOP)
        stack.callback(os.kill, pids[stalled], signal.SIGCONT)
        held[held_by.index(1 - stalled)].close()
        with comer(server) as second:
            while (told := receive(second))["type"] == "queued":
                pass
            assert told["type"] == "hello"
            os.kill(pids[stalled], signal.SIGCONT)
        assert receive(first)["type"] == "hello"
