"""The client for plain code: threads, event loops, forks and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from envhive import EnvClient, GenericEnvClient, State, SyncEnvClient
from envhive.errors import (
    ConnectError,
    ConnectionLostError,
    ExecutionError,
    InvalidMessageError,
    RequestTimeoutError,
    SessionError,
)
from tests.client.gates import LAYER_1, Gate, ServerProcess
from tests.support.envs import Counting, Move, Seen, async_counting
from tests.support.processes import envhive_serve
from tests.support.servers import Running, eventually, serving


class CountingClient(EnvClient[Move, Seen, State]): ...


# The same client without await.


def test_reset_step_and_state_work_without_await(server: Running) -> None:
    with CountingClient(server.url).sync() as env:
        assert isinstance(env, SyncEnvClient)
        assert env.reset(seed=5, episode_id="e1").observation.total == 5
        result = env.step(Move(by=3))
        assert (result.observation.total, result.reward, result.done) == (8, 3.0, False)
        assert env.state() == State(episode_id="e1", step_count=1)
    server.wait_until_empty()


def test_a_generic_client_speaks_in_dicts(server: Running) -> None:
    with GenericEnvClient(server.url).sync() as env:
        env.reset()
        assert env.step({"by": 3}).observation["total"] == 3
        assert env.state()["step_count"] == 1


class Named(CountingClient):
    async def step(self, action: Move, **kwargs: Any) -> Any:  # type: ignore[override]
        return await super().step(action, **kwargs)


class Bare(CountingClient):
    async def step(self, action: Move) -> Any:  # type: ignore[override]
        return await super().step(action)


@pytest.mark.parametrize("client_cls", [Named, Bare])
def test_a_class_may_have_a_step_of_its_own_that_takes_no_time_limit(
    server: Running, client_cls: type[CountingClient]
) -> None:
    with client_cls(server.url).sync() as env:
        env.reset()
        assert env.step(Move(by=3)).reward == 3.0


def test_a_time_limit_reaches_a_step_that_takes_it_by_name(server: Running) -> None:
    with Named(server.url).sync() as env:
        env.reset()
        with pytest.raises(ValueError, match="timeout_s must be a number of seconds above 0, not -1"):
            env.step(Move(by=3), timeout_s=-1)


def test_a_context_manager_connects_at_once_and_ends_the_session_at_its_end(server: Running) -> None:
    with GenericEnvClient(server.url).sync():
        eventually(lambda: server.server.active_sessions == 1)
    assert server.server.active_sessions == 0


def test_the_first_use_connects_and_close_may_be_called_twice(server: Running) -> None:
    env = GenericEnvClient(server.url).sync()
    env.close()
    assert server.server.active_sessions == 0
    env.reset()
    assert server.server.active_sessions == 1
    env.close()
    env.close()
    env.disconnect()
    assert server.server.active_sessions == 0


@pytest.mark.parametrize("end", ["", "raise SystemExit(1)", "raise KeyboardInterrupt"], ids=["end", "exit", "Ctrl-C"])
def test_a_program_that_ends_without_closing_keeps_no_place(server: Running, end: str) -> None:
    program = f"from envhive import GenericEnvClient\nenv = GenericEnvClient({server.url!r}).sync()\nenv.reset()\n{end}"
    subprocess.run([sys.executable, "-c", program], timeout=30, stderr=subprocess.DEVNULL)
    assert server.server.active_sessions == 0


def test_a_program_ends_though_its_server_does_not_answer() -> None:
    with envhive_serve("echo") as stopped:
        program = (
            "import os, signal\nfrom envhive import GenericEnvClient\n"
            f"env = GenericEnvClient({stopped.url!r}).sync()\nenv.reset()\n"
            f"os.kill({stopped.process.pid}, signal.SIGSTOP)"
        )
        try:
            assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 0
        finally:
            stopped.process.send_signal(signal.SIGCONT)


def test_the_client_behind_it_is_at_hand() -> None:
    client = GenericEnvClient("http://127.0.0.1:8000")
    assert client.sync().async_client is client
    assert client.sync().base_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "action",
    [object(), {"by": object()}, {"by": b"\xff"}, {"by": "\ud800"}],
    ids=["an object", "an object inside", "bytes", "a lone surrogate"],
)
def test_an_action_that_has_no_json_form_is_the_callers_mistake_and_the_session_goes_on(
    server: Running, action: Any
) -> None:
    with GenericEnvClient(server.url).sync() as env:
        env.reset()
        with pytest.raises(InvalidMessageError, match="The step cannot be sent as JSON"):
            env.step(action)
        assert env.step({"by": 3}).observation["total"] == 3


def test_errors_are_those_of_the_asynchronous_client(server: Running) -> None:
    with GenericEnvClient(server.url).sync() as env:
        env.reset()
        with pytest.raises(InvalidMessageError) as caught:
            env.step({"by": "many"})
        assert caught.value.errors[0]["loc"] == ["by"]
        with pytest.raises(ExecutionError, match="the floor gave way"):
            env.step({"do": "raise"})
        assert env.step({"by": 100}).reward == 100.0


def test_a_refused_port_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match="Is the server running there"):
        GenericEnvClient("http://127.0.0.1:1").sync().reset()


def test_after_a_time_out_the_next_call_gets_its_own_reply(gate: Gate) -> None:
    with serving(gate.environment(), "fast") as server, GenericEnvClient(server.url, headers=LAYER_1).sync() as env:
        env.reset()
        with pytest.raises(RequestTimeoutError):
            env.step({"do": "wait", "by": 100}, timeout_s=0.05)
        gate.open()
        assert env.step({"by": 200}).reward == 200.0


def test_a_killed_server_is_a_lost_connection_and_reset_finds_it_again() -> None:
    with ServerProcess() as process, GenericEnvClient(process.url).sync() as env:
        env.reset()
        process.kill()
        process.start()
        with pytest.raises(ConnectionLostError):
            env.step({"by": 1})
        assert env.reset(seed=4).observation["total"] == 4


# Threads.


def test_replies_never_cross_between_sixteen_threads_on_one_client(server: Running) -> None:
    start = threading.Barrier(16)

    def play(number: int) -> int:
        start.wait(20)
        for round_ in range(50):
            sent = 1000 * (number + 1) + round_
            assert client.step({"by": sent}).reward == sent
        return 50

    with GenericEnvClient(server.url).sync() as client, ThreadPoolExecutor(16) as threads:
        client.reset()
        assert sum(threads.map(play, range(16))) == 800
        assert client.state()["step_count"] == 800


def test_threads_that_time_out_do_not_shift_the_replies_of_others() -> None:
    def play(number: int) -> int:
        late = 0
        for round_ in range(20):
            sent = 1000 * (number + 1) + round_
            hasty = (number + round_) % 3 == 0
            try:
                result = client.step({"by": sent, "seconds": 0.002}, timeout_s=0.001 if hasty else 30)
            except RequestTimeoutError:
                assert hasty
                late += 1
            else:
                assert result.reward == sent
        return late

    with (
        serving(async_counting(), "fast") as server,
        GenericEnvClient(server.url, headers=LAYER_1).sync() as client,
        ThreadPoolExecutor(8) as threads,
    ):
        client.reset()
        assert sum(threads.map(play, range(8))) > 0


def test_many_threads_may_be_first_and_open_one_session(server: Running, env: type[Counting]) -> None:
    client = GenericEnvClient(server.url).sync()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: client.state(), range(64)))
    client.close()
    assert env.journal.count("make") == 1


MANY: Final = """
import sys, threading
from envhive import GenericEnvClient

