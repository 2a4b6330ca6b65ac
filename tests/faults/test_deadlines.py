"""A step gets the time it was given: its client hears of it on time, and nothing waits behind what hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from envhive import Action, GenericEnvClient, MCPEnvironment, Observation, State, tool
from envhive.errors import ConnectionLostError, SessionError, StepTimeoutError
from tests.support.envs import Counting, Hanging, Move, Seen, async_counting, counting
from tests.support.servers import Lane, Running, ask, eventually, receive, reset, serving, step

BOTH_LANES = pytest.mark.parametrize("lane", ["fast", "asgi"])
LAYER_2: list[Any] = ["envhive.v1"]


def stuck(server: Running) -> int:
    return len(server.server.hive.stuck)


@BOTH_LANES
def test_a_coroutine_that_takes_too_long_is_cancelled_and_the_session_goes_on(lane: Lane) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            began = time.monotonic()
            with pytest.raises(StepTimeoutError, match=r"step took longer than 0\.2 s") as caught:
                await client.step({"seconds": 60}, timeout_s=0.2)
            assert 0.2 <= time.monotonic() - began < 5
            assert (caught.value.outcome, caught.value.code) == ("timeout", "STEP_TIMEOUT")
            assert (await client.step({"by": 3}, timeout_s=30)).observation["total"] == 3
            assert (await client.state())["step_count"] == 1

    with serving(async_counting(), lane) as server:
        asyncio.run(go(server.url))
        server.wait_until_empty()
        assert stuck(server) == 0


@BOTH_LANES
def test_a_thread_that_takes_too_long_is_left_behind_and_its_place_is_free(lane: Lane, hanging: Hanging) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            began = time.monotonic()
            with pytest.raises(StepTimeoutError):
                await client.step({"do": "hang"}, timeout_s=0.2)
            assert 0.2 <= time.monotonic() - began < 2
            with pytest.raises((SessionError, ConnectionLostError), match="could not be stopped") as caught:
                await client.step({"by": 1})
            assert caught.value.outcome == "infra_error"
            assert (await client.reset(seed=4)).observation["total"] == 4  # in a new session, of the only place

    with serving(hanging.env, lane, max_concurrent_envs=1) as server:
        asyncio.run(go(server.url))
        server.wait_until_empty()
        listed = json.load(urllib.request.urlopen(f"{server.url}/sessions", timeout=5))
        assert [entry["doing"] for entry in listed] == ["stuck in step"]
        hanging.released.set()
        eventually(lambda: stuck(server) == 0)
        assert hanging.env.journal.events(1)[-1] == "close"
        assert len(hanging.env.journal.threads(1)) == 1


@BOTH_LANES
def test_a_limit_of_the_server_holds_for_every_client(lane: Lane, hanging: Hanging) -> None:
    with serving(hanging.env, lane, config={"step_timeout": 0.2}) as server, server.connect() as ws:
        reset(ws)
        assert step(ws, by=2)["data"]["observation"]["total"] == 2
        assert step(ws, do="hang")["data"]["code"] == "STEP_TIMEOUT"
        server.wait_until_empty()
        with server.connect(subprotocols=LAYER_2) as other:
            receive(other)
            ask(other, {"type": "reset", "data": {}, "id": 1})
            # A client may ask for less than the server's limit, not for more.
            late = ask(other, {"type": "step", "data": {"do": "hang"}, "id": 2, "timeout_s": 3600})
            assert (late["id"], late["data"]["code"], late["data"]["outcome"]) == (2, "STEP_TIMEOUT", "timeout")


@BOTH_LANES
def test_an_environment_that_takes_the_limit_is_given_it(lane: Lane) -> None:
    seen: list[Any] = []

    def reset_env(self: Counting, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        seen.append(timeout_s)
        return Counting.reset(self, **kwargs)

    def step_env(self: Counting, action: Move, timeout_s: float | None = None) -> Seen:
        seen.append(timeout_s)
        return Counting.step(self, action)

    with (
        serving(counting(reset=reset_env, step=step_env), lane) as server,
        server.connect(subprotocols=LAYER_2) as ws,
    ):
        receive(ws)
        ask(ws, {"type": "reset", "data": {}, "id": 1, "timeout_s": 7})
        ask(ws, {"type": "step", "data": {}, "id": 2, "timeout_s": 8.5})
        ask(ws, {"type": "step", "data": {}, "id": 3})
    assert seen == [7, 8.5, None]


def test_a_coroutine_that_will_not_be_cancelled_is_left_behind() -> None:
    let_go = threading.Event()

    async def stubborn(self: Counting, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        while action.do == "hang" and not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return Counting.step(self, action)

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            with pytest.raises(StepTimeoutError):
                await client.step({"do": "hang"}, timeout_s=0.1)

    with serving(async_counting(step=stubborn), "fast", max_concurrent_envs=1) as server:
        try:
            asyncio.run(go(server.url))
            server.wait_until_empty()
            assert stuck(server) == 1
        finally:
            let_go.set()
        eventually(lambda: stuck(server) == 0)


@pytest.mark.parametrize(("limit", "asked"), [(None, 0.2), (0.2, None), (0.2, 3600), (3600, 0.2)])
def test_http_answers_504(hanging: Hanging, limit: float | None, asked: float | None) -> None:
    body = {"action": {"do": "hang"}, "timeout_s": asked}
    with serving(hanging.env, "fast", max_concurrent_envs=1, config={"step_timeout": limit}) as server:
        request = urllib.request.Request(
            f"{server.url}/step", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        with caught.value as answer:
            assert (answer.code, json.load(answer)["code"]) == (504, "STEP_TIMEOUT")
        server.wait_until_empty()
        assert stuck(server) == 1


@BOTH_LANES
def test_close_does_not_wait_behind_a_step_that_hangs(lane: Lane, hanging: Hanging) -> None:
    async def go(url: str) -> None:
        client = GenericEnvClient(url)
        await client.reset()
        step = asyncio.create_task(client.step({"do": "hang"}))
        await asyncio.to_thread(hanging.hanging.acquire)
        await asyncio.wait_for(client.close(), 8)
        with pytest.raises(ConnectionLostError):
            await step

    with serving(hanging.env, lane, max_concurrent_envs=1) as server:
        asyncio.run(go(server.url))
        server.wait_until_empty()
        with server.connect() as ws:
            assert reset(ws)["type"] == "observation"


@BOTH_LANES
def test_an_environment_whose_close_hangs_does_not_keep_its_place(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envhive.server.session._CLOSING_S", 0.2)
    released = threading.Event()
    env = counting(close=lambda self: released.wait(60))
    try:
        with serving(env, lane, max_concurrent_envs=1) as server:
            with server.connect() as ws:
                reset(ws)
            server.wait_until_empty()
            assert stuck(server) == 1
            released.set()
            eventually(lambda: stuck(server) == 0)
    finally:
        released.set()


@pytest.mark.parametrize("where", ["__init__", "close"])
def test_environments_that_hang_keep_no_others_from_being_made(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where coroutines are served, constructors and `close` share a few threads; those that hang are replaced."""
    monkeypatch.setattr("envhive.server.session._CLOSING_S", 0.2)
    monkeypatch.setattr("envhive.server.session.STOPPING_S", 0.2)
    monkeypatch.setattr("envhive.server.runner._POOL_THREADS", 2)
    released, hang = threading.Event(), True
    begun = threading.Semaphore(0)

    def maybe_hang(self: Counting) -> None:
        if hang:
            begun.release()
            released.wait(60)
        getattr(Counting, where)(self)

    try:
        with serving(async_counting(**{where: maybe_hang}), "fast", max_concurrent_envs=8) as server:
            for _ in range(3):
                with contextlib.ExitStack() as clients:
                    for _ in range(2):
                        ws = clients.enter_context(server.connect())
                        if where == "close":
                            reset(ws)  # or it may not have begun to be made, and there would be nothing to close
                    if where == "__init__":
                        begun.acquire()
                        begun.acquire()
                server.wait_until_empty()
            assert stuck(server) == 6
            hang = False
            with server.connect() as ws:
                assert reset(ws)["type"] == "observation"
            released.set()
            eventually(lambda: stuck(server) == 0)
    finally:
        released.set()


