"""Several workers behind one port: one capacity, an even spread, and a death that costs only its own sessions."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from envhive import GenericEnvClient
from envhive.errors import ConnectionLostError, SessionCapacityError
from envhive.wire.messages import LAYER_2
from tests.support import raw
from tests.support.metrics import scrape
from tests.support.processes import ENVHIVE, ServerProcess, children_of, envhive_serve, free_port, refused
from tests.support.servers import eventually
from tests.support.wild import is_alive

pytestmark = pytest.mark.integration

SECOND_LAYER: list[Any] = [LAYER_2]


def get(server: ServerProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=10) as reply:
        return json.load(reply)


@asynccontextmanager
async def sessions(server: ServerProcess, count: int) -> AsyncIterator[list[tuple[ClientConnection, dict[str, Any]]]]:
    """So many connections at once, each with the reply to its reset."""
    async with AsyncExitStack() as stack:

        async def open_one() -> tuple[ClientConnection, dict[str, Any]]:
            ws = await stack.enter_async_context(connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None))
            await ws.send('{"type":"reset"}')
            return ws, json.loads(await ws.recv())

        yield list(await asyncio.gather(*(open_one() for _ in range(count))))


@pytest.mark.parametrize("target", ["benchmark", "benchmark-async"])
def test_the_limit_is_the_whole_servers_and_the_spread_is_even(target: str) -> None:
    async def scenario(server: ServerProcess) -> None:
        for _ in range(3):
            async with sessions(server, 80) as opened:
                kinds = Counter(reply["data"].get("code", "admitted") for _, reply in opened)
                assert kinds == {"admitted": 50, "CAPACITY_REACHED": 30}
                pids = Counter(r["data"]["observation"]["pid"] for _, r in opened if r["type"] == "observation")
                assert sorted(pids.values()) == [16, 17, 17]
                health = await asyncio.to_thread(get, server, "/health")
                assert (health["active_sessions"], health["max_sessions"]) == (50, 50)
            await asyncio.to_thread(eventually, lambda: get(server, "/health")["active_sessions"] == 0)

    with envhive_serve(target, "--workers", "3", "--max-sessions", "50") as server:
        asyncio.run(scenario(server))


def test_every_endpoint_answers_for_the_whole_server_from_whichever_worker() -> None:
    async def scenario(server: ServerProcess) -> None:
        async with sessions(server, 10) as opened:
            first, _ = opened[0]
            await first.send('{"type":"step","data":{"wait_seconds":1.5}}')
            for _ in range(12):  # each on a connection of its own, so that both workers are asked
                listed = await asyncio.to_thread(get, server, "/sessions")
                assert len(listed) == 10
                assert len({session["session_id"] for session in listed}) == 10
                assert set(listed[0]) == {"session_id", "owner", "age_s", "idle_s", "busy_s", "steps", "doing", "pid"}
                assert sorted(session["doing"] for session in listed) == ["idle"] * 9 + ["step"]
                health = await asyncio.to_thread(get, server, "/health")
                assert [worker["sessions"] for worker in health["workers"]] == [5, 5]
            await first.recv()

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "20") as server:
        asyncio.run(scenario(server))


def test_any_workers_metrics_are_the_whole_servers() -> None:
    async def scenario(server: ServerProcess) -> None:
        async with sessions(server, 6) as opened:
            for ws, _ in opened:
                for _ in range(5):
                    await ws.send('{"type":"step","data":{"wait_seconds":0}}')
                    await ws.recv()
            for _ in range(8):  # each on a connection of its own, so that both workers are asked
                found = await asyncio.to_thread(scrape, server)
                for worker in "01":
                    assert found.value("envhive_steps_total", outcome="ok", worker=worker) == 15
                    assert found.value("envhive_sessions", state="idle", worker=worker) == 3
                    assert found.value("envhive_worker_up", worker=worker) == 1
                    assert found.value("process_resident_memory_bytes", worker=worker) > 1e6
                assert found.value("envhive_steps_total") == 30
                assert found.value("envhive_sessions_limit") == 20
        await asyncio.to_thread(eventually, lambda: scrape(server).value("envhive_sessions_ended_total") == 6)
        assert scrape(server).value("envhive_steps_total", outcome="ok") == 30
        doomed = get(server, "/health")["workers"][1]["pid"]
        os.kill(doomed, signal.SIGKILL)
        await asyncio.to_thread(
            eventually, lambda: get(server, "/health")["workers"][1].get("pid", doomed) != doomed, 30
        )
        await asyncio.to_thread(eventually, lambda: scrape(server).value("envhive_worker_up") == 2, 30)
        found = scrape(server)  # the new worker counts from zero, as Prometheus expects
        assert found.value("envhive_steps_total", outcome="ok", worker="0") == 15
        assert found.value("envhive_steps_total", outcome="ok", worker="1") == 0

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "20") as server:
        asyncio.run(scenario(server))


def test_a_killed_worker_costs_only_its_own_sessions_and_its_places_come_back() -> None:
    async def scenario(server: ServerProcess) -> None:
        clients = [GenericEnvClient(server.url) for _ in range(8)]
        pids = [(await client.reset()).observation["pid"] for client in clients]
        doomed = pids[0]
        steps = [asyncio.ensure_future(client.step({"wait_seconds": 1.0})) for client in clients]
        await asyncio.to_thread(
            eventually, lambda: [s["doing"] for s in get(server, "/sessions")].count("step") == len(clients)
        )
        os.kill(doomed, signal.SIGKILL)
        results = await asyncio.gather(*steps, return_exceptions=True)
        for pid, result in zip(pids, results, strict=True):
            if pid == doomed:
                assert isinstance(result, ConnectionLostError)
                assert (result.outcome, result.retryable) == ("infra_error", True)
            else:
                assert result.observation["pid"] == pid
        await asyncio.to_thread(
            eventually, lambda: get(server, "/health")["active_sessions"] == sum(pid != doomed for pid in pids), 5
        )
        survivors = sum(pid != doomed for pid in pids)
        fresh = [GenericEnvClient(server.url) for _ in range(8 - survivors)]
        for client in fresh:
            await client.reset()
        with pytest.raises(SessionCapacityError):
            await GenericEnvClient(server.url).reset()
        await asyncio.to_thread(eventually, lambda: len(get(server, "/health")["workers"]) == 2)
        await asyncio.to_thread(eventually, lambda: get(server, "/health")["status"] == "healthy", 20)
        for client in (*clients, *fresh):
            await client.close()

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "8") as server:
        asyncio.run(scenario(server))


def test_sigterm_lets_steps_finish_in_every_worker_and_leaves_no_process() -> None:
    async def scenario(server: ServerProcess) -> list[int]:
        async with sessions(server, 4) as opened:
            for ws, _ in opened:
                await ws.send('{"type":"step","data":{"wait_seconds":0.5}}')
            await asyncio.to_thread(
                eventually, lambda: [s["doing"] for s in get(server, "/sessions")].count("step") == 4
            )
            server.process.send_signal(signal.SIGTERM)
            replies = [json.loads(await ws.recv()) for ws, _ in opened]
            assert [reply["data"]["observation"]["waited_seconds"] for reply in replies] == [0.5] * 4
            return sorted({reply["data"]["observation"]["pid"] for reply in replies})

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "8") as server:
        pids = asyncio.run(scenario(server))
        assert server.process.wait(timeout=15) == 0
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_workers_do_not_outlive_a_killed_supervisor() -> None:
    with envhive_serve("echo", "--workers", "2") as server:
        pids = [worker["pid"] for worker in get(server, "/health")["workers"]]
        server.process.kill()
        eventually(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], within=20)


GREEDY = """
import ctypes, os, pathlib
from envhive.envs.benchmark import BenchmarkEnvironment
class Greedy(BenchmarkEnvironment):
    def step(self, action, **keywords):
        pathlib.Path("busy").write_text(str(os.getpid()))
        ctypes.PyDLL(None).usleep(60_000_000)  # as C code that keeps Python's lock
