"""Sessions over HTTP: named by `/reset`, kept by whoever comes back to them, given up when nobody does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from envhive import Environment, create_app
from envhive.errors import SessionCapacityError, SessionExpiredError
from envhive.server.auth import Tokens
from envhive.server.blueprint import Blueprint
from envhive.server.config import ServerConfig, forced
from envhive.server.hive import Hive
from envhive.server.http_sessions import IDLE_S, OFFERED_S
from tests.support.envs import Counting, Move, Seen, async_counting, counting

KINDS = [counting, async_counting]


@pytest.fixture(params=KINDS, ids=["plain", "async"])
def env(request: pytest.FixtureRequest) -> type[Counting]:
    made: type[Counting] = request.param()
    return made


@pytest.fixture
def http(env: type[Counting]) -> Iterator[TestClient]:
    with TestClient(create_app(env, Move, Seen, max_concurrent_envs=2)) as client:
        yield client


def begin(client: TestClient, **fields: Any) -> dict[str, str]:
    """The header that names a new session."""
    reply = client.post("/reset", json=fields)
    assert reply.status_code == 200, reply.text
    return {"X-Session-Id": reply.headers["X-Session-Id"]}


def total(client: TestClient, session: dict[str, str], by: int = 1, **fields: Any) -> int:
    reply = client.post("/step", json={"action": {"by": by}, **fields}, headers=session)
    assert reply.status_code == 200, reply.text
    assert reply.headers["X-Session-Id"] == session["X-Session-Id"]
    seen: int = reply.json()["observation"]["total"]
    return seen


def code(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["code"]


def test_an_episode_over_http(http: TestClient, env: type[Counting]) -> None:
    session = begin(http, seed=10, episode_id="first")
    assert [total(http, session, by) for by in (1, 2, 3)] == [11, 13, 16]
    state = http.get("/state", headers=session).json()
    assert (state["episode_id"], state["step_count"]) == ("first", 3)
    again = http.post("/reset", json={"seed": 100}, headers=session)
    assert again.headers["X-Session-Id"] == session["X-Session-Id"]
    assert total(http, session) == 101
    closed = http.post("/close", headers=session)
    assert (closed.status_code, closed.json()) == (200, {"session_id": session["X-Session-Id"], "steps": 4})
    assert env.journal.events() == ["make", "reset", *["step"] * 3, "state", "reset", "step", "close"]
    assert code(http.post("/step", json={"action": {}}, headers=session)) == (404, "SESSION_NOT_FOUND")
    assert code(http.post("/close", headers=session)) == (404, "SESSION_NOT_FOUND")


def test_a_session_goes_on_in_another_event_loop_with_time_limits_of_its_own() -> None:
    client = TestClient(create_app(counting(BLOCKING=False), Move, Seen))  # not in a block: a loop for each request
    session = begin(client, timeout_s=30)
    assert [total(client, session, timeout_s=seconds) for seconds in (60, 5, 20)] == [1, 2, 3]


def test_two_sessions_are_two_environments(http: TestClient) -> None:
    one, two = begin(http), begin(http)
    assert [total(http, one), total(http, two), total(http, one)] == [1, 1, 2]


def test_a_session_that_nobody_came_back_to_makes_room_for_a_newcomer(http: TestClient, env: type[Counting]) -> None:
    first, kept, third = begin(http), begin(http), None
    total(http, kept)
    assert http.get("/health").json()["active_sessions"] == 1
    third = begin(http)
    assert env.journal.events(1)[-1] == "close"
    assert code(http.post("/step", json={"action": {}}, headers=first)) == (410, "SESSION_EXPIRED")
    assert [total(http, kept), total(http, third)] == [2, 1]
    assert code(http.post("/reset")) == (503, "CAPACITY_REACHED")
    assert http.get("/health").json()["active_sessions"] == 2


def test_a_connection_gets_the_place_of_a_session_that_nobody_came_back_to(
    http: TestClient, env: type[Counting]
) -> None:
    begin(http), begin(http)
    with (
        http.websocket_connect("/ws") as one,
        http.websocket_connect("/ws") as two,
        http.websocket_connect("/ws") as no,
    ):
        for ws in (one, two, no):
            ws.send_json({"type": "reset"})
        assert [ws.receive_json()["type"] for ws in (one, two, no)] == ["observation", "observation", "error"]
        assert env.journal.count("close") == 2
        # A new environment is made when the one before it, in the same place, is closed.
        made = [event for _, event, _ in env.journal.entries if event in ("make", "close")]
        assert made.index("close") < 3


def test_one_place_is_enough_for_calls_without_a_session(env: type[Counting]) -> None:
    with TestClient(create_app(env, Move, Seen, max_concurrent_envs=1)) as client:
        for _ in range(10):
            assert client.post("/reset").status_code == 200
            assert client.post("/step", json={"action": {"do": "metadata"}}).status_code == 200
            assert client.get("/state").status_code == 200
        made = [event for _, event, _ in env.journal.entries if event in ("make", "close")]
        assert made == ["make", "close"] * 30, "never two environments at once"
        assert client.get("/health").json()["active_sessions"] == 0


def test_what_fails_is_told_and_costs_no_place(http: TestClient, env: type[Counting]) -> None:
    for _ in range(5):
        assert code(http.post("/reset", json={"level": "broken"})) == (500, "EXECUTION_ERROR")
    session = begin(http)
    assert code(http.post("/step", json={"action": {"do": "raise"}}, headers=session)) == (500, "EXECUTION_ERROR")
    assert code(http.post("/step", json={"action": {"by": 13}}, headers=session)) == (422, "VALIDATION_ERROR")
    assert total(http, session) == 1
    assert code(http.post("/close")) == (422, "VALIDATION_ERROR")
    assert code(http.get("/state", headers={"X-Session-Id": "nobody"})) == (404, "SESSION_NOT_FOUND")
    with http.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset"})
        ws.receive_json()
        listed = {each["session_id"] for each in http.get("/sessions").json()} - {session["X-Session-Id"]}
        of_a_connection = {"X-Session-Id": listed.pop()}
        assert code(http.get("/state", headers=of_a_connection)) == (404, "SESSION_NOT_FOUND")


def test_a_request_that_comes_again_is_answered_from_the_last_time(http: TestClient, env: type[Counting]) -> None:
    session = begin(http)
    assert [total(http, session, request_id="a") for _ in range(3)] == [1, 1, 1]
    assert [total(http, session, request_id="b"), total(http, session)] == [2, 3]
    failed = [http.post("/step", json={"action": {"do": "raise"}, "request_id": "c"}, headers=session) for _ in "12"]
    assert [code(reply) for reply in failed] == [(500, "EXECUTION_ERROR")] * 2
    assert env.journal.count("step") == 4


def test_an_id_that_was_another_requests_gets_no_answer_of_that_one(http: TestClient, env: type[Counting]) -> None:
    session = begin(http)
    assert total(http, session, request_id="1") == 1
    again = http.post("/reset", json={"seed": 7, "request_id": "1"}, headers=session)
    assert again.json()["observation"]["total"] == 7
    assert total(http, session, request_id="1") == 8
    other = http.post("/step", json={"action": {"by": 2}, "request_id": "1"}, headers=session)
    assert code(other) == (422, "VALIDATION_ERROR")
    assert "was that of another step" in other.json()["detail"]


def test_a_request_that_comes_again_while_it_runs_waits_for_the_same_answer(env: type[Counting]) -> None:
    with TestClient(create_app(env, Move, Seen)) as client:
        session = begin(client)
        replies: list[Any] = []
        body = {"action": {"seconds": 0.2}, "request_id": "slow"}
        calls = [
            threading.Thread(target=lambda: replies.append(client.post("/step", json=body, headers=session).json()))
            for _ in range(4)
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        assert [reply["observation"]["total"] for reply in replies] == [1] * 4
        assert env.journal.count("step") == 1


def test_a_session_belongs_to_the_token_that_made_it(env: type[Counting]) -> None:
    ada, bob = ({"Authorization": f"Bearer {secret}"} for secret in ("secret-of-ada", "secret-of-bob"))
    with forced(tokens=Tokens.parse("test", ["ada:secret-of-ada:1", "bob:secret-of-bob"])):
        app = create_app(env, Move, Seen, max_concurrent_envs=9)
    with TestClient(app) as client:
        session = {"X-Session-Id": client.post("/reset", headers=ada).headers["X-Session-Id"]}
        for path in ("/step", "/reset", "/close"):
            assert code(client.post(path, json={"action": {}}, headers=session | bob)) == (404, "SESSION_NOT_FOUND")
        # What waits for its first request counts for nobody; what is in use counts for its owner.
        other = {"X-Session-Id": client.post("/reset", headers=ada).headers["X-Session-Id"]}
        assert client.post("/step", json={"action": {}}, headers=session | ada).status_code == 200
        assert code(client.post("/step", json={"action": {}}, headers=other | ada)) == (503, "CAPACITY_REACHED")
        assert client.post("/close", headers=session | ada).status_code == 200
        assert client.post("/step", json={"action": {}}, headers=other | ada).status_code == 200


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_sessions_expire_sooner_when_no_request_has_named_them(env: type[Counting]) -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = Hive(Blueprint.of(env, Move, Seen), ServerConfig(max_sessions=2), clock=clock)
        left, used = [await hive.admit_in_turn(None) for _ in range(2)]
        for session in (left, used):
            await session.ask_reset({})
            assert hive.http.add(session)
        hive.http.find(used.id, None)
        clock.now += OFFERED_S + 1
        hive.sweep(clock.now)
        await left.wait_closed()
        with pytest.raises(SessionExpiredError, match="idle for more than 60 s"):
            hive.http.find(left.id, None)
        await hive.http.find(used.id, None).session.ask_state()
        clock.now += IDLE_S + 1
        hive.sweep(clock.now)
        await used.wait_closed()
        with pytest.raises(SessionExpiredError):
            hive.http.find(used.id, None)
        assert (hive.capacity().active_sessions, hive.capacity().available_slots) == (0, 2)
        # And no place was lost or won.
        sessions = [hive.admit(None) for _ in range(2)]
        with pytest.raises(SessionCapacityError):
            hive.admit(None)
        for session in sessions:
            session.end()
        await hive.shutdown()

    asyncio.run(scenario())


def test_a_session_on_offer_ends_also_if_whoever_got_its_place_never_comes(env: type[Counting]) -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = Hive(Blueprint.of(env, Move, Seen), ServerConfig(max_sessions=1), clock=clock)
        session = await hive.admit_in_turn(None)
        await session.ask_reset({})
        assert hive.http.add(session)
        hive._places.take()  # for a connection that another worker hands over, and dies before it is here
        hive.sweep(clock.now)
        assert not session.is_over  # it may still be on its way
        hive.sweep(clock.now)
        await asyncio.wait_for(session.wait_closed(), 20)
        with pytest.raises(SessionExpiredError, match="its place went to another"):
            hive.http.find(session.id, None)
        hive._places.give_back()
        await (await hive.admit_in_turn(None)).ask_reset({})
        await hive.shutdown()

    asyncio.run(scenario())


def test_an_expired_session_is_told_as_that_also_if_another_got_its_place(env: type[Counting]) -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = Hive(Blueprint.of(env, Move, Seen), ServerConfig(max_sessions=1), clock=clock)
        session = await hive.admit_in_turn(None)
        await session.ask_reset({})
        assert hive.http.add(session)
        hive.http.find(session.id, None)
        clock.now += IDLE_S + 1
        hive.sweep(clock.now)
        await (await hive.admit_in_turn(None)).ask_reset({})
        with pytest.raises(SessionExpiredError):
            hive.http.find(session.id, None)
        await hive.shutdown()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [counting, async_counting, lambda: counting(BLOCKING=False)])
def test_a_newcomer_who_gets_the_place_of_one_on_offer_is_served_however_fast_that_closes(
    kind: Callable[[], type[Counting]],
) -> None:
    env = type("Unclosed", (kind(),), {"close": Environment.close})  # closing what has nothing to close is done at once

    async def scenario() -> None:
        hive = Hive(Blueprint.of(env, Move, Seen), ServerConfig(max_sessions=1))
        for _ in range(3):
            session = await hive.admit_in_turn(None)
            async with asyncio.timeout(20):
                await session.ask_reset({})
            assert hive.http.add(session)
        await hive.shutdown()

    asyncio.run(scenario())


def test_while_others_wait_in_line_a_reset_keeps_no_place(env: type[Counting]) -> None:
    async def scenario() -> None:
        hive = Hive(Blueprint.of(env, Move, Seen), ServerConfig(max_sessions=1, admission_timeout=60))
        first = await hive.admit_in_turn(None)
        waiting = asyncio.ensure_future(hive.admit_in_turn(None))
        await asyncio.sleep(0)
        await first.ask_reset({})
        assert not hive.http.add(first)
        first.end()
        second = await waiting
        await second.ask_reset({})
        assert hive.http.add(second)
        third = await hive.admit_in_turn(None)  # needs not wait: the second is on offer
        await third.ask_reset({})
        assert second.ended_by is None
        third.end()
        await hive.shutdown()

    asyncio.run(scenario())