def test_a_step_that_only_waits_for_a_shared_thread_does_not_end_its_session() -> None:
    env = counting(REQUIRES_SINGLE_THREAD_EXECUTOR=True)

    async def one(url: str, number: int) -> str:
        async with GenericEnvClient(url) as client:
            await client.reset(seed=number)
            try:
                await client.step({"seconds": 0.4}, timeout_s=0.6)
                outcome = "in time"
            except StepTimeoutError:
                outcome = "too late"
            except (SessionError, ConnectionLostError):
                return "lost"
            if outcome == "too late":
                await client.reset(seed=number)
            return outcome

    async def all_of_them(url: str) -> list[str]:
        return await asyncio.gather(*(one(url, number) for number in range(4)))

    with serving(env, "fast", max_concurrent_envs=8) as server:
        outcomes = asyncio.run(all_of_them(server.url))
    assert "lost" not in outcomes
    assert "in time" in outcomes


class Slow(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @tool
    async def dawdle(self, seconds: float) -> str:
        """Take so long."""
        await asyncio.sleep(seconds)
        return "done"

    @property
    def state(self) -> State:
        return State()


@BOTH_LANES
def test_a_tool_that_takes_too_long_is_an_error_in_its_observation_and_the_session_goes_on(lane: Lane) -> None:
    def dawdling(seconds: float) -> dict[str, Any]:
        return {"type": "call_tool", "tool_name": "dawdle", "arguments": {"seconds": seconds}}

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            late = await client.step(dawdling(60), timeout_s=1)
            assert late.observation["error"]["error_type"] == "timeout"
            assert late.reward is None
            assert (await client.step(dawdling(0), timeout_s=30)).observation["error"] is None

    with serving(Slow, lane, action_cls=Action, observation_cls=Observation) as server:
        asyncio.run(go(server.url))
        server.wait_until_empty()