"""


def test_a_worker_that_does_not_hear_of_the_supervisors_end_does_not_keep_the_port(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    with envhive_serve("greedy:Greedy", "--workers", "2", cwd=tmp_path) as server, raw.upgraded(server.port) as client:
        client.sendall(raw.frame(b'{"type":"step","data":{}}'))
        busy = tmp_path / "busy"
        eventually(lambda: busy.exists() and busy.read_text())
        held_up = int(busy.read_text())
        try:
            server.process.kill()
            eventually(lambda: refuses(server.port))
            assert is_alive(held_up)
        finally:
            os.kill(held_up, signal.SIGKILL)


def test_ctrl_c_while_workers_start_is_no_traceback() -> None:
    command = [ENVHIVE, "serve", "echo", "--workers", "2", "--port", str(free_port())]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            eventually(lambda pid=server.pid: len(children_of(pid)) == 2)  # started, and far from ready
            server.send_signal(signal.SIGINT)
            printed, _ = server.communicate(timeout=20)
        assert (server.returncode, printed) == (0, "")


def test_bad_configuration_is_said_once() -> None:
    assert "no module 'nowhere'" in refused("serve", "nowhere:Thing", "--workers", "3")


UNEVEN = """
import os, time
from envhive.errors import ConfigurationError
with open("here", "a") as file:
    print(os.getpid(), file=file, flush=True)
