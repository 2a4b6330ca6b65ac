"""`envhive drain`, against real servers."""

from __future__ import annotations

import json
import subprocess
import urllib.request

import pytest
from websockets.sync.client import connect

from tests.support.processes import ENVHIVE, envhive_serve, plain_environ


def drain(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENVHIVE, "drain", *arguments], env=plain_environ(**environ), capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_drained_server_keeps_its_sessions_and_takes_no_more(workers: str) -> None:
    with envhive_serve("echo", "--workers", workers) as server:
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
            ws.send('{"type":"reset"}')
            ws.recv(timeout=10)
            done = drain(server.url, "--timeout", "0.1")
            assert (done.returncode, done.stderr) == (1, "")
            assert "1 left" in done.stdout
            for _ in range(4):  # whichever worker they reach
                with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as newcomer:
                    newcomer.send('{"type":"reset"}')
                    assert json.loads(newcomer.recv(timeout=10))["data"]["code"] == "DRAINING"
            ws.send('{"type":"step","data":{"message":"still here"}}')
            assert json.loads(ws.recv(timeout=10))["type"] == "observation"
        done = drain(server.url, "--timeout", "20")
        assert (done.returncode, done.stderr) == (0, "")
        assert "none left" in done.stdout
        with urllib.request.urlopen(f"{server.url}/sessions", timeout=5) as answer:
            assert json.load(answer) == []


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    done = drain("http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        "Error: http://127.0.0.1:1 could not be asked: [Errno 111] Connection refused"
    ]


def test_a_server_that_wants_a_token_is_given_the_one_of_the_environment() -> None:
    with envhive_serve("echo", "--token", "ada:a-long-secret") as server:
        refused = drain(server.url)
        assert refused.returncode == 1
        assert "set ENVHIVE_TOKEN" in refused.stderr
        drained = drain(server.url, ENVHIVE_TOKEN="a-long-secret")
        assert (drained.returncode, drained.stderr) == (0, "")
