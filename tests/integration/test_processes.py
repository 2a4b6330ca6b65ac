"""Environments in processes of their own, served as a user serves them: whatever ends, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.errors import ConnectionLostError, EnvironmentCrashedError
from tests.support.processes import ServerProcess, envhive_serve, refused
from tests.support.servers import eventually
from tests.support.wild import descendants, is_alive

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PROCESSES = ("--isolation", "process", "--max-sessions", "64")


def serve(*options: str, env: str = "Wild", **more: Any) -> Any:
    return envhive_serve(f"tests.support.wild:{env}", *PROCESSES, *options, cwd=ROOT, **more)


def get(server: ServerProcess, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=10) as reply:
        return json.load(reply)


async def opened(server: ServerProcess, count: int) -> tuple[list[GenericEnvClient], list[int]]:
    clients = [GenericEnvClient(server.url) for _ in range(count)]
    results = await asyncio.gather(*(client.reset(seed=number) for number, client in enumerate(clients)))
    return clients, [result.observation["pid"] for result in results]


async def close_all(clients: list[GenericEnvClient]) -> None:
    await asyncio.gather(*(client.close() for client in clients))


@pytest.mark.parametrize("env", ["Wild", "AsyncWild"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_crash_costs_its_own_session_alone(env: str, workers: str) -> None:
    async def scenario(server: ServerProcess) -> None:
        clients, pids = await opened(server, 8)
        assert len(set(pids)) == 8
        results = await asyncio.gather(
            *(client.step({"do": "segfault" if number % 2 else "add"}) for number, client in enumerate(clients)),
            return_exceptions=True,
        )
        for number, result in enumerate(results):
            if number % 2:
                assert isinstance(result, EnvironmentCrashedError)
                assert (result.signal, result.exit_code, result.outcome) == ("SIGSEGV", None, "env_error")
            else:
                assert not isinstance(result, BaseException)
                assert (result.observation["total"], result.observation["pid"]) == (number + 1, pids[number])
        again = await asyncio.gather(*(client.reset(seed=5) for client in clients))
        assert [result.observation["total"] for result in again] == [5] * 8
        listed = await asyncio.to_thread(get, server, "/sessions")
        assert {each["env_pid"] for each in listed} == {result.observation["pid"] for result in again}
        assert len({each["pid"] for each in listed}) == int(workers)
        listening = await clients[0].step({"do": "listening_sockets"})
        assert listening.observation["found"] == 0
        await close_all(clients)
        await asyncio.to_thread(eventually, lambda: get(server, "/health")["active_sessions"] == 0)
        assert get(server, "/health")["status"] == "healthy"
        assert not [pid for pid in pids if is_alive(pid)]

    with serve("--workers", workers, env=env) as server:
        asyncio.run(scenario(server))


def test_a_killed_server_leaves_no_process() -> None:
    async def scenario(server: ServerProcess) -> None:
        clients, pids = await opened(server, 4)
        everything = [server.process.pid, *descendants(server.process.pid)]
        assert set(pids) < set(everything)
        server.process.kill()
        await asyncio.to_thread(eventually, lambda: not [pid for pid in everything if is_alive(pid)], 20)
        await close_all(clients)

    with serve() as server:
        asyncio.run(scenario(server))


def test_a_killed_worker_leaves_no_process_and_costs_only_its_own_sessions() -> None:
    async def scenario(server: ServerProcess) -> None:
        clients, pids = await opened(server, 8)
        listed = await asyncio.to_thread(get, server, "/sessions")
        worker_of = {each["env_pid"]: each["pid"] for each in listed}
        doomed = worker_of[pids[0]]
        below = descendants(doomed)
        os.kill(doomed, signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: not [pid for pid in below if is_alive(pid)], 20)
        results = await asyncio.gather(*(client.step({}) for client in clients), return_exceptions=True)
        for pid, result in zip(pids, results, strict=True):
            if worker_of[pid] == doomed:
                assert isinstance(result, ConnectionLostError)
            else:
                assert not isinstance(result, BaseException)
                assert result.observation["pid"] == pid
        await close_all(clients)

    with serve("--workers", "2") as server:
        asyncio.run(scenario(server))


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_server_closes_every_environment_and_leaves_no_process(
    workers: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "noting.py").write_text(
        "from pathlib import Path\n"
        "from tests.support.wild import Wild\n"
        "class Noting(Wild):\n"
        "    def __init__(self):\n"
        "        super().__init__(Path('journal'))\n"
    )

    async def scenario(server: ServerProcess) -> None:
        clients, pids = await opened(server, 4)
        everything = descendants(server.process.pid)
        assert set(pids) < set(everything)
        server.process.send_signal(number)
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        assert not [pid for pid in everything if is_alive(pid)]
        await close_all(clients)

    options = ("--workers", workers, "--grace-period", "2", *PROCESSES)
    with envhive_serve("noting:Noting", *options, cwd=tmp_path, environ={"PYTHONPATH": str(ROOT)}) as server:
        asyncio.run(scenario(server))
    assert (tmp_path / "journal").read_text().split() == ["close"] * 4


def test_a_memory_limit_without_processes_is_refused_in_one_line() -> None:
    assert "--isolation process" in refused("serve", "echo", "--memory-limit", "100")