with open("here") as file:
    if int(file.readline()) != os.getpid():
        time.sleep(60)
while len(open("here").readlines()) < 3:
    time.sleep(0.01)
raise ConfigurationError("the simulator's licence has run out")
"""


def test_when_a_worker_cannot_start_those_that_still_load_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    said = refused("serve", "uneven:Env", "--workers", "3", "--port", str(free_port()), cwd=tmp_path)
    assert "the simulator's licence has run out" in said
    assert not any(is_alive(int(pid)) for pid in (tmp_path / "here").read_text().split())


def call(server: ServerProcess, path: str, body: Any = None, session: str | None = None) -> tuple[int, Any, str | None]:
    """An HTTP call on a connection of its own: status, body, and the session it names."""
    headers = {"Content-Type": "application/json"} | ({} if session is None else {"X-Session-Id": session})
    data = None if path == "/state" else json.dumps(body or {}).encode()
    request = urllib.request.Request(f"{server.url}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply), reply.headers["X-Session-Id"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers["X-Session-Id"]


def test_an_http_session_is_found_from_whichever_worker() -> None:
    with envhive_serve("benchmark", "--workers", "3", "--max-sessions", "9") as server:
        begun = [call(server, "/reset") for _ in range(9)]
        pids = Counter(body["observation"]["pid"] for _, body, _ in begun)
        assert sorted(pids.values()) == [3, 3, 3]
        for _ in range(4):
            for _, body, session in begun:
                status, stepped, named = call(server, "/step", {"action": {"wait_seconds": 0}}, session)
                assert (status, named) == (200, session)
                assert stepped["observation"]["pid"] == body["observation"]["pid"]
        assert [call(server, "/state", session=session)[1]["step_count"] for _, _, session in begun] == [4] * 9
        assert call(server, "/reset")[1]["code"] == "CAPACITY_REACHED"
        assert get(server, "/health")["active_sessions"] == 9
        assert [call(server, "/close", session=session)[0] for _, _, session in begun] == [200] * 9
        assert {call(server, "/close", session=session)[1]["code"] for _, _, session in begun} == {"SESSION_NOT_FOUND"}
        assert get(server, "/health")["active_sessions"] == 0


def test_a_burst_of_calls_without_a_session_finds_every_place_and_is_spread() -> None:
    with envhive_serve("benchmark", "--workers", "3", "--max-sessions", "24") as server, ThreadPoolExecutor(24) as pool:
        for _ in range(2):
            begun = list(pool.map(lambda _: call(server, "/reset"), range(24)))
            assert [status for status, _, _ in begun] == [200] * 24
            pids = Counter(body["observation"]["pid"] for _, body, _ in begun)
            assert len(pids) == 3
            assert max(pids.values()) <= 14, pids
            steps = list(pool.map(lambda _: call(server, "/step", {"action": {"wait_seconds": 0.1}}), range(24)))
            assert [status for status, _, _ in steps] == [200] * 24


def test_calls_without_a_session_never_fill_the_server_whichever_worker_has_the_place() -> None:
    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "1") as server:
        assert [call(server, "/reset")[0] for _ in range(24)] == [200] * 24
        assert [call(server, "/step", {"action": {}})[0] for _ in range(12)] == [200] * 12

        async def scenario() -> None:
            for _ in range(4):
                async with sessions(server, 1) as [(_, reply)]:
                    assert reply["type"] == "observation"
                assert (await asyncio.to_thread(call, server, "/reset"))[0] == 200

        asyncio.run(scenario())


def test_an_http_session_of_a_killed_worker_is_gone_and_its_place_is_free() -> None:
    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "4") as server:
        begun = [call(server, "/reset") for _ in range(4)]
        doomed = begun[0][1]["observation"]["pid"]
        for _, _, session in begun:
            assert call(server, "/step", {"action": {}}, session)[0] == 200
        os.kill(doomed, signal.SIGKILL)
        eventually(lambda: not is_alive(doomed))  # a worker that is only slow is not in /health either
        eventually(lambda: doomed not in {each["pid"] for each in get(server, "/health")["workers"] if "pid" in each})
        # Its socket lives until its last thread is gone; who asks meanwhile hears that it did not answer.
        eventually(lambda: call(server, "/step", {"action": {}}, begun[0][2])[0] == 404)
        outcomes = {
            (body["observation"]["pid"] == doomed, call(server, "/step", {"action": {}}, session)[0])
            for _, body, session in begun
        }
        assert outcomes == {(True, 404), (False, 200)}
        eventually(lambda: get(server, "/health")["active_sessions"] == 2)
        assert [call(server, "/reset")[0] for _ in range(2)] == [200] * 2


async def lose_one(server: ServerProcess) -> None:
    """A client of layer 2 that is in the midst of an episode when its connection is cut."""
    async with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, subprotocols=SECOND_LAYER) as ws:
        assert json.loads(await ws.recv())["type"] == "hello"
        await ws.send('{"type":"reset","data":{},"id":1}')
        assert json.loads(await ws.recv())["type"] == "observation"
        ws.transport.abort()


def test_newcomers_get_the_places_of_clients_that_are_away_whichever_worker_they_reach() -> None:
    async def scenario(server: ServerProcess) -> None:
        for _ in range(2):
            await lose_one(server)
        async with AsyncExitStack() as stack, asyncio.timeout(30):
            while True:
                [(_, reply)] = await stack.enter_async_context(sessions(server, 1))
                if reply["type"] == "observation":
                    break
                assert reply["data"]["code"] == "CAPACITY_REACHED"
                await asyncio.sleep(0.05)
            while (begun := await asyncio.to_thread(call, server, "/reset"))[0] != 200:
                assert begun[1]["code"] == "CAPACITY_REACHED"
                await asyncio.sleep(0.05)
            assert (await asyncio.to_thread(call, server, "/step", {"action": {}}, begun[2]))[0] == 200
            for _ in range(6):  # each on a connection of its own, so that all workers are asked
                assert (await asyncio.to_thread(call, server, "/reset"))[1]["code"] == "CAPACITY_REACHED"

    with envhive_serve("benchmark", "--workers", "3", "--max-sessions", "2") as server:
        asyncio.run(scenario(server))
        eventually(lambda: scrape(server).value("envhive_sessions_ended_total", reason="displaced") == 2)


def workers_of(server: ServerProcess) -> list[int]:
    """Their processes, also of a server that says 503."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.request("GET", "/health")
        return [each["pid"] for each in json.load(connection.getresponse())["workers"] if "pid" in each]


