"""Environments that fork: their processes are not the server, and keep nothing of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from envhive import GenericEnvClient
from tests.support import raw
from tests.support.processes import envhive_serve
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = "tests.support.forking:Forking"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_children_end_as_they_would_anywhere(isolation: str, tmp_path: Path) -> None:
    expected: dict[str, Any] = {
        "terminate": -signal.SIGTERM,
        "give_up_on_a_pool": "gave up",
        "exit_in_a_child": 3,
        "raise_in_a_child": 1,
        "return_in_a_child": 1,
    }
    log = tmp_path / "log"
    with (
        envhive_serve(TARGET, "--isolation", isolation, cwd=ROOT, log=log) as server,
        GenericEnvClient(server.url).sync() as env,
    ):
        env.reset()
        assert {deed: env.step({"do": deed}).observation["found"] for deed in expected} == expected
        assert server.health()["status"] == "healthy"
    written = log.read_text()
    assert written.count("came back from its code, and was ended") == 2
    assert "not my parent's" in written
    assert "Draining: 1" not in written


def test_a_child_that_stays_holds_neither_the_port_nor_a_connection(tmp_path: Path) -> None:
    with envhive_serve(TARGET, cwd=ROOT, log=tmp_path / "log") as server:
        player = raw.Player(raw.upgraded(server.port))
        player.ask({"type": "reset", "data": {}})
        reply = player.ask({"type": "step", "data": {"do": "keep_one"}})
        child = reply["data"]["observation"]["found"]
        try:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(20)
            with pytest.raises(ConnectionResetError):
                player.hear_ping()
            os.kill(child, 0)  # it is there
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", server.port))
                again.listen()
        finally:
            os.kill(child, signal.SIGKILL)
            player.close()


def test_a_child_of_a_killed_worker_does_not_stand_in_the_way_of_its_successor(tmp_path: Path) -> None:
    options = ("--workers", "2", "--max-sessions", "6")
    with envhive_serve(TARGET, *options, cwd=ROOT, log=tmp_path / "log") as server, contextlib.ExitStack() as stack:
        players = [stack.enter_context(GenericEnvClient(server.url).sync()) for _ in range(4)]
        for player in players:
            player.reset()  # so that both workers have spoken to each other
        child = players[0].step({"do": "keep_one"}).observation["found"]
        try:
            worker = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(worker, signal.SIGKILL)
            eventually(lambda: server.health()["status"] == "healthy" and server.health()["active_sessions"] == 2, 20)
            for _ in range(4):
                stack.enter_context(GenericEnvClient(server.url).sync()).reset()
            assert server.health()["active_sessions"] == 6
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_program_that_stays_does_not_hold_the_port(workers: str, tmp_path: Path) -> None:
    with (
        envhive_serve(TARGET, "--workers", workers, cwd=ROOT, log=tmp_path / "log") as server,
        GenericEnvClient(server.url).sync() as env,
    ):
        env.reset()
        program = env.step({"do": "start_a_program"}).observation["found"]
    try:
        os.kill(program, 0)  # it is there
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", server.port))
            again.listen()
    finally:
        os.kill(program, signal.SIGKILL)


def test_what_is_left_to_be_done_at_the_end_does_not_keep_the_server() -> None:
    script = """
import atexit, threading
from envhive.server import leaving
leaving._GOODBYES_S = 0.2
atexit.register(threading.Event().wait)
leaving.leave(3)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "took longer than 0.2 s" in done.stderr
