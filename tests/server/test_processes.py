"""An environment in a process of its own does what it does anywhere, and its end is nobody else's."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import select
import signal
import socket
import threading
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from envhive.errors import (
    ConfigurationError,
    EnvHiveError,
    EnvironmentCrashedError,
    EnvironmentFactoryError,
    ExecutionError,
    SessionError,
)
from envhive.server import nursery, processes
from envhive.server.blueprint import Blueprint
from envhive.server.config import ServerConfig
from envhive.server.hive import Hive
from envhive.server.nursery import Nursery
from envhive.server.session import Session
from tests.server.test_session import Wire, until
from tests.support.descriptors import open_descriptors
from tests.support.envs import Move, Seen, async_counting, counting
from tests.support.servers import eventually, reset, serving, step
from tests.support.wild import AsyncWild, Deed, HangingClose, Outcome, Wild, descendants, is_alive

Scenario = Callable[[Hive], Awaitable[None]]


def hive_for(env: Any, **config: Any) -> Hive:
    config = {"isolation": "process", "max_sessions": 64, **config}
    return Hive(Blueprint.of(env, Deed, Outcome), ServerConfig(**config))


def run(
    hive: Hive, scenario: Scenario, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(60):
                await scenario(hive)
        finally:
            await hive.shutdown()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def do(session: Session, deed: str = "add", **action: Any) -> dict[str, Any]:
    reply = json.loads(await session.ask_step(json.dumps({"do": deed, **action}).encode(), {}))
    observation: dict[str, Any] = reply["observation"]
    return observation


async def do_for_ever(session: Session) -> None:
    while True:
        await do(session)


async def opened(hive: Hive, seed: int = 0) -> tuple[Session, int]:
    """A session that was reset, and the pid of its process."""
    session = hive.admit(None)
    pid: int = json.loads(await session.ask_reset({"seed": seed}))["observation"]["pid"]
    return session, pid


async def open_one(hive: Hive) -> None:
    await opened(hive)


async def end(session: Session) -> None:
    session.end()
    await session.wait_closed()


def lines(journal: Path) -> list[str]:
    return journal.read_text().split() if journal.exists() else []


# As anywhere.

FRAMES = [
    '{"type":"state"}',
    '{"type":"step","data":{"by":1}}',
    '{"type":"reset","data":{"seed":5,"episode_id":"e1","level":"two","colour":"red"}}',
    '{"type":"reset","data":{"seed":123456789012345678901234567890}}',
    '{"type":"reset","data":{"level":"broken"}}',
    '{"type":"reset","data":[1]}',
    '{"type":"reset","data":{"seed":7,"odd":NaN}}',
    '{"type":"step","data":{"by":3}}',
    '{"type":"step","data":{"by":13}}',
    '{"type":"step","data":{"by":"x","no":1}}',
    '{"type":"step","data":[]}',
    *(
        f'{{"type":"step","data":{{"do":"{deed}"}}}}'
        for deed in ("raise", "exit", "panic", "nan", "unserialisable", "metadata", "")
    ),
    '{"type":"state"}',
    '{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"method":"tools/list"}}',
    '{"type":"jump"}',
    "not json",
]


@pytest.mark.parametrize("kind", [counting, async_counting, lambda: counting(BLOCKING=False)])
def test_the_replies_are_those_of_an_environment_on_a_thread(kind: Callable[[], type[Any]]) -> None:
    async def replies(hive: Hive) -> list[dict[str, Any]]:
        wire = Wire()
        session = hive.admit(wire)
        for frame in FRAMES:
            session.receive(frame)
        await until(lambda: len(wire.frames) == len(FRAMES))
        session.receive('{"type":"close"}')
        await session.wait_closed()
        assert wire.closed == (1000, "")
        for frame in wire.frames:
            frame["data"].get("observation", {}).pop("thread", None)
        return wire.frames

    seen: dict[str, list[dict[str, Any]]] = {}
    for isolation in ("thread", "process"):
        hive = Hive(Blueprint.of(kind(), Move, Seen), ServerConfig(isolation=isolation, max_sessions=4))

        async def scenario(hive: Hive, isolation: str = isolation) -> None:
            seen[isolation] = await replies(hive)

        run(hive, scenario)
    assert seen["process"] == seen["thread"]


@pytest.mark.parametrize("env", [Wild, AsyncWild])
def test_large_messages_pass_both_ways(env: type[Wild]) -> None:
    async def scenario(hive: Hive) -> None:
        session, _ = await opened(hive)
        text = "x" * 3_000_000
        assert (await do(session, "echo", text=text, by=2))["found"] == text * 2
        assert (await do(session))["total"] == 1

    run(hive_for(env), scenario)


def test_a_plain_environment_is_on_its_main_thread_with_signals_as_in_any_program() -> None:
    async def scenario(hive: Hive) -> None:
        session, _ = await opened(hive)
        assert (await do(session, "signals"))["found"] == [True] * 4

    run(hive_for(Wild), scenario)


def test_coroutines_have_one_loop_and_one_context_for_the_whole_session() -> None:
    async def scenario(hive: Hive) -> None:
        session, _ = await opened(hive)
        assert (await do(session, "told"))["found"] == "in reset"
        before = (await do(session, "ticked"))["found"]
        async with asyncio.timeout(20):
            while (await do(session, "ticked"))["found"] < before + 3:  # its own task goes on between steps
                await asyncio.sleep(0.001)

    run(hive_for(AsyncWild), scenario)


def _not_typed() -> Any:
    return Wild()


FACTORIES: list[Any] = [lambda: Wild(), functools.partial(Wild, None), _not_typed, lambda: AsyncWild()]


@pytest.mark.parametrize("limit", [1, 8])  # with one session, the class behind a factory need not be known
@pytest.mark.parametrize("factory", FACTORIES)
def test_any_factory_will_do(factory: Any, limit: int) -> None:
    async def scenario(hive: Hive) -> None:
        session, _ = await opened(hive, seed=3)
        assert (await do(session))["total"] == 4
        assert session.info().environment_type in ("Wild", "AsyncWild")

    run(hive_for(factory, max_sessions=limit), scenario)


def test_sessions_share_no_random_numbers() -> None:
    async def scenario(hive: Hive) -> None:
        sessions = [(await opened(hive))[0] for _ in range(4)]
        assert len({(await do(session, "draw"))["found"] for session in sessions}) == 4

    run(hive_for(Wild), scenario)


def test_many_sessions_at_once_keep_to_themselves() -> None:
    async def scenario(hive: Hive) -> None:
        sessions = await asyncio.gather(*(opened(hive, seed=1000 * number) for number in range(24)))
        for _ in range(10):
            await asyncio.gather(*(do(session) for session, _ in sessions))
        totals = [(await do(session, by=0))["total"] for session, _ in sessions]
        assert totals == [1000 * number + 10 for number in range(24)]
        assert len({pid for _, pid in sessions}) == 24

    run(hive_for(Wild), scenario)


def test_what_http_asks_of_an_environment_is_asked_in_its_process() -> None:
    async def scenario(hive: Hive) -> None:
        assert json.loads(await hive.metadata())["name"] == "Wild"
        session, pid = await opened(hive)
        assert await session.ask(_pid_of) == await session.ask_async(_pid_of_async) == pid
        with pytest.raises(ExecutionError, match="another process"):
            await session.ask(lambda env: env)
        with pytest.raises(ExecutionError, match="cannot leave"):
            await session.ask(_something_that_stays)
        assert session.summary(0.0)["env_pid"] == pid

    run(hive_for(Wild), scenario)


def _pid_of(env: Any) -> int:
    return os.getpid()


async def _pid_of_async(env: Any) -> int:
    await asyncio.sleep(0)
    return os.getpid()


def _something_that_stays(env: Any) -> Any:
    return threading.Lock()


# Crashes.

CRASHES = [
    ("segfault", {"signal": "SIGSEGV"}),
    ("abort", {"signal": "SIGABRT"}),
    ("leave", {"exit_code": 3}),
]


@pytest.mark.parametrize("env", [Wild, AsyncWild])
@pytest.mark.parametrize(("deed", "details"), CRASHES)
def test_a_crash_is_a_typed_error_and_reset_starts_anew(env: type[Wild], deed: str, details: dict[str, Any]) -> None:
    async def scenario(hive: Hive) -> None:
        session, first = await opened(hive, seed=4)
        with pytest.raises(EnvironmentCrashedError) as crashed:
            await do(session, deed)
        assert crashed.value.details() == details
        for ask in (lambda: do(session), session.ask_state, lambda: session.ask(_pid_of)):
            with pytest.raises(EnvironmentCrashedError, match="reset") as again:
                await ask()
            assert again.value.details() == details
        second = json.loads(await session.ask_reset({"seed": 9}))["observation"]
        assert second["total"] == 9
        assert second["pid"] != first
        assert (await do(session))["total"] == 10
        assert not is_alive(first)

    run(hive_for(env), scenario)


@pytest.mark.parametrize("env", [Wild, AsyncWild])
def test_a_process_killed_while_idle_is_noticed_and_replaced(env: type[Wild]) -> None:
    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvironmentCrashedError) as crashed:
            await do(session)
        assert crashed.value.signal == "SIGKILL"
        session, pid = await opened(hive)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: session.summary(0.0).get("env_pid") is None)
        assert json.loads(await session.ask_reset({"seed": 2}))["observation"]["total"] == 2

    run(hive_for(env), scenario)


@pytest.mark.parametrize("env", [Wild, AsyncWild])
def test_a_forked_child_that_comes_back_answers_nothing(env: type[Wild]) -> None:
    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        forked = await do(session, "fork")
        assert (forked["found"], forked["pid"]) == (1, pid)
        assert [(await do(session))["total"] for _ in range(3)] == [1, 2, 3]

    run(hive_for(env), scenario)


def test_an_answer_given_before_the_end_is_heard() -> None:
    async def scenario(hive: Hive) -> None:
        session, _ = await opened(hive)
        await do(session, "leave_later")
        with pytest.raises(EnvironmentCrashedError) as crashed:
            await do_for_ever(session)
        assert crashed.value.exit_code == 5

    run(hive_for(Wild), scenario)


def test_a_step_that_never_ends_can_be_interrupted(tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        stuck = asyncio.ensure_future(do(session, "spin"))
        await until(lambda: lines(journal) == ["spin"])
        assert session._runner.interrupt()
        with pytest.raises(EnvironmentCrashedError) as crashed:
            await stuck
        assert crashed.value.signal == "SIGKILL"
        assert not is_alive(pid)
        with pytest.raises(EnvironmentCrashedError, match="The server ended the environment's process"):
            await do(session)
        assert json.loads(await session.ask_reset({"seed": 2}))["observation"]["total"] == 2

    run(hive_for(functools.partial(Wild, journal)), scenario)


def test_a_crash_leaves_other_sessions_as_they_were() -> None:
    async def scenario(hive: Hive) -> None:
        doomed, _ = await opened(hive)
        spared, pid = await opened(hive, seed=5)
        await do(spared)
        for _ in range(3):
            with pytest.raises(EnvironmentCrashedError):
                await do(doomed, "segfault")
            assert await do(spared, by=0) == {"metadata": {}, "total": 6, "pid": pid, "found": None}
            await doomed.ask_reset({})

    run(hive_for(Wild), scenario)


def test_memory_is_limited_for_each_session() -> None:
    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive, seed=5)
        with pytest.raises(ExecutionError, match="MemoryError"):
            await do(session, "grow", by=400_000_000)
        assert (await do(session, "grow", by=50_000_000))["found"] == 50_000_000
        assert await do(session, by=1) == {"metadata": {}, "total": 6, "pid": pid, "found": None}

    run(hive_for(Wild, memory_limit=200), scenario)


def test_what_an_environment_started_ends_with_it() -> None:
    async def scenario(hive: Hive) -> None:
        crashing, _ = await opened(hive)
        closing, _ = await opened(hive)
        programs = [(await do(session, "start_program"))["found"] for session in (crashing, closing)]
        assert all(map(is_alive, programs))
        with pytest.raises(EnvironmentCrashedError):
            await do(crashing, "leave")
        await until(lambda: not is_alive(programs[0]))
        assert is_alive(programs[1])
        await end(closing)
        await until(lambda: not is_alive(programs[1]))

    run(hive_for(Wild), scenario)


def _crash() -> Wild:
    os._exit(9)


def _fail() -> Wild:
    raise RuntimeError("no GPU")


@pytest.mark.parametrize(
    ("factory", "error", "said"),
    [(_crash, EnvironmentCrashedError, "code 9"), (_fail, EnvironmentFactoryError, "no GPU")],
)
def test_a_constructor_that_fails_or_crashes_refuses_the_session(
    factory: Callable[[], Wild], error: type[EnvHiveError], said: str
) -> None:
    async def scenario(hive: Hive) -> None:
        wire = Wire()
        with pytest.raises(error, match=said):
            await hive.admit(wire).ask_reset({})
        await until(lambda: not hive.sessions)
        assert isinstance(wire.refused, error)

    run(hive_for(factory), scenario)


def test_a_reset_whose_constructor_fails_may_be_tried_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken"

    def make() -> Wild:
        if broken.exists():
            raise RuntimeError("no disk")
        return Wild()

    async def scenario(hive: Hive) -> None:
        session, _ = await opened(hive)
        with pytest.raises(EnvironmentCrashedError):
            await do(session, "leave")
        broken.touch()
        for _ in range(2):
            with pytest.raises(EnvironmentFactoryError, match="no disk"):
                await session.ask_reset({})
        with pytest.raises(EnvironmentCrashedError):
            await do(session)
        broken.unlink()
        assert json.loads(await session.ask_reset({"seed": 1}))["observation"]["total"] == 1

    run(hive_for(make), scenario)


def test_a_process_that_cannot_be_started_is_no_fault_of_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, server = os.fork, os.getpid()

    def fork_here_only() -> int:
        if os.getpid() != server:
            raise BlockingIOError(errno.EAGAIN, "no more")
        return fork()

    async def scenario(hive: Hive) -> None:
        with pytest.raises(SessionError, match="temporarily unavailable"):
            await hive.admit(None).ask_reset({})
        await until(lambda: not hive.sessions)

    monkeypatch.setattr(os, "fork", fork_here_only)
    run(hive_for(Wild), scenario)


def test_an_app_made_on_another_thread_works_too() -> None:
    made: list[Hive] = []
    thread = threading.Thread(target=lambda: made.append(hive_for(Wild)))
    thread.start()
    thread.join()
    run(made[0], open_one)


def test_a_killed_nursery_costs_the_episodes_of_its_children_and_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(hive: Hive) -> None:
        nursery = hive._nursery
        assert nursery is not None
        for _ in range(3):
            session, pid = await opened(hive)
            killed = nursery.pid
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(SessionError, match="was lost"):  # which is no fault of the environment's
                await do_for_ever(session)
            await until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]
            assert json.loads(await session.ask_reset({"seed": 4}))["observation"]["total"] == 4
            assert (await do(session, by=2))["total"] == 6
            assert nursery.pid != killed
            assert descendants(nursery.pid) != []
            await end(session)
            assert descendants(nursery.pid) == []
        assert "is gone" in caplog.text

    run(hive_for(Wild), scenario)


def test_a_nursery_that_dies_with_reports_and_orders_unread_is_missed() -> None:
    async def scenario(hive: Hive) -> None:
        nursery = hive._nursery
        assert nursery is not None
        first, pid = await opened(hive)
        second = die_amidst(hive, nursery, pid)
        with pytest.raises(SessionError, match="was lost"):
            await second.wait_opened()
        with pytest.raises(EnvironmentCrashedError):
            await do(first)
        await first.ask_reset({})

    run(hive_for(Wild), scenario, uvloop.new_event_loop)


def die_amidst(hive: Hive, nursery: Nursery, pid: int) -> Session:
    """Kill the nursery when it has reported the death of `pid` and not read of the session that this returns: all in
    one turn of the event loop, so that it finds the report and the end at once."""
    os.kill(pid, signal.SIGKILL)
    assert select.select([nursery.link], [], [], 20)[0]
    os.kill(nursery.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, nursery.pid, os.WSTOPPED)
    session = hive.admit(None)
    os.kill(nursery.pid, signal.SIGKILL)
    os.waitid(os.P_PID, nursery.pid, os.WEXITED | os.WNOWAIT)
    return session


def test_where_no_nursery_can_be_started_the_server_says_so_and_the_next_session_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(hive: Hive) -> None:
        nursery = hive._nursery
        assert nursery is not None
        session, _ = await opened(hive)
        os.kill(nursery.pid, signal.SIGKILL)
        with pytest.raises(SessionError, match="was lost"):
            await do_for_ever(session)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", _no_fork)
            with pytest.raises(SessionError, match="no other could be started"):
                await session.ask_reset({})
        assert json.loads(await session.ask_reset({"seed": 4}))["observation"]["total"] == 4

    run(hive_for(Wild), scenario)


def _no_fork() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


# Ends.


@pytest.mark.parametrize("env", [Wild, AsyncWild])
def test_close_is_called_once_and_the_process_ends(env: type[Wild], tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        await end(session)
        assert not is_alive(pid)
        assert lines(journal) == ["close"]
        assert not hive.sessions

    run(hive_for(functools.partial(env, journal)), scenario)


def test_a_close_that_hangs_does_not_hold_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSE_PATIENCE_S", 0.1)
    journal = tmp_path / "journal"

    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        await end(session)
        assert lines(journal) == ["close", "spin"]
        assert not is_alive(pid)
        await opened(hive)

    run(hive_for(functools.partial(HangingClose, journal), max_sessions=1), scenario)


def test_a_client_that_leaves_a_step_that_never_ends_does_not_hold_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CANCEL_PATIENCE_S", 0.1)
    journal = tmp_path / "journal"

    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        stuck = asyncio.ensure_future(do(session, "spin"))
        await until(lambda: lines(journal) == ["spin"])
        await end(session)
        assert not is_alive(pid)
        with pytest.raises(EnvironmentCrashedError):
            await stuck

    run(hive_for(functools.partial(Wild, journal), max_sessions=1), scenario)


def test_a_client_that_leaves_a_constructor_that_never_ends_does_not_hold_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CANCEL_PATIENCE_S", 0.1)
    journal = tmp_path / "journal"

    def make() -> Wild:
        env = Wild(journal)
        env.spin(Deed())
        return env

    async def scenario(hive: Hive) -> None:
        session = hive.admit(None)
        await until(lambda: lines(journal) == ["spin"])
        await end(session)
        assert not hive.sessions

    run(hive_for(make, max_sessions=1), scenario)


def test_a_coroutine_is_cancelled_when_its_client_leaves(tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    async def scenario(hive: Hive) -> None:
        session, pid = await opened(hive)
        waiting = asyncio.ensure_future(do(session, "wait"))
        await until(lambda: lines(journal) == ["waiting"])
        await end(session)
        assert lines(journal) == ["waiting", "cancelled", "close"]
        with pytest.raises(ExecutionError):
            await waiting
        assert not is_alive(pid)

    run(hive_for(functools.partial(AsyncWild, journal)), scenario)


def test_fifty_sessions_leave_no_process_and_no_descriptor() -> None:
    async def scenario(hive: Hive) -> None:
        assert hive._nursery is not None
        nursery_pid = hive._nursery.pid
        session, _ = await opened(hive)
        in_child = (await do(session, "descriptors"))["found"]
        await end(session)
        before = [open_descriptors(pid) for pid in (os.getpid(), nursery_pid)]
        sessions = await asyncio.gather(*(opened(hive) for _ in range(50)))
        assert sorted(descendants(nursery_pid)) == sorted(pid for _, pid in sessions)
        assert (await do(sessions[-1][0], "descriptors"))["found"] == in_child
        for session, _ in sessions[::5]:
            with pytest.raises(EnvironmentCrashedError):
                await do(session, "leave")
        await asyncio.gather(*(end(session) for session, _ in sessions))
        assert descendants(nursery_pid) == []
        assert [open_descriptors(pid) for pid in (os.getpid(), nursery_pid)] == before

    run(hive_for(Wild), scenario)


def test_shutdown_ends_every_process(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    pids: list[int] = []

    async def scenario(hive: Hive) -> None:
        assert hive._nursery is not None
        pids.append(hive._nursery.pid)
        for _ in range(3):
            pids.append((await opened(hive))[1])

    run(hive_for(functools.partial(Wild, journal)), scenario)
    assert not any(map(is_alive, pids))
    assert lines(journal) == ["close"] * 3


def test_a_hive_that_is_forgotten_takes_its_nursery_with_it() -> None:
    first, second = hive_for(Wild), hive_for(Wild)
    assert first._nursery is not None
    assert second._nursery is not None
    pids = [first._nursery.pid, second._nursery.pid]
    del first
    assert not is_alive(pids[0])  # though the second one was forked from the same process
    assert is_alive(pids[1])
    del second
    assert not is_alive(pids[1])


# Configuration.


class Dangerous(Wild):
    ISOLATION = "process"


class Misspelt(Wild):
    ISOLATION = "proces"


@pytest.mark.parametrize(("isolation", "on_thread"), [(None, False), ("process", False), ("thread", True)])
def test_the_class_may_ask_for_a_process_and_an_option_wins(isolation: str | None, on_thread: bool) -> None:
    async def scenario(hive: Hive) -> None:
        _, pid = await opened(hive)
        assert (pid == os.getpid()) is on_thread

    run(hive_for(Dangerous, isolation=isolation), scenario)


def test_a_class_that_asks_for_nonsense_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match="ISOLATION must be thread or process, not 'proces'"):
        hive_for(Misspelt, isolation=None)


def test_a_memory_limit_needs_processes() -> None:
    with pytest.raises(ConfigurationError, match="--isolation process"):
        hive_for(Wild, isolation=None, memory_limit=100)


def test_where_processes_cannot_be_had_the_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ConfigurationError, match="not available"):
        hive_for(Wild)


def test_threads_that_run_already_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        hive = hive_for(Wild)
        assert "Threads are running" in caplog.text
        run(hive, open_one)
    finally:
        release.set()
        thread.join()


# Over the wire.


@pytest.mark.parametrize("lane", ["fast", "asgi"])
def test_the_client_is_told_what_happened(lane: Any) -> None:
    options = {"action_cls": Deed, "observation_cls": Outcome}
    with serving(Wild, lane, config={"isolation": "process"}, **options) as server, server.connect() as ws:
        pid = reset(ws, seed=1)["data"]["observation"]["pid"]
        assert step(ws, do="segfault") == {
            "type": "error",
            "data": {
                "message": "The environment's process was killed by SIGSEGV. reset() starts a new one.",
                "code": "ENV_CRASHED",
                "signal": "SIGSEGV",
            },
        }
        assert reset(ws, seed=2)["data"]["observation"]["total"] == 2
        eventually(lambda: not is_alive(pid))


def test_a_server_that_moves_to_another_loop_leaves_its_processes_behind_dead() -> None:
    hive = hive_for(Wild)
    _, pid = asyncio.run(opened(hive))  # never closed: its loop is gone

    async def scenario(hive: Hive) -> None:
        session, other = await opened(hive)
        await until(lambda: not is_alive(pid))
        assert (await do(session))["pid"] == other

    run(hive, scenario)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_server_forked_after_the_app_was_loaded_has_a_nursery_of_its_own() -> None:
    hive = hive_for(Wild)
    pid = os.fork()
    if pid == 0:
        try:
            run(hive, open_one)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0) == (pid, 0)
    run(hive, open_one)


@pytest.mark.parametrize("env", [Wild, AsyncWild])
def test_a_hive_may_be_made_while_a_loop_runs_and_clients_are_connected(env: type[Wild]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        hive = hive_for(env)
        try:
            session, _ = await opened(hive)
            assert (await do(session))["total"] == 1
            theirs.close()
            assert ours.recv(1) == b""  # no environment's process keeps the connection open
        finally:
            ours.close()
            await hive.shutdown()

    uvloop.run(asyncio.wait_for(main(), 60))


class Tasked(Wild):
    def list_splits(self) -> list[str]:
        return ["train", str(os.getpid() != _server_pid)]

    async def num_tasks(self, split: str) -> int:
        await asyncio.sleep(0)
        return len(split)


_server_pid = os.getpid()


def test_task_sets_are_asked_in_the_process() -> None:
    options = {"action_cls": Deed, "observation_cls": Outcome, "env_name": "tasked"}
    with serving(Tasked, "asgi", config={"isolation": "process"}, **options) as server:
        with urllib.request.urlopen(f"{server.url}/tasked/splits", timeout=10) as reply:
            assert [split["name"] for split in json.load(reply)] == ["train", "True"]
        request = urllib.request.Request(
            f"{server.url}/tasked/num_tasks", b'{"split":"train"}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert json.load(reply)["num_tasks"] == 5


def test_private_descriptors_stay_private() -> None:
    read, write = os.pipe()
    try:
        nursery.keep_private(write)
        hive = hive_for(Wild)
        os.close(write)
        assert os.read(read, 1) == b""  # nobody else has it
        run(hive, open_one)
    finally:
        nursery._private.discard(write)
        os.close(read)