clients = [GenericEnvClient(sys.argv[1]).sync() for _ in range(128)]
for number, client in enumerate(clients):
    client.reset(seed=number)
for number, client in enumerate(clients):
    assert client.step({"by": 1000}).observation["total"] == number + 1000
print(*sorted(thread.name for thread in threading.enumerate()))
for client in clients:
    client.close()
"""


def test_a_hundred_and_twenty_eight_clients_cost_one_thread(server: Running, env: type[Counting]) -> None:
    ended = subprocess.run([sys.executable, "-c", MANY, server.url], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "MainThread envhive-client\n")
    server.wait_until_empty()
    assert env.journal.count("make") == env.journal.count("close") == 128


def test_a_slow_step_of_one_client_holds_up_no_other(gate: Gate) -> None:
    with (
        serving(gate.environment(), "fast") as server,
        GenericEnvClient(server.url).sync() as slow,
        GenericEnvClient(server.url).sync() as quick,
        ThreadPoolExecutor(1) as thread,
    ):
        slow.reset()
        quick.reset()
        waiting = thread.submit(slow.step, {"do": "wait", "by": 100})
        gate.wait_until_reached()
        for number in range(200, 220):
            assert quick.step({"by": number}).reward == number
        assert not waiting.done()
        gate.open()
        assert waiting.result(20).reward == 100.0


def test_close_while_another_thread_is_stepping_is_prompt_and_frees_the_slot() -> None:
    env = async_counting()
    with serving(env, "fast", max_concurrent_envs=1) as server, ThreadPoolExecutor(1) as thread:
        client = GenericEnvClient(server.url).sync()
        client.reset()
        waiting = thread.submit(client.step, {"seconds": 60})
        session = next(iter(server.server.hive.sessions.values()))
        eventually(lambda: session.busy_with == "step")
        begun = time.monotonic()
        client.close()
        assert time.monotonic() - begun < 6.5
        with pytest.raises(ConnectionLostError, match="closed"):
            waiting.result(20)
        server.wait_until_empty()


# Event loops.


def test_it_works_inside_a_running_event_loop(server: Running) -> None:
    async def notebook() -> None:
        with GenericEnvClient(server.url).sync() as env:
            env.reset()
            assert env.step({"by": 100}).reward == 100.0
            assert env.state()["step_count"] == 1

    asyncio.run(notebook())


def test_inside_a_coroutine_of_its_own_it_says_so_and_does_not_hang(server: Running) -> None:
    class Player(GenericEnvClient):
        async def play(self) -> Any:
            return self.sync().state()

    with Player(server.url).sync() as env:
        with pytest.raises(SessionError, match="await there"):
            env.play()
        assert env.reset(seed=3).observation["total"] == 3


def test_it_outlives_the_event_loop_it_was_first_used_in(server: Running) -> None:
    env = GenericEnvClient(server.url).sync()

    async def first() -> None:
        env.reset(seed=1)

    async def second() -> None:
        assert env.step({"by": 100}).observation["total"] == 101

    asyncio.run(first())
    asyncio.run(second())
    assert env.step({"by": 100}).observation["total"] == 201
    env.close()


# Forks and signals, each in a process of its own.

FORK: Final = """
import os, sys
from envhive import GenericEnvClient

