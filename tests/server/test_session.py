"""Sessions without sockets: whatever comes is answered once, in order, and the environment is closed once."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envhive.errors import EnvHiveError
from envhive.server.blueprint import Blueprint
from envhive.server.calls import Calls
from envhive.server.layer2 import Extended
from envhive.server.mcp import About
from envhive.server.phases import Phase
from envhive.server.runner import Runners
from envhive.server.session import Session
from envhive.server.turns import INBOX_LIMIT
from tests.support.envs import Counting, Hanging, Journal, Move, Seen, async_counting, counting


class Wire:
    """Stands for a connection and for whoever keeps the session; writes down what it is told."""

    mcp = About("test", by_step=False, act=None)

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.refused: EnvHiveError | None = None
        self.reading = True
        self.ended = asyncio.Event()
        self.opened: list[EnvHiveError | None] = []
        self.stuck: list[bool] = []
        self.detached = False
        self.dropped = False

    def send(self, frame: bytes) -> None:
        assert self.closed is None, "a frame after the close"
        self.frames.append(json.loads(frame))

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None, "closed twice"
        self.closed = (code, reason)

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None:
        self.refused = error

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def session_opened(self, session: Session, error: EnvHiveError | None) -> None:
        self.opened.append(error)

    def session_ending(self, session: Session) -> None: ...

    def session_closed(self, session: Session) -> None:
        self.ended.set()

    def session_stuck(self, session: Session, *, stuck: bool) -> None:
        self.stuck.append(stuck)

    def session_detached(self, session: Session) -> None:
        self.detached = True

    def session_back(self, session: Session) -> bool:
        self.detached = False
        return True

    def drop(self) -> None:
        self.dropped = True


def open_session(env: Any, wire: Wire, **options: Any) -> Session:
    calls = Calls(Blueprint.of(env, Move, Seen))
    cls = env if isinstance(env, type) else None
    runners = Runners(calls, cls, asyncio.get_running_loop(), 512 * 1024)
    session = Session("session-1", runners.make("session-1"), wire, wire, **options)
    session.open()
    return session


async def answer_to(frame: str, session: Session, wire: Wire) -> dict[str, Any]:
    """The data of the reply to a frame that arrives as from a socket: outside any task."""
    answered = len(wire.frames)
    asyncio.get_running_loop().call_soon(session.receive, frame)
    await until(lambda: len(wire.frames) > answered)
    data: dict[str, Any] = wire.frames[-1]["data"]
    return data


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


good = st.sampled_from(
    [
        '{"type":"reset","data":{"seed":3}}',
        '{"type":"reset"}',
        '{"type":"step","data":{"by":2}}',
        '{"type":"step","data":{"do":"raise"}}',
        '{"type":"step","data":{"do":"exit"}}',
        '{"type":"step","data":{"do":"unserialisable"}}',
        '{"type":"state"}',
        '{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"method":"tools/list"}}',
    ]
)
shaped = st.dictionaries(
    st.sampled_from(["type", "data", "id", "x"]),
    st.sampled_from(
        ["reset", "step", "state", "mcp", "jump", "", None, 1, [], {}, {"by": 1}, {"by": "x"}, {"seed": 1}]
    ),
).map(json.dumps)
anything = st.text() | st.binary(max_size=50)
frames = st.lists(good | shaped | anything, max_size=40)

KINDS = [counting, async_counting, lambda: counting(BLOCKING=False)]
KIND_NAMES = ["thread", "async", "inline"]


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("extended", [False, True], ids=["layer 1", "layer 2"])
def test_where_a_reset_is_required_a_step_before_it_is_an_error_and_the_session_lives(
    kind: Callable[[], Any], extended: bool
) -> None:
    async def scenario() -> None:
        env, wire = kind(), Wire()
        options = {"require_reset": True} | ({"extended": Extended(60)} if extended else {})
        session = open_session(env, wire, **options)

        async def ask(frame: str) -> dict[str, Any]:
            wire.frames.clear()
            session.receive(frame)
            await until(lambda: len(wire.frames) == 1)
            return wire.frames[0]

        for _ in range(2):
            refused = await ask('{"type":"step","data":{"by":2}}')
            assert (refused["type"], refused["data"]["code"]) == ("error", "SESSION_ERROR")
            assert refused["data"].get("outcome") == ("infra_error" if extended else None)
        assert (await ask('{"type":"step","data":{"type":"list_tools"}}'))["data"]["code"] == "VALIDATION_ERROR"
        assert env.journal.count("step") == 0
        await ask('{"type":"reset","data":{"seed":3}}')
        assert (await ask('{"type":"step","data":{"by":2}}'))["data"]["observation"]["total"] == 5
        session.end()
        await asyncio.wait_for(wire.ended.wait(), 20)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
@settings(max_examples=60, deadline=None)
@given(sequence=frames)
def test_every_frame_gets_exactly_one_reply_and_nothing_crashes(kind: Callable[[], Any], sequence: list[Any]) -> None:
    async def scenario() -> None:
        env, wire = kind(), Wire()
        session = open_session(env, wire)
        for frame in sequence:
            session.receive(frame)
        await until(lambda: len(wire.frames) == len(sequence))
        session.receive('{"type":"close"}')
        await asyncio.wait_for(wire.ended.wait(), 20)
        assert len(wire.frames) == len(sequence)
        assert wire.closed == (1000, "")
        assert env.journal.count("close") == 1
        assert all(frame["type"] in ("observation", "state", "mcp", "error") for frame in wire.frames)
        assert all(frame["data"]["message"] for frame in wire.frames if frame["type"] == "error")

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(st.integers(1, 8), max_size=30), cuts=st.sets(st.integers(0, 30)))
def test_a_numbered_request_runs_once_however_often_it_comes_and_over_whichever_connection(
    kind: Callable[[], Any], numbers: list[int], cuts: set[int]
) -> None:
    async def scenario() -> None:
        env, wire, extended = kind(), Wire(), Extended(60)
        session = open_session(env, wire, extended=extended)
        session.receive('{"type":"reset","id":0}')
        total, highest = 0, 0
        for index, number in enumerate(numbers):
            if index in cuts:
                session.detach()
                wire = Wire()
                session.attach(wire, extended.token, {})
                assert wire.frames.pop(0)["resumed"] is True
            await until(lambda: session.phase is Phase.IDLE and not session._inbox)
            wire.frames.clear()
            session.receive(f'{{"type":"step","data":{{"by":1}},"id":{number}}}')
            await until(functools.partial(lambda frames: len(frames) == 1, wire.frames))
            (reply,) = wire.frames
            assert reply["id"] == number
            if number >= highest:
                total += number > highest
                highest = number
                assert reply["data"]["observation"]["total"] == total
            else:
                assert reply["data"]["code"] == "SESSION_ERROR"
        assert env.journal.count("step") == total
        session.end()

    asyncio.run(scenario())


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 8) | st.sampled_from(["a", "b"]) | st.none(), st.sampled_from([None, 60])), max_size=20
    )
)
def test_numbers_names_and_time_limits_of_requests_mix(requests: list[tuple[int | str | None, int | None]]) -> None:
    async def scenario() -> None:
        env, wire = counting(BLOCKING=False), Wire()
        session = open_session(env, wire, extended=Extended(60))
        session.receive('{"type":"reset"}')
        wire.frames.clear()
        runs, last, kept = 0, None, None
        for name, limit in requests:
            extras = {**({} if name is None else {"id": name}), **({} if limit is None else {"timeout_s": limit})}
            session.receive(json.dumps({"type": "step", "data": {"by": 1}, **extras}))
            reply = wire.frames.pop()
            assert wire.frames == []
            assert reply.get("id") == name
            if name is not None and name == last:
                assert reply == kept
            elif isinstance(name, int) and isinstance(last, int) and name < last:
                assert reply["data"]["code"] == "SESSION_ERROR"
            else:
                runs += 1
                assert reply["data"]["observation"]["total"] == runs
                if name is not None:
                    last, kept = name, reply
        assert env.journal.count("step") == runs
        session.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
@settings(max_examples=30, deadline=None)
@given(sequence=frames, cut=st.integers(0, 40), patient=st.booleans())
def test_a_client_that_leaves_at_any_moment_costs_one_close(
    kind: Callable[[], Any], sequence: list[Any], cut: int, patient: bool
) -> None:
    async def scenario() -> None:
        env, wire = kind(), Wire()
        session = open_session(env, wire)
        if patient:
            await session.wait_opened()
        for number, frame in enumerate(sequence):
            if number == cut:
                break
            session.receive(frame)
        session.detach()
        await asyncio.wait_for(wire.ended.wait(), 20)
        assert session.phase is Phase.CLOSED
        made = env.journal.count("make")  # perhaps it had not begun to be made
        assert made == env.journal.count("close") == 1 or (made == 0 and not patient)
        assert env.journal.events()[-1:] == ["close"] * made

    asyncio.run(scenario())


def test_ten_thousand_requests_at_once_nest_no_calls_and_pause_reading() -> None:
    async def scenario() -> None:
        wire = Wire()
        session = open_session(counting(BLOCKING=False), wire)
        session.hold()  # a client that does not read
        for number in range(10_000):
            session.receive(f'{{"type":"step","data":{{"by":{2 * number}}}}}' if number else '{"type":"reset"}')
            assert wire.reading is (number + 1 < INBOX_LIMIT)
        session.unhold()
        assert [frame["data"]["reward"] for frame in wire.frames[1:]] == [2.0 * n for n in range(1, 10_000)]
        assert wire.reading

    asyncio.run(scenario())


def test_a_factory_that_fails_refuses_the_client_and_ends_the_session() -> None:
    def make() -> Counting:
        raise RuntimeError("no GPU")

    async def scenario() -> None:
        wire = Wire()
        session = open_session(make, wire)
        waiting = asyncio.ensure_future(session.ask_reset({}))
        await asyncio.wait_for(wire.ended.wait(), 20)
        assert wire.refused is not None
        assert wire.refused.code == "FACTORY_ERROR"
        with pytest.raises(EnvHiveError, match="no GPU"):
            await waiting
        assert wire.opened == [wire.refused]

    asyncio.run(scenario())


def test_expiry_says_why_before_it_closes() -> None:
    async def scenario() -> None:
        now = 100.0
        wire = Wire()
        session = open_session(counting(BLOCKING=False), wire, clock=lambda: now)
        session.receive('{"type":"reset"}')
        assert session.idle_since() == 100.0
        session.expire(30)
        assert wire.frames[-1]["data"]["code"] == "SESSION_EXPIRED"
        assert wire.closed is not None
        assert wire.closed[0] == 1001

    asyncio.run(scenario())


def test_retiring_waits_for_the_running_step_and_its_reply() -> None:
    async def scenario() -> None:
        env, wire = counting(), Wire()
        session = open_session(env, wire)
        session.receive('{"type":"reset"}')
        session.receive('{"type":"step","data":{"seconds":0.05}}')
        await until(lambda: "step" in env.journal.events())
        session.retire(1001, "server shutting down")
        session.receive('{"type":"step","data":{}}')  # too late: not answered
        await asyncio.wait_for(wire.ended.wait(), 20)
        assert [frame["type"] for frame in wire.frames] == ["observation", "observation"]
        assert wire.closed == (1001, "server shutting down")

    asyncio.run(scenario())


def test_questions_from_elsewhere_wait_in_the_same_line() -> None:
    async def scenario() -> None:
        env, wire = counting(), Wire()
        session = open_session(env, wire)
        session.receive('{"type":"reset","data":{"seed":1}}')
        asked = asyncio.ensure_future(session.ask_step(b'{"by":2}', {}))
        await asyncio.sleep(0)
        session.receive('{"type":"step","data":{"by":3}}')
        assert json.loads(await asked)["observation"]["total"] == 3
        await until(lambda: len(wire.frames) == 2)
        assert wire.frames[1]["data"]["observation"]["total"] == 6
        assert session.info().step_count == 2
        session.end()
        with pytest.raises(EnvHiveError):
            await session.ask_state()

    asyncio.run(scenario())


@pytest.mark.parametrize(("kind", "made"), [(KINDS[0], 1), (KINDS[1], 1), (KINDS[2], 0)], ids=KIND_NAMES)
def test_a_session_with_a_time_limit_makes_one_timer_at_most_and_leaves_none(
    kind: Callable[[], Any], made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        wire, loop = Wire(), asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        call_later = loop.call_later

        def noting(delay: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, *args, **options)
            if delay > 60:  # not what the test itself waits by
                timers.append(timer)
            return timer

        monkeypatch.setattr(loop, "call_later", noting)
        session = open_session(kind(), wire, step_timeout=600.0)
        await session.wait_opened()
        for _ in range(3):
            assert (await answer_to('{"type":"step","data":{"do":"metadata"}}', session, wire))["done"] is True
        assert [timer.cancelled() for timer in timers] == [False] * made
        session.end()
        await asyncio.wait_for(wire.ended.wait(), 20)
        assert all(timer.cancelled() for timer in timers)

    asyncio.run(scenario())


class Waiting(Counting):
    """Its steps wait for as many turns of the event loop as they are told to."""

    journal = Journal()

    async def reset(self, **kwargs: Any) -> Seen:  # type: ignore[override]
        return Counting.reset(self, **kwargs)

    async def step(self, action: Move, **kwargs: Any) -> Seen:  # type: ignore[override]
        for _ in range(action.by):
            await asyncio.sleep(0)
        return Counting.step(self, action)


def a_future(step: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator whose steps can be awaited, but are no coroutines."""

    @functools.wraps(step)
    def begun(self: Counting, action: Move) -> asyncio.Future[Seen]:
        return asyncio.ensure_future(step(self, action))

    return begun


