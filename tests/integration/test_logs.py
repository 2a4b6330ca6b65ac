"""The log of a whole server, as a collector of logs reads it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.errors import ExecutionError
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

SECRET = "correct-horse-battery"

GAME = """
import logging
import warnings

from envhive import Action, Environment, Observation, State


class Deed(Action):
    fail: bool = False


class Game(Environment[Deed, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None):
        logging.getLogger("game").info("reset by %s", "someone")
        return Observation()

    def step(self, action):
        warnings.warn("think again")
        if action.fail:
            raise RuntimeError("line one\\nline two")
        logging.getLogger("game").info("step")
        return Observation()

    @property
    def state(self):
        return State()


class AsyncGame(Game):
    async def reset(self, seed=None, episode_id=None):
        return Game.reset(self)

    async def step(self, action):
        return Game.step(self, action)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "game.py").write_text(GAME)
    return tmp_path


def objects(log: Path) -> list[dict[str, Any]]:
    """What has been logged; fails on a line that is no JSON."""
    return [json.loads(line) for line in log.read_text().splitlines()]


async def play(server: ServerProcess, episode: str, **options: Any) -> None:
    async with GenericEnvClient(server.url, **options) as client:
        await client.reset(episode_id=episode)
        await client.step({})
        with pytest.raises(ExecutionError):
            await client.step({"fail": True})


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("cls", ["Game", "AsyncGame"])
def test_every_line_is_json_and_tells_its_worker_session_and_episode(cls: str, isolation: str, folder: Path) -> None:
    log = folder / "log"
    options = ("--workers", "2", "--isolation", isolation, "--log-format", "json", "--log-level", "debug")

    async def all_of_them(server: ServerProcess) -> None:
        await asyncio.gather(*(play(server, f"episode-{number}", token=SECRET) for number in range(4)))

    with (
        log.open("w") as stderr,
        envhive_serve(f"game:{cls}", *options, cwd=folder, stderr=stderr, environ={"ENVHIVE_TOKENS": SECRET}) as server,
    ):
        asyncio.run(all_of_them(server))
        health = urllib.request.Request(f"{server.url}/health", headers={"Authorization": f"Bearer {SECRET}"})
        workers = json.load(urllib.request.urlopen(health, timeout=10))["workers"]
        os.kill(workers[0]["pid"], signal.SIGKILL)
        eventually(lambda: "was killed by signal 9" in log.read_text(), 20)
    found = objects(log)
    steps = [each for each in found if each["message"] == "step"]
    assert sorted(each["episode_id"] for each in steps) == [f"episode-{number}" for number in range(4)]
    assert len({each["session_id"] for each in steps}) == 4
    assert {each["worker"] for each in steps} == {0, 1}
    assert len({each["pid"] for each in steps}) == (4 if isolation == "process" else 2)
    failures = [each for each in found if "step() raised" in each["message"]]
    assert len(failures) == 4
    for failure in failures:
        assert "RuntimeError: line one\nline two" in failure["exception"]
        assert failure["session_id"] in {each["session_id"] for each in steps}
    assert any("think again" in each["message"] and each["logger"] == "py.warnings" for each in found)
    (mourned,) = (each for each in found if "was killed by signal 9" in each["message"])
    assert "worker" not in mourned  # it is the supervisor who says so
    assert SECRET not in log.read_text()


def test_a_crash_is_told_of_with_its_session(folder: Path) -> None:
    log = folder / "log"
    with (folder / "game.py").open("a") as game:
        game.write("\n\nclass Crashing(Game):\n    def step(self, action):\n        import os; os._exit(3)\n")

    async def crash(server: ServerProcess) -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset(episode_id="the-last")
            with pytest.raises(Exception, match="code 3"):
                await client.step({})

    environ = {"ENVHIVE_LOG_FORMAT": "json"}
    with (
        log.open("w") as stderr,
        envhive_serve("game:Crashing", "--isolation", "process", cwd=folder, stderr=stderr, environ=environ) as server,
    ):
        asyncio.run(crash(server))
    (told,) = (each for each in objects(log) if "ended with code 3" in each["message"])
    assert (told["episode_id"], told["level"]) == ("the-last", "warning")
    assert told["session_id"] in told["message"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_full_disk_costs_the_log_and_nothing_else(isolation: str, folder: Path) -> None:
    """As `faults/test_full_disk.py` has it for text."""
    options = ("--log-format", "json", "--isolation", isolation)
    with (
        open("/dev/full", "w") as full,
        envhive_serve("game:Game", *options, cwd=folder, stderr=full) as server,
    ):
        for number in range(3):
            asyncio.run(play(server, f"episode-{number}"))
        server.process.terminate()
        assert server.process.wait(15) == 0


def test_a_text_line_begins_with_the_sessions_id(folder: Path) -> None:
    log = folder / "log"
    with log.open("w") as stderr, envhive_serve("game:Game", cwd=folder, stderr=stderr) as server:
        asyncio.run(play(server, "one"))
    assert re.search(r"INFO    game: \[[0-9a-f]{8}\] step$", log.read_text(), re.MULTILINE)
