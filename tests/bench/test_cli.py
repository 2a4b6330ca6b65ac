"""What `envhive bench` says when it cannot do what was asked."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from envhive.cli.bench import bench
from envhive.errors import ConfigurationError
from tests.support.processes import ENVHIVE, free_port, plain_environ


def run_bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENVHIVE, "bench", *arguments], cwd=cwd, env=plain_environ(), capture_output=True, text=True, timeout=60
    )


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(bench, arguments)
    assert isinstance(result.exception, ConfigurationError), result.output
    assert len(str(result.exception).splitlines()) == 1
    return str(result.exception)


@pytest.mark.parametrize("command", ["storm", "steady", "compare", "knee", "plot"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(bench, [command, "--help"])
    assert result.exit_code == 0
    assert "--out" in result.output


@pytest.mark.parametrize("command", ["storm", "steady", "knee"])
def test_one_server_must_be_named(command: str) -> None:
    assert "either --url" in refusal(command)
    assert "either --url" in refusal(command, "--url", "http://localhost:1", "--serve", "echo")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("storm", "--serve", "echo", "--sessions", "many"), "no number of sessions"),
        (("storm", "--serve", "echo", "--waits", "-1"), "no number of seconds"),
        (("storm", "--serve", "echo", "--action", "hello"), "not JSON"),
        (("storm", "--url", "gopher://x"), "is not the address of a server"),
        (("storm", "--serve", "echo", "--pid", "1"), "--pid tells the process"),
        (("steady", "--serve", "echo", "--rate", "5", "--think", "1"), "--think has no place"),
        (("storm", "--serve", "echo", "--action", "{}", "--waits", "1"), "--action is another step"),
        (("knee", "--serve", "echo", "--start", "64", "--limit", "32"), "does not climb"),
        (("knee", "--serve", "echo", "--ramp", "rate", "--think", "1"), "--think has no place"),
        (("compare", "--peer", "nobody"), "no peer that is known"),
        (("plot", "nowhere"), "not the folder of a run"),
        (("plot", "a", "b"), "give --out"),
        (("plot", "a", "--label", "x", "--label", "y"), "2 labels for 1 run"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(*arguments)


def test_a_server_that_is_not_there_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    done = run_bench("storm", "--url", f"http://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert done.returncode == 2
    assert "No server answers at" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_served_is_said_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_bench("storm", "--serve", "nowhere", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "'nowhere' is neither a shipped environment" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_answered_with_the_one_command_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 'pip install "envhive[bench]"' in refusal("storm", "--serve", "echo")


def test_the_command_line_starts_without_the_heavy_packages() -> None:
    script = "import sys, envhive.cli; print(*sys.modules)"
    python = str(Path(ENVHIVE).with_name("python"))
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"rich", "matplotlib", "numpy", "picows", "uvloop"}
