"""Who gets in, who has been idle too long, and how well the hive says it is. The clock is the test's."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envhive.errors import DrainingError, EnvHiveError, SessionCapacityError, SessionNotFoundError
from envhive.server import hive as of_the_process
from envhive.server.auth import Owner
from envhive.server.blueprint import Blueprint
from envhive.server.config import ServerConfig
from envhive.server.crew import Crew
from envhive.server.hive import Hive
from envhive.server.ledger import Ledger
from tests.support.envs import Move, Seen, async_counting, counting


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def hive_for(env: Any, clock: Clock | None = None, **config: Any) -> Hive:
    return Hive(Blueprint.of(env, Move, Seen), ServerConfig(**config), clock=clock or Clock())


def test_sessions_up_to_the_limit_get_in_and_a_freed_place_is_given_again() -> None:
    async def scenario() -> None:
        hive = hive_for(counting(BLOCKING=False), max_sessions=2)
        first = hive.admit(None)
        hive.admit(None)
        with pytest.raises(SessionCapacityError) as full:
            hive.admit(None)
        assert (full.value.active_sessions, full.value.max_sessions) == (2, 2)
        first.end()
        hive.admit(None)
        assert hive.capacity().is_at_capacity
        await hive.shutdown()
        assert hive.capacity().active_sessions == 0

    asyncio.run(scenario())


def test_only_sessions_idle_for_longer_than_allowed_expire() -> None:
    async def scenario() -> None:
        clock = Clock()
        env = counting(BLOCKING=False)
        hive = hive_for(env, clock, max_sessions=5, session_timeout=30)
        old, busy_lately = hive.admit(None), hive.admit(None)
        clock.now += 29
        await busy_lately.ask_reset({})
        hive.sweep(clock.now)
        assert len(hive.sessions) == 2
        clock.now += 2
        hive.sweep(clock.now)
        assert list(hive.sessions) == [busy_lately.id]
        assert env.journal.events(1)[-1] == "close"
        assert old.id not in hive.sessions
        await hive.shutdown()

    asyncio.run(scenario())


class Pinged:
    """A peer, and a test that does something whenever the hive pings it: it is in the middle of a sweep then."""

    excused = False

    def __init__(self, when_pinged: Callable[[], None]) -> None:
        self.heard, self.quiet_since, self.pinged_at = False, 0.0, 0.0
        self.aborted: list[str] = []
        self._when_pinged = when_pinged

    def ping(self) -> None:
        self._when_pinged()

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)


def test_a_process_that_is_stopped_in_the_middle_of_a_sweep_gives_nobody_up() -> None:
    async def scenario() -> None:
        clock, pings = Clock(), asyncio.Event()
        timeouts = {"ping_interval": 0.04, "ping_timeout": 30.0, "session_timeout": 30.0}
        hive = hive_for(counting(BLOCKING=False), clock, max_sessions=1, **timeouts)
        session = hive.admit(None)

        def stopped() -> None:
            clock.now += 3600
            pings.set()

        def pinged_again() -> None:
            pings.set()

        peer = Pinged(stopped)
        hive.heartbeat.watch(peer)
        await pings.wait()
        pings.clear()
        hive.heartbeat.watch(Pinged(pinged_again))  # by the sweep after it
        await pings.wait()
        await asyncio.sleep(0)  # it has ended by now
        assert (peer.aborted, list(hive.sessions)) == ([], [session.id])
        await hive.shutdown()

    asyncio.run(scenario())


def test_a_session_in_the_middle_of_a_step_does_not_expire() -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = hive_for(async_counting(), clock, max_sessions=1, session_timeout=30)
        session = hive.admit(None)
        step = asyncio.ensure_future(session.ask_step(b'{"seconds": 0.05}', {}))
        while session.busy_with != "step":
            await asyncio.sleep(0.001)
        clock.now += 3600
        hive.sweep(clock.now)
        assert session.id in hive.sessions
        with pytest.raises(Exception, match="step_count"):  # it was never reset, and that is its own affair
            await step
        await hive.shutdown()

    asyncio.run(scenario())


def test_a_hive_that_shuts_down_takes_nobody_in() -> None:
    async def scenario() -> None:
        hive = hive_for(counting())
        await hive.shutdown()
        with pytest.raises(DrainingError):
            hive.admit(None)

    asyncio.run(scenario())


def test_health_tells_of_capacity_version_and_uptime() -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = hive_for(counting(BLOCKING=False), clock, max_sessions=3)
        hive.admit(None)
        clock.now += 5
        health = await hive.health()
        assert (health.status, health.reasons) == ("healthy", [])
        assert (health.active_sessions, health.max_sessions, health.uptime_s) == (1, 3, 5.0)
        await hive.shutdown()
        assert (await hive.health()).status == "draining"

    asyncio.run(scenario())


def test_a_server_whose_environments_cannot_be_made_is_not_well() -> None:
    broken = True
    working = counting(BLOCKING=False)

    def make() -> Any:
        if broken:
            raise RuntimeError("no disk")
        return working()

    async def scenario() -> None:
        nonlocal broken
        clock = Clock()
        hive = hive_for(make, clock, max_sessions=1)
        seen = []
        for _ in range(3):
            with pytest.raises(Exception, match="no disk"):
                await hive.metadata()
            seen.append((await hive.health()).status)
        assert seen == ["degraded", "degraded", "unhealthy"]
        clock.now += 29
        assert (await hive.health()).status == "unhealthy"
        clock.now += 2  # nobody has tried since, as nobody sends clients to a server that is not well
        assert (await hive.health()).status == "healthy"
        with pytest.raises(Exception, match="no disk"):
            await hive.metadata()
        assert (await hive.health()).status == "unhealthy"
        broken = False
        await hive.metadata()
        assert (await hive.health()).status == "healthy"
        await hive.shutdown()

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [counting, async_counting])
def test_a_newcomer_gets_the_place_of_one_who_has_left_and_begins_when_that_one_is_closed(make: Any) -> None:
    closing, released = threading.Event(), threading.Event()

    def close(self: Any) -> None:
        closing.set()
        released.wait(20)
        self._note("close")

    async def scenario() -> None:
        env = make(close=close)
        hive = hive_for(env, max_sessions=1)
        first = hive.admit(None)
        await first.ask_reset({})
        with pytest.raises(SessionCapacityError):
            hive.admit(None)
        first.end()
        second = hive.admit(None)
        reset = asyncio.ensure_future(second.ask_reset({}))
        assert await asyncio.to_thread(closing.wait, 20)
        assert env.journal.count("make") == 1
        assert hive.capacity().active_sessions == 1
        with pytest.raises(SessionCapacityError):  # nobody else leaves
            hive.admit(None)
        released.set()
        await reset
        assert env.journal.count("make") == 2
        second.end()
        await second.wait_closed()
        assert hive.capacity().active_sessions == 0
        await hive.shutdown()

    try:
        asyncio.run(scenario())
    finally:
        released.set()


@pytest.mark.parametrize("make", [counting, async_counting])
@pytest.mark.parametrize("follower_first", [True, False])
def test_who_leaves_while_waiting_for_a_place_leaves_it_to_the_next_and_no_two_environments_meet(
    make: Any, follower_first: bool
) -> None:
    closing, released = threading.Event(), threading.Event()

    def close(self: Any) -> None:
        closing.set()
        released.wait(20)
        self._note("close")

    async def scenario() -> None:
        env = make(close=close)
        hive = hive_for(env, max_sessions=1)
        first = hive.admit(None)
        await first.ask_reset({})
        first.end()
        assert await asyncio.to_thread(closing.wait, 20)
        second = hive.admit(None)
        if follower_first:
            with pytest.raises(SessionCapacityError):
                hive.admit(None)
        second.end()
        await asyncio.wait_for(second.wait_closed(), 1)  # it need not be waited for: nothing of it was begun
        assert (hive.stuck, hive.capacity().active_sessions) == ({}, 1)
        third = hive.admit(None)
        reset = asyncio.ensure_future(third.ask_reset({}))
        await asyncio.sleep(0.05)
        assert env.journal.count("make") == 1
        with pytest.raises(SessionCapacityError):
            hive.admit(None)
        released.set()
        await asyncio.wait_for(reset, 20)
        assert env.journal.count("make") == 2
        third.end()
        await third.wait_closed()
        assert hive.capacity().active_sessions == 0
        await hive.shutdown()
        assert env.journal.count("make") == env.journal.count("close") == 2

    try:
        asyncio.run(scenario())
    finally:
        released.set()


def test_looking_at_a_server_takes_no_place_of_a_client_that_may_come_back() -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = hive_for(async_counting(), clock, max_sessions=2)
        away, idle = hive.admit(None, layer=2), hive.admit(None)
        for session in (away, idle):
            await session.ask_reset({})
        away.detach()
        clock.now += 30
        assert b"CountingEnvironment" in await hive.metadata()
        with pytest.raises(SessionCapacityError):
            async with hive.visit(None):
                pass
        assert not away.is_over
        hive.admit(None)
        assert away.is_over
        await hive.shutdown()

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [counting, async_counting, lambda: counting(BLOCKING=False)])
def test_a_newcomer_on_a_full_server_gets_the_place_of_a_client_that_has_long_been_away(make: Any) -> None:
    async def scenario() -> None:
        env, clock = make(), Clock()
        hive = hive_for(env, clock, max_sessions=2)
        away = []
        for _ in range(2):
            away.append(session := hive.admit(None, layer=2))
            await session.ask_reset({})
            session.detach()
            clock.now += 6
        newcomer = hive.admit(None)  # the first of the two is long gone
        with pytest.raises(SessionCapacityError, match="Kept for clients that lost their connection: 1"):
            hive.admit(None)  # the second may yet come back
        await newcomer.ask_reset({})
        assert [session.is_over for session in away] == [True, False]
        assert hive.capacity().active_sessions == 2
        await hive.shutdown()
        assert env.journal.count("make") == env.journal.count("close") == 3

    asyncio.run(scenario())


@contextmanager
def workers(count: int, clock: Clock, **config: Any) -> Iterator[list[Hive]]:
    """The hives of so many workers of one server, which share its places."""
    ledger, hives = Ledger.create(count, clock), []
    with pytest.MonkeyPatch.context() as patch:
        for index in range(count):
            crew = Crew(index, Path("nowhere"), ledger)
            patch.setattr(of_the_process, "current_crew", lambda crew=crew: crew)
            hives.append(hive_for(async_counting(), clock, **config))
            ledger.set_at_work(index, True)
    try:
        yield hives
    finally:
        os.close(ledger.descriptor)


class Listening:
    """A client of layer 2, which remembers what it was greeted with."""

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {}

    def send(self, frame: bytes) -> None:
        self.hello = json.loads(frame)

    def close(self, code: int, reason: str) -> None: ...

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def drop(self) -> None: ...

    def come_back_to(self, hive: Hive, owner: Owner | None = None) -> Any:
        return hive.resume(self.hello["session_id"], self.hello["resume_token"], self, owner)


async def leave_one_after_another(hive: Hive, clock: Clock, count: int) -> list[tuple[Listening, Any]]:
    """Sessions whose clients have been away, each for a second longer than the next, the last for 11 s."""
    left = []
    for _ in range(count):
        client = Listening()
        session = hive.admit(client, layer=2)
        await session.ask_reset({})
        session.detach()
        left.append((client, session))
        clock.now += 1
    clock.now += 10
    hive.sweep(clock.now)
    return left


def look_twice(hive: Hive, clock: Clock) -> None:
    for _ in range(2):
        hive.sweep(clock.now)


def test_a_newcomer_gets_the_place_of_a_client_that_is_away_from_another_worker() -> None:
    async def scenario() -> None:
        clock = Clock()
        with workers(2, clock, max_sessions=3) as (one, other):
            stays = one.admit(None, layer=2)
            left = [session for _, session in await leave_one_after_another(one, clock, 2)]
            newcomer = other.admit(None)
            look_twice(one, clock)
            assert [session.is_over for session in left] == [True, False]  # one for one, and who was longest away
            assert other.capacity().active_sessions == 3
            other.admit(None)
            with pytest.raises(SessionCapacityError):
                other.admit(None)
            look_twice(one, clock)
            assert [session.is_over for session in (stays, *left, newcomer)] == [False, True, True, False]
            assert one.metrics.ended["displaced"] + len(one.sessions) == 3
            for hive in (one, other):
                await hive.shutdown()
            assert other.capacity().active_sessions == 0

    asyncio.run(scenario())


def test_who_comes_back_in_time_keeps_its_session_and_who_does_not_is_told() -> None:
    async def scenario() -> None:
        clock = Clock()
        with workers(2, clock, max_sessions=2) as (one, other):
            (first, longest_away), (second, session) = await leave_one_after_another(one, clock, 2)
            other.admit(None)  # in the place of one of them, which has not been told
            assert first.come_back_to(one) is longest_away
            look_twice(one, clock)
            assert (longest_away.is_over, session.is_over) == (False, True)
            with pytest.raises(SessionNotFoundError):
                second.come_back_to(one)
            await longest_away.ask_reset({})
            with pytest.raises(SessionCapacityError):
                other.admit(None)
            longest_away.detach()
            clock.now += 11
            one.sweep(clock.now)
            other.admit(None)
            with pytest.raises(SessionNotFoundError, match="its place went to another"):
                first.come_back_to(one)  # before its worker has looked
            assert longest_away.is_over
            for hive in (one, other):
                await hive.shutdown()
            assert other.capacity().active_sessions == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("ends", ["with its lease", "killed"])
def test_a_session_that_ends_by_itself_after_its_place_has_gone_does_not_give_it_back_again(ends: str) -> None:
    async def scenario() -> None:
        clock, ada, bob = Clock(), Owner("ada", 1, 0), Owner("bob", 1, 1)
        with workers(2, clock, max_sessions=1) as (one, other):
            session = one.admit(Listening(), owner=ada, layer=2)
            await session.ask_reset({})
            session.detach()
            clock.now += 11
            one.sweep(clock.now)
            with pytest.raises(SessionCapacityError, match="'ada'"):  # hers still, as long as nobody else needs it
                one.admit(None, owner=ada)
            newcomer = other.admit(None, owner=bob)
            if ends == "killed":
                session.kill()
            else:
                clock.now += 60
                one.sweep(clock.now)
            await session.wait_closed()
            assert other.capacity().active_sessions == 1
            with pytest.raises(SessionCapacityError, match="Server at capacity: 1 of 1"):
                one.admit(None, owner=ada)
            newcomer.end()
            await newcomer.wait_closed()
            assert one.admit(None, owner=ada).owner is ada
            for hive in (one, other):
                await hive.shutdown()
            assert other.capacity().active_sessions == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [1, 2])
def test_who_waits_in_line_gets_the_place_of_a_client_that_is_away(count: int) -> None:
    async def scenario() -> None:
        clock = Clock()
        with workers(count, clock, max_sessions=1, admission_timeout=3600.0) as hives:
            one, other = hives[0], hives[-1]
            session = one.admit(Listening(), layer=2)
            session.detach()
            waiting = asyncio.ensure_future(other.admit_in_turn(None))
            while not len(other.line or ()):
                await asyncio.sleep(0)
            clock.now += 11
            one.sweep(clock.now)
            newcomer = await asyncio.wait_for(waiting, 20)
            look_twice(one, clock)
            assert (session.is_over, newcomer.is_over) == (True, False)
            for hive in hives:
                await hive.shutdown()
            assert other.capacity().active_sessions == 0

    asyncio.run(scenario())


def test_a_blocked_event_loop_shows_in_health() -> None:
    async def scenario() -> None:
        clock = Clock()
        hive = hive_for(counting(), clock, session_timeout=0.04)  # a short tick, so that the sweeper looks soon
        hive.start()
        await asyncio.sleep(0)
        clock.now += 1.1  # this is the blocked loop
        while (health := await hive.health()).loop_lag_ms == 0:
            await asyncio.sleep(0.001)
        assert health.status == "degraded"
        assert health.loop_lag_ms > 1000
        assert "blocked" in health.reasons[0]
        await hive.shutdown()

    asyncio.run(scenario())


def test_on_a_full_server_metadata_is_asked_of_whoever_is_idle_and_waits_for_no_step() -> None:
    async def scenario() -> None:
        hive = hive_for(async_counting(), max_sessions=2)
        sessions = [hive.admit(None) for _ in range(2)]
        steps = []
        for session in sessions:
            await session.ask_reset({})
        for session in sessions:
            assert b"CountingEnvironment" in await asyncio.wait_for(hive.metadata(), 20)
            steps.append(asyncio.ensure_future(session.ask_step(b'{"seconds": 60}', {})))
            while session.busy_with != "step":
                await asyncio.sleep(0.001)
            hive._metadata = None  # as if it had not been asked for
        with pytest.raises(SessionCapacityError):
            await hive.metadata()
        for session in sessions:
            session.end()
        await asyncio.gather(*steps, return_exceptions=True)
        await hive.shutdown()

    asyncio.run(scenario())


def test_metadata_is_asked_of_one_instance_and_kept() -> None:
    async def scenario() -> None:
        env = counting()
        hive = hive_for(env)
        assert await hive.metadata() == await hive.metadata()
        await hive.shutdown()
        assert env.journal.count("make") == env.journal.count("close") == 1

    asyncio.run(scenario())