url = sys.argv[1]
parent = GenericEnvClient(url, message_timeout_s=20).sync()
parent.reset(seed=100)
pid = os.fork()
if pid == 0:
    status = 1
    try:
        if sys.argv[2] == "new":
            child = GenericEnvClient(url, message_timeout_s=20).sync()
        else:
            child = parent
        child.reset(seed=200)
        assert [child.step({"by": 1}).observation["total"] for _ in range(10)] == list(range(201, 211))
        child.close()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)
_, status = os.waitpid(pid, 0)
assert [parent.step({"by": 1}).observation["total"] for _ in range(10)] == list(range(101, 111))
parent.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("which", ["new", "inherited"])
def test_after_a_fork_both_processes_have_sessions_of_their_own(server: Running, which: str) -> None:
    script = [sys.executable, "-c", FORK, server.url, which]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    server.wait_until_empty()


FORK_AFTER_A_LOOK_UP: Final = """
import os, socket, sys
from envhive import GenericEnvClient

look_up = socket.getaddrinfo
socket.getaddrinfo = lambda host, *args, **options: look_up("127.0.0.1", *args, **options)
url = "http://envhive.test:" + sys.argv[1]
with GenericEnvClient(url).sync() as parent:
    parent.reset(seed=100)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with GenericEnvClient(url, connect_timeout_s=3).sync() as child:
                assert child.reset(seed=200).observation["total"] == 200
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert parent.step({"by": 1}).observation["total"] == 101
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_after_a_fork_a_server_is_still_found_by_its_name(server: Running) -> None:
    script = [sys.executable, "-c", FORK_AFTER_A_LOOK_UP, str(server.port)]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    server.wait_until_empty()


INTERRUPTED: Final = """
import sys
from envhive import GenericEnvClient

with GenericEnvClient(sys.argv[1]).sync() as env:
    env.reset()
    try:
        env.step({"do": "wait", "by": 100})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.readline()
        print(env.step({"by": 200}).reward, flush=True)
"""


def test_ctrl_c_ends_the_wait_and_the_next_call_gets_its_own_reply(gate: Gate) -> None:
    with (
        serving(gate.environment(), "fast") as server,
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        gate.wait_until_reached()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        gate.open()
        output, errors = process.communicate("go on\n", timeout=60)
        assert (output, errors, process.returncode) == ("200.0\n", "", 0)