class Scheduling(Waiting):
    step = a_future(Waiting.step)


moves = st.fixed_dictionaries(
    {"by": st.integers(0, 3)}, optional={"do": st.sampled_from(["raise", "miss", "unserialisable"])}
)


@pytest.mark.parametrize("env", [Waiting, Scheduling])
@pytest.mark.parametrize("extended", [False, True], ids=["layer 1", "layer 2"])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(moves, max_size=6), min_size=1, max_size=4))
def test_steps_of_coroutines_are_answered_in_order_whether_or_not_they_wait(
    env: type[Counting], extended: bool, turns: list[list[dict[str, Any]]]
) -> None:
    """Sent outside any task, as frames arrive, several in a turn of the event loop, each to two sessions."""

    async def scenario() -> None:
        wires = Wire(), Wire()
        sessions = [open_session(env, wire, extended=Extended(60.0) if extended else None) for wire in wires]
        for session in sessions:
            await session.wait_opened()
            session.receive('{"type":"reset"}')
        number, loop = 0, asyncio.get_running_loop()
        for moves in turns:
            for move in moves:
                number += 1
                frame = {"type": "step", "data": move, **({"id": number} if extended else {})}
                for session in sessions:
                    loop.call_soon(session.receive, json.dumps(frame))
            await asyncio.sleep(0)
        for wire in wires:
            await until(lambda wire=wire: len(wire.frames) == 1 + number)
            total = 0
            for move, reply in zip((move for moves in turns for move in moves), wire.frames[1:], strict=True):
                if "do" in move:
                    assert reply["data"]["code"] == "EXECUTION_ERROR"
                else:
                    total += move["by"]
                    assert reply["data"]["observation"]["total"] == total
            if extended:
                assert [reply["id"] for reply in wire.frames[1:]] == list(range(1, number + 1))
        for session in sessions:
            session.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [*KINDS, lambda: Waiting], ids=[*KIND_NAMES, "async that does not wait"])