TOKEN = "a-long-secret"


def get_as_ada(server: ServerProcess, path: str) -> Any:
    request = urllib.request.Request(f"{server.url}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def upgrades(server: ServerProcess, count: int) -> list[socket.socket]:
    """So many connections that have asked for a session, and have not looked whether they got one."""
    comers = [raw.dial(server.port) for _ in range(count)]
    for comer in comers:
        comer.sendall(raw.upgrade_request(server.port, "/ws", f"Authorization: Bearer {TOKEN}"))
    return comers


def test_a_list_of_sessions_says_whose_are_not_in_it() -> None:
    def listed(server: ServerProcess) -> tuple[int, str | None]:
        with urllib.request.urlopen(f"{server.url}/sessions", timeout=10) as reply:
            return len(json.load(reply)), reply.headers["X-Silent-Workers"]

    async def scenario(server: ServerProcess) -> None:
        async with sessions(server, 4):
            assert await asyncio.to_thread(listed, server) == (4, None)
            # Only the other one answers from now on.
            pids = [each["pid"] for each in server.health()["workers"]]
            os.kill(pids[1], signal.SIGSTOP)
            try:
                await asyncio.to_thread(eventually, lambda: listed(server) == (2, "1"), 30)
            finally:
                os.kill(pids[1], signal.SIGCONT)
            await asyncio.to_thread(eventually, lambda: listed(server) == (4, None))

    with envhive_serve("benchmark-async", "--workers", "2", "--max-sessions", "8") as server:
        asyncio.run(scenario(server))


@pytest.mark.parametrize("dies", ["sender", "receiver"])
def test_a_worker_that_dies_while_connections_are_handed_over_leaves_no_place_taken(dies: str) -> None:
    options = ("--workers", "2", "--max-sessions", "2000", "--token", f"ada:{TOKEN}:700")
    with envhive_serve("benchmark-async", *options) as server:

        def is_empty() -> bool:
            return get_as_ada(server, "/sessions") == [] and get_as_ada(server, "/health")["active_sessions"] == 0

        sender, receiver = [each["pid"] for each in get_as_ada(server, "/health")["workers"]]
        os.kill(receiver, signal.SIGSTOP)  # held up, so that they queue
        try:
            comers = upgrades(server, 600)
            # Those that the sender keeps are answered; the others are on their way.
            answered = select.poll()
            for comer in comers:
                answered.register(comer, select.POLLIN)
            eventually(lambda: len(answered.poll(0)) >= 250, 20)
            doomed = sender if dies == "sender" else receiver
            os.kill(doomed, signal.SIGKILL)
            eventually(lambda: not is_alive(doomed))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(receiver, signal.SIGCONT)
        for comer in comers:
            raw.hang_up(comer, hard=True)
        eventually(is_empty, 20, lambda: (get_as_ada(server, "/health"), get_as_ada(server, "/sessions")))
        # And of her own places, too, none is missing.
        comers = upgrades(server, 700)
        eventually(lambda: get_as_ada(server, "/health")["active_sessions"] == 700, 20)
        for comer in comers:
            raw.hang_up(comer)


def test_a_worker_that_drains_sends_newcomers_to_the_others() -> None:
    async def scenario(server: ServerProcess) -> None:
        async with sessions(server, 2) as [(_, reply), _]:
            leaving = reply["data"]["observation"]["pid"]
            os.kill(leaving, signal.SIGTERM)
            await asyncio.to_thread(eventually, lambda: get(server, "/health")["status"] == "degraded")
            # Whoever reaches it before it has told the others is sent away, and may try again.
            await asyncio.to_thread(eventually, lambda: call(server, "/reset")[0] == 200)
            async with sessions(server, 8) as opened:
                assert {reply["data"]["observation"]["pid"] for _, reply in opened}.isdisjoint({leaving})

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "20") as server:
        asyncio.run(scenario(server))


