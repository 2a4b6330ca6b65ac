"""The same app under other ASGI servers: hypercorn, granian, and uvicorn without the fast lane."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.sync.client import connect

from envhive import GenericEnvClient
from envhive.errors import InvalidMessageError, SessionCapacityError
from tests.support.processes import ServerProcess, end, free_port, plain_environ
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

APP = """
from envhive import create_app
from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation
app = create_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=2)
"""

COMMANDS = {
    "uvicorn": ["-m", "uvicorn", "small_app:app", "--port", "{port}"],
    "hypercorn": ["-m", "hypercorn", "small_app:app", "--bind", "127.0.0.1:{port}"],
    "granian": ["-m", "granian", "--interface", "asgi", "small_app:app", "--port", "{port}"],
}


@contextmanager
def served_by(name: str, folder: str) -> Iterator[ServerProcess]:
    port = free_port()
    command = [sys.executable, *(part.format(port=port) for part in COMMANDS[name])]
    process = subprocess.Popen(
        command, cwd=folder, env=plain_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    server = ServerProcess(process, port)
    try:
        server.wait_until_healthy()
        yield server
    finally:
        end(process)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_episode_errors_and_capacity_are_the_same_everywhere(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(name)
    (folder / "small_app.py").write_text(APP)
    with served_by(name, str(folder)) as server:
        with GenericEnvClient(server.url).sync() as one, GenericEnvClient(server.url).sync() as other:
            one.reset()
            assert one.step({"message": "hello"}).observation["echoed_message"] == "hello"
            with pytest.raises(InvalidMessageError):
                one.step({"message": 5})
            assert one.state()["step_count"] == 1
            other.reset()
            with pytest.raises(SessionCapacityError):
                GenericEnvClient(server.url).sync().reset()
        # These servers answer a client's goodbye themselves, before its environment is closed and its place is free.
        eventually(lambda: server.health()["active_sessions"] == 0)
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
            for number in range(500):
                ws.send(json.dumps({"type": "step", "data": {"message": "x" * (number + 1)}}))
            lengths = [json.loads(ws.recv(timeout=10))["data"]["observation"]["message_length"] for _ in range(500)]
        assert lengths == list(range(1, 501))