@pytest.mark.parametrize("do", ["", "raise"])
def test_nothing_keeps_an_environment_alive_when_its_session_has_ended(
    kind: Callable[[], Any], do: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="envhive.environment")  # or its records would keep tracebacks

    async def scenario() -> None:
        wire, cls = Wire(), kind()
        made: list[weakref.ref[Counting]] = []

        class Watched(cls):  # type: ignore[misc,valid-type]
            def __init__(self) -> None:
                super().__init__()
                made.append(weakref.ref(self))

        session = open_session(Watched, wire)
        await answer_to('{"type":"reset"}', session, wire)
        await answer_to(json.dumps({"type": "step", "data": {"do": do}}), session, wire)
        session.end()
        await asyncio.wait_for(wire.ended.wait(), 20)
        del session
        await until(lambda: gc.collect() >= 0 and made[0]() is None)

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("in_a_task", [False, True])
def test_what_a_failed_step_held_is_free_without_the_garbage_collector(
    waits: int, in_a_task: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="envhive.environment")  # or its records would keep tracebacks

    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    class Failing(Waiting):
        async def step(self, action: Move, **kwargs: Any) -> Seen:  # type: ignore[override]
            large = Large()
            held.append(weakref.ref(large))
            await Waiting.step(self, action)
            raise RuntimeError("after a while")

    async def scenario() -> None:
        wire, step = Wire(), json.dumps({"type": "step", "data": {"by": waits}})
        session = open_session(Failing, wire)
        await answer_to('{"type":"reset"}', session, wire)
        if in_a_task:
            session.receive(step)
            await until(lambda: len(wire.frames) == 2)
        else:
            await answer_to(step, session, wire)
        assert wire.frames[1]["data"]["message"] == "after a while"
        assert [large() for large in held] == [None]
        session.end()

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


@pytest.mark.parametrize("extended", [False, True], ids=["layer 1", "layer 2"])
def test_a_step_that_cannot_be_stopped_is_answered_when_the_server_ends(hanging: Hanging, extended: bool) -> None:
    async def scenario() -> None:
        wire = Wire()
        session = open_session(hanging.env, wire, **({"extended": Extended(60)} if extended else {}))
        session.receive('{"type":"step","data":{"do":"hang"}' + (',"id":1}' if extended else "}"))
        await asyncio.to_thread(hanging.hanging.acquire)
        session.end(1001, "server shutting down", because="shutdown")
        assert [frame["data"]["code"] for frame in wire.frames] == ["DRAINING"]
        assert [frame.get("id") for frame in wire.frames] == [1 if extended else None]
        hanging.released.set()
        await wire.ended.wait()
        assert (len(wire.frames), wire.closed) == (1, (1001, "server shutting down"))

    asyncio.run(scenario())
