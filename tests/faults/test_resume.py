"""Connections are cut, and no step is lost or run twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from websockets.sync.client import connect

from envhive import GenericEnvClient
from envhive.errors import ConnectionLostError, InvalidMessageError, MessageTooLargeError, SessionNotFoundError
from tests.support import raw
from tests.support.envs import Seen, async_counting, counting
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.proxies import CuttingProxy, cutting_proxy
from tests.support.servers import Lane, Running, ask, eventually, receive, serving

LAYER_2: list[Any] = ["envhive.v1"]
BOTH_LANES = pytest.mark.parametrize("lane", ["fast", "asgi"])


async def play(proxy: CuttingProxy, steps: int, all_connected: asyncio.Barrier) -> int:
    """Step an environment that counts, and see that it counts exactly the steps that were taken."""
    async with GenericEnvClient(proxy.url, message_timeout_s=30) as client:
        await all_connected.wait()
        proxy.cutting = True
        await client.reset(seed=0)
        for number in range(1, steps + 1):
            result = await client.step({"by": 1})
            assert result.observation["total"] == number
        state = await client.state()
        assert state["step_count"] == steps
    return steps


@BOTH_LANES
@pytest.mark.parametrize("make", [counting, async_counting])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_step_runs_exactly_once_however_often_the_connection_is_cut(lane: Lane, make: Any, seed: int) -> None:
    env = make()
    # Where the goodbye itself is cut off, the session ends with its lease.
    lasting = serving(env, lane, config={"lease": 8.0}, max_concurrent_envs=8)
    with lasting as server, cutting_proxy(server.port, seed=seed) as proxy:

        async def all_of_them() -> list[int]:
            all_connected = asyncio.Barrier(4)
            return await asyncio.gather(*(play(proxy, 300, all_connected) for _ in range(4)))

        assert asyncio.run(all_of_them()) == [300] * 4
        assert proxy.cuts > 50
        eventually(lambda: server.server.active_sessions == 0, within=20)
    assert env.journal.count("make") == 4
    assert env.journal.count("step") == 4 * 300
    assert env.journal.count("close") == 4


def hello_of(server: Running, ws: Any) -> dict[str, Any]:
    hello = receive(ws)
    assert hello["type"] == "hello"
    return hello


@contextmanager
def resume(server: Running, hello: dict[str, Any], token: str | None = None) -> Iterator[Any]:
    with server.connect(f"/ws?session={hello['session_id']}", subprotocols=LAYER_2) as ws:
        ws.send(json.dumps({"type": "resume", "data": {"token": hello["resume_token"] if token is None else token}}))
        yield ws


@BOTH_LANES
def test_a_request_that_was_answered_is_answered_again_and_not_run_again(lane: Lane) -> None:
    env = counting()
    with serving(env, lane) as server:
        with server.connect(subprotocols=LAYER_2) as ws:
            hello = hello_of(server, ws)
            assert ask(ws, {"type": "reset", "data": {}, "id": 1})["id"] == 1
            first = ask(ws, {"type": "step", "data": {"by": 5}, "id": 2})
            assert ask(ws, {"type": "step", "data": {"by": 5}, "id": 2}) == first
            assert ask(ws, {"type": "step", "data": {"by": 5}, "id": 1})["data"]["code"] == "SESSION_ERROR"
            ws.socket.close()
        with resume(server, hello) as ws:
            assert hello_of(server, ws)["resumed"] is True
            assert ask(ws, {"type": "step", "data": {"by": 5}, "id": 2}) == first
            assert ask(ws, {"type": "step", "data": {"by": 5}, "id": 3})["data"]["observation"]["total"] == 10
    assert env.journal.count("step") == 2


@BOTH_LANES
def test_a_step_that_was_running_when_the_connection_was_lost_is_answered_on_the_next_one(lane: Lane) -> None:
    env = async_counting()
    with serving(env, lane) as server:
        with server.connect(subprotocols=LAYER_2) as ws:
            hello = hello_of(server, ws)
            ask(ws, {"type": "reset", "data": {}, "id": 1})
            ws.send(json.dumps({"type": "step", "data": {"by": 7, "seconds": 0.3}, "id": 2}))
            eventually(lambda: server.server.hive.sessions[hello["session_id"]].busy_with == "step")
            ws.socket.close()
        with resume(server, hello) as ws:
            hello_of(server, ws)
            reply = ask(ws, {"type": "step", "data": {"by": 7, "seconds": 0.3}, "id": 2})
            assert (reply["id"], reply["data"]["observation"]["total"]) == (2, 7)
    assert env.journal.count("step") == 1


@BOTH_LANES
def test_nobody_else_gets_in(lane: Lane) -> None:
    with serving(counting(), lane) as server, server.connect(subprotocols=LAYER_2) as ws:
        hello = hello_of(server, ws)
        ask(ws, {"type": "reset", "data": {}, "id": 1})
        for session, token in ((hello["session_id"], "wrong"), ("unknown", hello["resume_token"])):
            with resume(server, {"session_id": session}, token) as stranger:
                reply = receive(stranger)
                assert reply["data"]["code"] == "SESSION_NOT_FOUND"
                assert hello["resume_token"] not in json.dumps(reply)
        with server.connect(f"/ws?session={hello['session_id']}", subprotocols=LAYER_2) as stranger:
            assert ask(stranger, {"type": "step", "data": {}, "id": 2})["data"]["code"] == "VALIDATION_ERROR"
        assert ask(ws, {"type": "step", "data": {}, "id": 2})["data"]["observation"]["total"] == 1


@BOTH_LANES
def test_a_new_connection_takes_the_session_from_one_that_is_only_half_dead(lane: Lane) -> None:
    with serving(counting(), lane) as server, server.connect(subprotocols=LAYER_2) as old:
        hello = hello_of(server, old)
        ask(old, {"type": "reset", "data": {"seed": 3}, "id": 1})
        with resume(server, hello) as new:
            hello_of(server, new)
            assert ask(new, {"type": "step", "data": {}, "id": 2})["data"]["observation"]["total"] == 4
            eventually(lambda: len(server.server.hive.sessions) == 1)


@BOTH_LANES
def test_a_session_whose_client_stays_away_ends_with_its_lease(lane: Lane) -> None:
    env = counting()
    with serving(env, lane, config={"lease": 0.2}, max_concurrent_envs=1) as server:
        with server.connect(subprotocols=LAYER_2) as ws:
            hello = hello_of(server, ws)
            ask(ws, {"type": "reset", "data": {}, "id": 1})
            ws.socket.close()
        server.wait_until_empty()
        with resume(server, hello) as ws:
            assert receive(ws)["data"]["code"] == "SESSION_NOT_FOUND"
    assert env.journal.count("close") == 1


@pytest.mark.integration
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_client_that_left_before_it_was_greeted_leaves_no_session_that_waits_for_it(workers: str) -> None:
    with envhive_serve("benchmark", "--workers", workers, "--max-sessions", "40") as server, ExitStack() as stack:
        stopped = [server.process.pid] if workers == "1" else [each["pid"] for each in server.health()["workers"]]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
        for number in range(30):
            sock = raw.dial(server.port)
            sock.sendall(raw.upgrade_request(server.port, "/ws", f"Sec-WebSocket-Protocol: {LAYER_2[0]}"))
            raw.hang_up(sock, hard=number % 2 == 0)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, subprotocols=LAYER_2) as ws:  # behind them
            assert receive(ws)["type"] == "hello"
            eventually(lambda: server.health()["active_sessions"] == 1 and doings(server) == ["idle"])
            assert ask(ws, {"type": "reset", "data": {}, "id": 1})["type"] == "observation"


@BOTH_LANES
def test_who_finds_the_server_full_hears_of_sessions_that_are_kept_for_lost_clients(lane: Lane) -> None:
    with serving(counting(), lane, config={"lease": 60.0}, max_concurrent_envs=1) as server:
        with server.connect(subprotocols=LAYER_2) as ws:
            hello_of(server, ws)
            ws.socket.shutdown(2)
        eventually(lambda: "Kept for clients that lost their connection: 1." in refusal_by(server))


def refusal_by(server: Running) -> str:
    with server.connect() as ws:
        reply = ask(ws, {"type": "reset"})
        assert reply["data"]["code"] == "CAPACITY_REACHED"
        return str(reply["data"]["message"])


@BOTH_LANES
@pytest.mark.parametrize("resume", [True, False])
def test_a_reply_that_the_client_has_no_room_for_is_told_at_once_and_costs_nothing_else(
    lane: Lane, resume: bool
) -> None:
    def step(self: Any, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self.total += 1
        return Seen(total=self.total, got={"much": "x" * action.by})

    async def ask_for_much(url: str) -> None:
        async with GenericEnvClient(url, max_message_size_mb=1, resume=resume) as client:
            await client.reset()
            with pytest.raises(MessageTooLargeError, match="max_message_size_mb"):
                await client.step({"by": 2_000_000})
            if resume:
                assert (await client.step({"by": 1})).observation["total"] == 2

    env = counting(step=step)
    with serving(env, lane, max_concurrent_envs=2) as server:
        asyncio.run(asyncio.wait_for(ask_for_much(server.url), 20))
    assert env.journal.count("make") == 1


def test_a_client_that_says_goodbye_leaves_no_lease_behind() -> None:
    with serving(counting(), "fast", max_concurrent_envs=1) as server:

        async def twice() -> None:
            for _ in range(5):
                async with GenericEnvClient(server.url) as client:
                    await client.reset()

        asyncio.run(twice())
        server.wait_until_empty()


def test_reset_after_a_lost_connection_needs_no_second_place() -> None:
    with serving(counting(), "fast", max_concurrent_envs=1) as server, cutting_proxy(server.port, fewest=400) as proxy:

        async def go() -> None:
            async with GenericEnvClient(proxy.url) as client:
                proxy.cutting = True
                for number in range(60):
                    assert (await client.reset(seed=number)).observation["total"] == number

        asyncio.run(go())
        assert proxy.cuts > 5


def test_a_client_that_does_not_want_to_come_back_hears_of_the_loss() -> None:
    with serving(counting(), "fast") as server, cutting_proxy(server.port, fewest=2000, most=3000) as proxy:

        async def go() -> None:
            async with GenericEnvClient(proxy.url, resume=False) as client:
                proxy.cutting = True
                await client.reset()
                for _ in range(1000):
                    await client.step({"by": 1})

        with pytest.raises(ConnectionLostError):
            asyncio.run(go())


@pytest.mark.integration
def test_among_workers_a_client_comes_back_to_the_one_that_has_its_session() -> None:
    async def one(proxy: CuttingProxy, all_connected: asyncio.Barrier) -> None:
        async with GenericEnvClient(proxy.url, message_timeout_s=30) as client:
            await all_connected.wait()
            proxy.cutting = True
            pid = (await client.reset()).observation["pid"]
            for _ in range(150):
                assert (await client.step({"wait_seconds": 0})).observation["pid"] == pid
            assert (await client.state())["step_count"] == 150

    async def all_of_them(proxy: CuttingProxy) -> None:
        all_connected = asyncio.Barrier(6)
        await asyncio.gather(*(one(proxy, all_connected) for _ in range(6)))

    with (
        envhive_serve("benchmark", "--workers", "2", "--max-sessions", "16") as server,
        cutting_proxy(server.port, seed=7) as proxy,
    ):
        asyncio.run(all_of_them(proxy))
        assert proxy.cuts > 20


def doings(server: ServerProcess) -> list[str]:
    with urllib.request.urlopen(f"{server.url}/sessions", timeout=5) as answer:
        return [session["doing"] for session in json.load(answer)]


@pytest.mark.integration
def test_a_killed_worker_is_noticed_at_once() -> None:
    """Its sessions are gone: the way back leads to a worker that does not know them."""
    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "8") as server:

        async def go() -> float:
            async with GenericEnvClient(server.url) as client:
                pid = (await client.reset()).observation["pid"]
                step = asyncio.create_task(client.step({"wait_seconds": 60}))
                await asyncio.to_thread(eventually, lambda: doings(server) == ["step"])
                os.kill(pid, signal.SIGKILL)
                began = time.monotonic()
                with pytest.raises((ConnectionLostError, SessionNotFoundError)) as caught:
                    await step
                assert caught.value.outcome == "infra_error"
                return time.monotonic() - began

        assert asyncio.run(go()) < 10


@BOTH_LANES
def test_a_request_that_makes_no_sense_is_answered_by_its_id_and_costs_nothing(lane: Lane) -> None:
    env = counting()
    with serving(env, lane) as server, server.connect(subprotocols=LAYER_2) as ws:
        hello_of(server, ws)
        ask(ws, {"type": "reset", "data": {}, "id": 1})
        first = ask(ws, {"type": "step", "data": {"by": 5}, "id": 2})
        for frame, code in (
            ('{"type":"step","id":3}', "VALIDATION_ERROR"),
            ('{"type":"dance","id":3}', "UNKNOWN_TYPE"),
            ('{"type":"step","data":{},"more":1,"id":3}', "VALIDATION_ERROR"),
            ('{"type":"step","data":{"by":"many"},"id":3}', "VALIDATION_ERROR"),
        ):
            reply = ask(ws, frame)
            assert (reply["id"], reply["data"]["code"], reply["data"]["outcome"]) == (3, code, "invalid")
        assert ask(ws, '{"type":"reset","id":"\\ud800"}')["data"]["code"] == "VALIDATION_ERROR"
        assert ask(ws, '{"type":"step","data":{"by":1},"id":4}')["data"]["observation"]["total"] == 6
        assert first["data"]["observation"]["total"] == 5


def test_a_mistake_of_the_caller_is_heard_at_once() -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            with pytest.raises(InvalidMessageError):
                await asyncio.wait_for(client.step(None), 10)
            assert (await client.step({"by": 2})).observation["total"] == 2

    with serving(counting(), "fast") as server:
        asyncio.run(go(server.url))
