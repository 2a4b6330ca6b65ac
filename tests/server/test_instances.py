"""Factories that hand out one instance: it is in one session at a time, unless somebody has set a limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from websockets.exceptions import ConnectionClosed

from envhive import create_app
from envhive.errors import SessionCapacityError, SessionNotFoundError
from envhive.server.blueprint import Blueprint
from envhive.server.config import ServerConfig
from envhive.server.hive import Hive
from envhive.server.session import Session
from tests.server.test_hive import Clock, hive_for
from tests.support.envs import Counting, Hanging, Move, Seen, async_counting, counting
from tests.support.servers import eventually, receive, reset, serving, step

Make = Callable[..., type[Counting]]


def inline(**attributes: Any) -> type[Counting]:
    return counting(BLOCKING=False, **attributes)


def sharing_a_thread(**attributes: Any) -> type[Counting]:
    return counting(REQUIRES_SINGLE_THREAD_EXECUTOR=True, **attributes)


@pytest.fixture(params=[counting, sharing_a_thread, inline, async_counting])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


def sharing(shared: Any) -> Callable[[], Any]:
    """A factory of which the class is known without a trial, so that it is run where a session of its own would be."""

    def factory() -> Any:
        return shared

    factory.__annotations__["return"] = type(shared)
    return factory


async def opened(session: Session) -> Session:
    await session.wait_opened()
    return session


async def refused(session: Session) -> SessionCapacityError:
    with pytest.raises(SessionCapacityError) as caught:
        await session.wait_opened()
    await session.wait_closed()
    return caught.value


def test_an_instance_that_a_session_has_is_given_to_no_other_until_that_is_closed(make: Make) -> None:
    async def scenario() -> None:
        cls = make()
        hive = hive_for(sharing(cls()))
        first = await opened(hive.admit(None))
        await first.ask_reset({"seed": 5})
        for _ in range(4):
            error = await refused(hive.admit(None))
            assert "hands out one instance, which another session has. Set --max-sessions" in str(error)
            assert (error.active_sessions, error.max_sessions) == (1, 1)
        assert (hive.capacity().active_sessions, hive.metrics.refusals["capacity"]) == (1, 4)
        assert (await hive.health()).status == "healthy"
        assert b'"total":6' in await first.ask_step(b'{"by": 1}', {})
        assert cls.journal.count("close") == 0  # it was not theirs to close
        first.end()
        second = await opened(hive.admit(None))  # which waits until it is closed
        assert cls.journal.events() == ["make", "reset", "step", "close"]
        second.end()
        await second.wait_closed()
        assert hive.capacity().active_sessions == 0
        await hive.shutdown()

    asyncio.run(scenario())


def test_instances_of_their_own_are_nobody_elses_affair(make: Make) -> None:
    async def scenario() -> None:
        cls = make()
        hive = hive_for(cls)
        for _ in range(3):  # ids are used again
            sessions = [hive.admit(None) for _ in range(8)]
            await asyncio.gather(*(session.ask_reset({}) for session in sessions))
            for session in sessions:
                session.end()
            await asyncio.gather(*(session.wait_closed() for session in sessions))
        assert cls.journal.count("make") == cls.journal.count("close") == 24
        await hive.shutdown()

    asyncio.run(scenario())


@pytest.mark.parametrize("limits", [{"max_sessions": 2}, {"max_sessions": 2, "overruled_max_sessions": 1}])
def test_where_a_limit_is_set_sessions_share_it_on_purpose(make: Make, limits: dict[str, int]) -> None:
    async def scenario() -> None:
        hive = Hive(Blueprint.of(sharing(make()()), Move, Seen), ServerConfig(**limits))
        first, second = await opened(hive.admit(None)), await opened(hive.admit(None))
        await first.ask_reset({})
        await first.ask_step(b'{"by": 1}', {})
        assert b'"total":3' in await second.ask_step(b'{"by": 2}', {})
        await hive.shutdown()

    asyncio.run(scenario())


def test_a_close_that_fails_gives_it_back(make: Make) -> None:
    def close(self: Counting) -> None:
        raise OSError("no disk")

    async def scenario() -> None:
        hive = hive_for(sharing(make(close=close)()))
        for _ in range(3):
            session = await opened(hive.admit(None))
            session.end()
        await session.wait_closed()
        assert hive.capacity().active_sessions == 0
        await hive.shutdown()

    asyncio.run(scenario())


def test_an_environment_that_cannot_be_made_is_nobodys() -> None:
    async def scenario() -> None:
        shared, works = counting()(), False

        def factory() -> Counting:
            if not works:
                raise RuntimeError("no disk")
            return shared

        hive = hive_for(factory)
        with pytest.raises(Exception, match="no disk"):
            await opened(hive.admit(None))
        works = True
        await opened(hive.admit(None))
        await refused(hive.admit(None))
        await hive.shutdown()

    asyncio.run(scenario())


def test_newcomers_who_wait_for_one_that_closes_get_it_once(make: Make) -> None:
    closing, released = threading.Event(), threading.Event()

    def close(self: Counting) -> None:
        closing.set()
        released.wait(20)

    async def scenario() -> None:
        hive = hive_for(sharing(make(close=close)()))
        if make is inline:
            released.set()  # it promises not to wait
        first = await opened(hive.admit(None))
        first.end()
        assert await asyncio.to_thread(closing.wait, 20)
        newcomers = [asyncio.ensure_future(opened(hive.admit(None))) for _ in range(3)]
        gone = hive.admit(None)
        gone.end()
        await asyncio.sleep(0)
        released.set()
        outcomes = await asyncio.gather(*newcomers, return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == ["Session", *["SessionCapacityError"] * 2]
        await gone.wait_closed()
        assert hive.capacity().active_sessions == 1
        await hive.shutdown()
        assert hive.capacity().active_sessions == 0

    asyncio.run(scenario())


def test_a_session_whose_code_cannot_be_stopped_gives_it_back_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envhive.server.session.STOPPING_S", 0.05)

    async def scenario() -> None:
        hanging = Hanging()
        hive = hive_for(sharing(hanging.env()))
        session = await opened(hive.admit(None))
        abandoned = asyncio.ensure_future(session.ask_step(b'{"do": "hang"}', {}))
        await asyncio.to_thread(hanging.hanging.acquire)
        session.end()
        await session.wait_closed()
        assert list(hive.stuck) == [session.id]
        second = await opened(hive.admit(None))
        await refused(hive.admit(None))
        hanging.released.set()
        await asyncio.to_thread(eventually, lambda: not hive.stuck)
        await refused(hive.admit(None))  # what has ended at last had it no longer
        abandoned.cancel()
        second.end()
        await hive.shutdown()

    asyncio.run(scenario())


def test_the_client_of_a_session_that_is_away_keeps_it_for_a_while() -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = hive_for(sharing(counting()()), clock)
        away = await opened(hive.admit(Silent(), layer=2))
        away.detach()
        clock.now += 9
        await refused(hive.admit(Silent()))
        clock.now += 2
        await refused(hive.admit(None))  # a mere look
        await opened(hive.admit(Silent()))
        assert away.is_over
        with pytest.raises(SessionNotFoundError):
            hive.resume(away.id, "token", Silent(), None)
        await hive.shutdown()

    asyncio.run(scenario())


def test_a_session_that_has_expired_has_it_no_longer() -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = hive_for(sharing(counting()()), clock, session_timeout=30)
        idle = await opened(hive.admit(None))
        clock.now += 31
        hive.sweep(clock.now)
        await opened(hive.admit(None))
        assert idle.is_over
        await hive.shutdown()

    asyncio.run(scenario())


# For those who ask.


@pytest.mark.parametrize("lane", ["fast", "asgi"])
def test_a_second_connection_hears_why_and_the_first_plays_on(make: Make, lane: Any) -> None:
    shared = make()()
    with serving(lambda: shared, lane) as server:
        with server.connect() as first:
            reset(first, seed=5)
            with server.connect() as second:
                error = reset(second)
                assert (error["type"], error["data"]["code"]) == ("error", "CAPACITY_REACHED")
                with pytest.raises(ConnectionClosed) as closed:
                    receive(second)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1013
            assert step(first, by=1)["data"]["observation"]["total"] == 6
        with server.connect() as third:
            assert reset(third)["type"] == "observation"


def test_the_limit_at_start_says_so() -> None:
    shared = counting()()
    assert "one instance, to one session at a time" in hive_for(lambda: shared).limit.reason
    assert "one instance" not in hive_for(lambda: counting()()).limit.reason


def test_calls_over_http_one_after_the_other_have_it_in_turn(make: Make) -> None:
    shared = make()()
    with TestClient(create_app(lambda: shared, Move, Seen)) as http:
        begun = http.post("/reset", json={"seed": 5})
        assert http.post("/step", json={"action": {"by": 1}}).json()["observation"]["total"] == 6
        assert http.get("/metadata").status_code == 200
        assert http.post("/step", json={"action": {"by": 1}}).json()["observation"]["total"] == 7
        name = {"X-Session-Id": begun.headers["X-Session-Id"]}
        assert http.post("/step", json={"action": {"by": 1}}, headers=name).status_code == 410

        kept = {"X-Session-Id": http.post("/reset").headers["X-Session-Id"]}
        assert http.post("/step", json={"action": {"by": 1}}, headers=kept).json()["observation"]["total"] == 1
        refused = [http.post("/reset"), http.post("/step", json={"action": {"by": 1}}), http.get("/state")]
        assert [(each.status_code, each.json()["code"]) for each in refused] == [(503, "CAPACITY_REACHED")] * 3
        assert http.get("/metadata").status_code == 200  # of the one that there is
        assert http.post("/close", headers=kept).json()["steps"] == 1
        assert http.post("/reset").status_code == 200
        assert http.get("/health").json()["active_sessions"] == 0


def test_an_agents_session_has_it_like_any_other() -> None:
    shared = counting()()
    create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    with TestClient(create_app(lambda: shared, Move, Seen)) as http:
        made = http.post("/mcp", json=create).json()["result"]["session_id"]
        assert "hands out one instance" in http.post("/mcp", json=create).json()["error"]["message"]
        with http.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset"})
            assert ws.receive_json()["data"]["code"] == "CAPACITY_REACHED"
        close = {"jsonrpc": "2.0", "id": 2, "method": "openenv/session/close", "params": {"session_id": made}}
        assert http.post("/mcp", json=close).json()["result"]["closed"]
        with http.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset"})
            assert ws.receive_json()["type"] == "observation"


def test_connections_on_event_loops_of_their_own_have_it_in_turn(make: Make) -> None:
    shared = make()()
    http = TestClient(create_app(lambda: shared, Move, Seen))  # without a lifespan each gets a loop
    for _ in range(3):
        with http.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset"})
            assert ws.receive_json()["type"] == "observation"


class Silent:
    """A connection that nobody listens at."""

    def send(self, frame: bytes) -> None: ...
    def close(self, code: int, reason: str) -> None: ...
    def refuse(self, error: Any, code: int, *, asked: bool) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def drop(self) -> None: ...