def test_a_worker_that_is_started_anew_drains_if_the_server_does() -> None:
    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "4") as server:
        assert call(server, "/drain")[0] == 200
        doomed = workers_of(server)[0]
        os.kill(doomed, signal.SIGKILL)
        eventually(lambda: len(set(workers_of(server)) - {doomed}) == 2, 20)
        assert {call(server, "/reset")[1]["code"] for _ in range(12)} == {"DRAINING"}


def test_frames_before_the_answer_to_the_upgrade_are_not_lost_between_workers() -> None:
    with envhive_serve("benchmark-async", "--workers", "2", "--max-sessions", "100") as server:
        for _ in range(10):
            comers = [raw.dial(server.port) for _ in range(20)]
            for comer in comers:
                comer.sendall(raw.upgrade_request(server.port))
            for comer in comers:
                comer.sendall(raw.frame(b'{"type":"reset","data":{}}'))
            for comer in comers:
                seen = b""
                while b'"observation"' not in seen:
                    seen += comer.recv(65536)
                comer.close()


def test_newcomers_are_refused_when_no_worker_takes_them_any_more() -> None:
    with envhive_serve("benchmark", "--workers", "2", "--grace-period", "30") as server, raw.dial(server.port) as busy:
        body = b'{"action":{"wait_seconds":60}}'
        head = b"POST /step HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        busy.sendall(head % len(body) + body)
        eventually(lambda: "step" in [each["doing"] for each in server.sessions()])
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: refuses(server.port))
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)  # insists


def refuses(port: int) -> bool:
    try:
        raw.dial(port).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_long_path_for_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "4", environ={"TMPDIR": str(long)}) as server:
        begun = [call(server, "/reset") for _ in range(4)]
        assert len({body["observation"]["pid"] for _, body, _ in begun}) == 2
        assert {call(server, "/state", session=session)[0] for _, _, session in begun * 3} == {200}


def test_workers_find_one_another_again_when_temporary_files_are_cleared_out(tmp_path: Path) -> None:
    def all_are_found() -> bool:
        return {call(server, "/state", session=session)[0] for _, _, session in begun * 3} == {200}

    options = ("--workers", "2", "--max-sessions", "4")
    with envhive_serve("benchmark", *options, environ={"TMPDIR": str(tmp_path)}) as server:
        begun = [call(server, "/reset") for _ in range(4)]
        assert all_are_found()
        [folder] = tmp_path.iterdir()
        shutil.rmtree(folder)
        eventually(lambda: len(list(folder.iterdir()) if folder.exists() else []) == 4)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all_are_found()
        shutil.rmtree(folder)
        doomed = workers_of(server)[0]
        os.kill(doomed, signal.SIGKILL)
        eventually(lambda: len(set(workers_of(server)) - {doomed}) == 2, 20)
        eventually(lambda: server.health()["status"] == "healthy", 20)
    assert not list(tmp_path.iterdir())
