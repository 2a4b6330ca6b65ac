"""`envhive serve`, as a person types it."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.support import raw
from tests.support.processes import ENVHIVE, envhive_serve, plain_environ
from tests.support.servers import eventually

GAME = """
from envhive import Action, Environment, Observation, State


class Guess(Action):
    number: int


class Hint(Observation):
    text: str = ""


class Game(Environment[Guess, Hint, State]):
    def reset(self, seed=None, episode_id=None):
        self._state = State()
        return Hint(text="?")

    def step(self, action):
        return Hint(text="higher", reward=0.0)

    @property
    def state(self):
        return self._state

    def close(self):
        open("closed.txt", "a").write("closed\\n")
"""


def serve(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENVHIVE, "serve", *arguments],
        cwd=cwd,
        env=plain_environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_names_every_option_and_shows_examples() -> None:
    done = serve("--help")
    assert done.returncode == 0
    for word in (
        "--host",
        "--port",
        "--max-sessions",
        "--session-timeout",
        "--mode",
        "--token",
        "--log-level",
        "--log-format",
        "Examples",
    ):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (("nowhere",), {}, "'nowhere' is neither"),
        (("echo",), {"PORT": "eight"}, "PORT must be a port from 1 to 65535, or 0 for any, not 'eight'"),
        (("echo",), {"PORT": "99999"}, "PORT must be a port"),
        (("echo",), {"MAX_CONCURRENT_ENVS": "0"}, "MAX_CONCURRENT_ENVS must be a positive integer, not '0'"),
        (("echo",), {"WORKERS": "-2"}, "WORKERS must be a positive integer, not '-2'"),
        (("echo",), {"ENVHIVE_MODE": "party"}, "ENVHIVE_MODE"),
        (("no_such_module:Thing",), {}, "no module 'no_such_module'"),
        (("envhive.types:Nothing",), {}, "has no 'Nothing'"),
        (("envhive.types:Observatoin",), {}, "Did you mean 'Observation'?"),
        (("ecko",), {}, "Did you mean 'echo'?"),
        (("envhive.types:State",), {}, "without a step method"),
        (("game:Game", "--max-sessions", "4"), {}, "SUPPORTS_CONCURRENT_SESSIONS"),
        (("typo:Game",), {}, "typo.py:2: '(' was never closed: def broken("),
        (("typo:Game", "--workers", "2"), {}, "typo.py:2: '(' was never closed: def broken("),
        (("uses_typo:Game",), {}, "typo.py:2: '(' was never closed: def broken("),
    ],
)
def test_bad_configuration_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    (tmp_path / "game.py").write_text(GAME)
    (tmp_path / "typo.py").write_text("x = 1\ndef broken(\n")
    (tmp_path / "uses_typo.py").write_text("import typo\n")
    done = serve(*arguments, cwd=tmp_path, **environ)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert said in done.stderr
    assert done.stdout == ""


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with envhive_serve("echo") as server:
        done = serve("echo", "--port", str(server.port))
        assert done.returncode == 2
        assert "Cannot listen on" in done.stderr
        assert "--port" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_start_says_where_to_look_how_many_fit_and_what_to_paste(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME)
    with envhive_serve("game:Game", cwd=tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        output, errors = server.process.communicate(timeout=15)
        assert server.process.returncode == 0
    assert f"http://localhost:{server.port}" in output
    assert "1 session(s) at once, as Game does not set SUPPORTS_CONCURRENT_SESSIONS = True" in output
    assert "GenericEnvClient" in output
    assert "Traceback" not in output + errors


def test_the_pasted_snippet_works(tmp_path: Path) -> None:
    with envhive_serve("echo") as server:
        assert server.process.stdout is not None
        lines = []
        while not lines or "env.step" not in lines[-1]:
            lines.append(server.process.stdout.readline())
        snippet = [line[2:] for line in lines if line.startswith("  ") and "API" not in line and "at once" not in line]
        done = subprocess.run(
            [str(Path(ENVHIVE).with_name("python")), "-c", "".join(snippet)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "Echo environment ready!" in done.stdout


def test_ctrl_c_lets_the_running_step_finish_closes_environments_and_exits_0() -> None:
    with envhive_serve("benchmark") as server, connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
        ws.send('{"type":"reset"}')
        ws.recv(timeout=10)
        ws.send('{"type":"step","data":{"wait_seconds":0.5}}')
        ws.ping().wait(10)
        server.process.send_signal(signal.SIGINT)
        reply = json.loads(ws.recv(timeout=10))
        assert reply["data"]["observation"]["waited_seconds"] == 0.5
        assert server.process.wait(timeout=15) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_lets_sessions_finish_and_refuses_new_ones(workers: str) -> None:
    with envhive_serve("benchmark", "--workers", workers) as server:
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
            ws.send('{"type":"reset"}')
            ws.recv(timeout=10)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: refused(server.port) == "DRAINING")
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{server.url}/health", timeout=5)
            with caught.value as answer:
                assert (answer.code, json.load(answer)["status"]) == (503, "draining")
            for number in range(1, 4):
                ws.send('{"type":"step","data":{}}')
                assert json.loads(ws.recv(timeout=10))["type"] == "observation", number
            assert server.process.poll() is None
        assert server.process.wait(timeout=15) == 0


def refused(port: int) -> str:
    with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as ws:
        ws.send('{"type":"reset"}')
        code: str = json.loads(ws.recv(timeout=10))["data"].get("code", "")
        return code


def test_sigterm_waits_for_sessions_no_longer_than_the_grace_period() -> None:
    with (
        envhive_serve("benchmark", "--grace-period", "1") as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws,
    ):
        ws.send('{"type":"reset"}')
        ws.recv(timeout=10)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=15) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_the_server_at_once_and_without_a_traceback(workers: str, number: signal.Signals) -> None:
    with envhive_serve("benchmark", "--workers", workers, "--grace-period", "600") as server:
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
            ws.send('{"type":"step","data":{"wait_seconds":600}}')
            ws.ping().wait(10)  # the server has read what came before
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: refused(server.port) == "DRAINING")
            server.process.send_signal(number)
            assert server.process.wait(timeout=15) == 1
        output, errors = server.process.communicate()
        assert "Traceback" not in output + errors


def test_a_step_that_never_ends_does_not_keep_the_server_from_ending() -> None:
    with envhive_serve("benchmark", "--grace-period", "0.5") as server:
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
            ws.send('{"type":"step","data":{"wait_seconds":600}}')
            ws.ping().wait(10)  # the server has read what came before
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=15) == 0
        _, errors = server.process.communicate()
        assert "cannot be stopped" in errors
        assert "timeout graceful shutdown exceeded" not in errors  # the grace period is waited for once


@pytest.mark.parametrize(
    "arguments", [["benchmark-async"], ["benchmark", "--isolation", "process"]], ids=lambda arguments: arguments[0]
)
def test_a_step_that_the_end_of_the_server_stops_is_no_fault_of_the_environment(arguments: list[str]) -> None:
    with (
        envhive_serve(*arguments, "--grace-period", "0.5") as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws,
    ):
        ws.send('{"type":"step","data":{"wait_seconds":600}}')
        ws.ping().wait(10)
        server.process.send_signal(signal.SIGTERM)
        assert json.loads(ws.recv(timeout=15))["data"]["code"] == "DRAINING"


def test_a_client_that_does_not_say_goodbye_keeps_no_server_from_ending_in_its_grace(tmp_path: Path) -> None:
    with (
        envhive_serve("echo", "--grace-period", "3", log=tmp_path / "log") as server,
        closing(raw.upgraded(server.port)),  # and nobody reads what the server says
    ):
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
    assert "exceeded" not in (tmp_path / "log").read_text()


def test_ctrl_c_tells_what_is_waited_for() -> None:
    with (
        envhive_serve("benchmark") as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws,
    ):
        ws.send('{"type":"step","data":{"wait_seconds":3}}')
        eventually(lambda: [each["doing"] for each in server.sessions()] == ["step"])
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=15) == 0
        assert "1 running request(s) may finish; a second signal does not wait" in server.process.communicate()[1]


STUBBORN = """
import asyncio, time
from envhive.envs.benchmark import AsyncBenchmarkEnvironment

