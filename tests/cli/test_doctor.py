"""`envhive doctor` and `envhive top`, against real servers with sessions that hang."""

from __future__ import annotations

import json
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.cli.doctor import duration
from envhive.cli.top import Look, Pace
from envhive.errors import EnvHiveError, SessionError
from tests.support.processes import ENVHIVE, ServerProcess, envhive_serve, plain_environ
from tests.support.servers import eventually

HANGING = """
    import asyncio, pathlib, time
    from envhive import Action, Environment, Observation

    class Wait(Action):
        seconds: float = 0.0

    class Plain(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        def reset(self, **kwargs) -> Observation:
            return Observation()
        def step(self, action: Wait) -> Observation:
            self.search_for_it(action.seconds)
            return Observation(reward=1.0)
        def search_for_it(self, seconds):
            pathlib.Path("searching").touch()
            time.sleep(seconds)
        @property
        def state(self):
            return None

    class Async(Plain):
        async def reset(self, **kwargs) -> Observation:
            return Observation()
        async def step(self, action: Wait) -> Observation:
            await self.search_for_it(action.seconds)
            return Observation(reward=1.0)
        async def search_for_it(self, seconds):
            pathlib.Path("searching").touch()
            await asyncio.sleep(seconds)
"""
KINDS = [(name, isolation) for name in ("Plain", "Async") for isolation in ("thread", "process")]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENVHIVE, *arguments], env=plain_environ(**environ), capture_output=True, text=True, timeout=60
    )


@contextmanager
def hanging(server: ServerProcess, folder: Path) -> Iterator[list[EnvHiveError]]:
    """A client in the middle of a step that does not end; what it gets is in the list, in the end."""
    heard: list[EnvHiveError] = []

    def step() -> None:
        with GenericEnvClient(server.url).sync() as client:
            client.reset()
            try:
                client.step({"seconds": 3600})
            except EnvHiveError as error:
                heard.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        eventually((folder / "searching").exists)
        yield heard
    finally:
        thread.join(timeout=20)
        assert not thread.is_alive()


def report(server: ServerProcess, *options: str) -> dict[str, Any]:
    done = run("doctor", server.url, "--json", *options)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("name", "isolation"), KINDS)
def test_a_step_that_hangs_is_shown_with_its_stack_and_can_be_ended(name: str, isolation: str, tmp_path: Path) -> None:
    (tmp_path / "hanging_env.py").write_text(textwrap.dedent(HANGING))
    options = ("--workers", "2", "--isolation", isolation, "--max-sessions", "2")
    with envhive_serve(f"hanging_env:{name}", *options, cwd=tmp_path) as server:
        well = run("doctor", server.url)
        assert (well.returncode, well.stderr) == (0, "")
        assert "healthy: 0 of 2 sessions" in well.stdout
        with hanging(server, tmp_path) as heard:
            (suspect,) = report(server, "--slow", "0")["suspects"]
            functions = [frame["function"].rpartition(".")[2] for frame in suspect["stack"]]
            assert functions[:2] == ["step", "search_for_it"]
            assert suspect["stack"][0]["code"].endswith("self.search_for_it(action.seconds)")
            shown = run("doctor", server.url, "--slow", "0")
            assert shown.returncode == 1
            assert "search_for_it" in shown.stdout
            assert f"--kill {suspect['session_id'][:8]}" in shown.stdout
            killed = run("doctor", server.url, "--kill", suspect["session_id"][:8])
            assert (killed.returncode, killed.stderr) == (0, "")
            assert ("its thread runs on" in killed.stdout) is ((name, isolation) == ("Plain", "thread"))
        (error,) = heard
        assert isinstance(error, SessionError)
        assert (error.outcome, "whoever runs the server" in str(error)) == ("infra_error", True)
        assert report(server)["health"]["active_sessions"] == 0


def test_a_session_that_is_not_there_is_said_in_one_line() -> None:
    with envhive_serve("echo") as server:
        done = run("doctor", server.url, "--kill", "nobody")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "no session of this server begins with 'nobody'" in done.stderr


def test_top_shows_sessions_and_pace() -> None:
    with (
        envhive_serve("echo", "--workers", "2", "--token", "ada:a-long-secret") as server,
        GenericEnvClient(server.url, token="a-long-secret").sync() as client,
    ):
        client.reset()
        refused = run("top", server.url, "--once")
        assert (refused.returncode, "set ENVHIVE_TOKEN" in refused.stderr) == (1, True)
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(run, "top", server.url, "--once", ENVHIVE_TOKEN="a-long-secret", COLUMNS="140")
            while not looking.done():
                client.step({"message": "hello"})
        shown = looking.result()
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "healthy" in shown.stdout
        assert "sessions 1/1000" in shown.stdout
        assert any(" ada " in line for line in shown.stdout.splitlines())
        assert "p99 ≤ -" not in shown.stdout


def test_pace_is_what_happened_between_two_looks() -> None:
    health = {"uptime_s": 100.0}
    first = Look(10.0, health, [], {"steps": 50.0}, {0.1: 40.0, 1.0: 50.0, float("inf"): 50.0})
    second = Look(12.0, health, [], {"steps": 90.0}, {0.1: 79.0, 1.0: 90.0, float("inf"): 90.0})
    pace = Pace(second, first)
    assert (pace.rate("steps"), pace.quantile(0.5), pace.quantile(0.99)) == (20.0, 0.1, 1.0)
    restarted = Look(14.0, health, [], {"steps": 3.0}, {})
    assert (Pace(restarted, second).rate("steps"), Pace(restarted, second).quantile(0.5)) == (0.0, None)
    assert duration(75) == "1m15s"