class Stubborn(AsyncBenchmarkEnvironment):
    async def step(self, action, timeout_s=None, **kwargs):
        await asyncio.to_thread(time.sleep, 600)
"""


def test_a_step_in_another_thread_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with (
        envhive_serve("stubborn:Stubborn", "--grace-period", "1", cwd=tmp_path) as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws,
    ):
        ws.send('{"type":"step","data":{}}')
        ws.ping().wait(10)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=15) == 0


def test_a_second_signal_does_not_wait_for_the_grace_period() -> None:
    with (
        envhive_serve("benchmark", "--grace-period", "600") as server,
        connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws,
    ):
        ws.send('{"type":"step","data":{"wait_seconds":600}}')
        ws.ping().wait(10)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(timeout=1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=20) == 1


def test_a_class_in_the_current_folder_is_served_with_its_own_types(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME)
    with envhive_serve("game:Game", cwd=tmp_path) as server:
        with urllib.request.urlopen(f"{server.url}/schema", timeout=5) as reply:
            assert "number" in json.load(reply)["action"]["properties"]
        with connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None) as ws:
            ws.send('{"type":"step","data":{"number":3}}')
            assert json.loads(ws.recv(timeout=10))["data"]["observation"]["text"] == "higher"
    assert (tmp_path / "closed.txt").read_text() == "closed\n"


def test_options_win_over_what_the_app_says_and_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from envhive import create_app\n"
        "from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation\n"
        "app = create_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=3)\n"
    )
    with envhive_serve("own:app", cwd=tmp_path, environ={"MAX_CONCURRENT_ENVS": "7"}) as server:
        assert server.health()["max_sessions"] == 3
    with envhive_serve("own:app", "--max-sessions", "5", cwd=tmp_path) as server:
        assert server.health()["max_sessions"] == 5
    with envhive_serve("echo", environ={"MAX_CONCURRENT_ENVS": "7"}) as server:
        assert server.health()["max_sessions"] == 7
