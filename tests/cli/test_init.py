"""`envhive init`: what it makes runs, tests, lints and validates as it stands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envhive.errors import ConfigurationError
from envhive.scaffold.project import KINDS, Kind, Project, package_name, write_project
from tests.support.processes import ENVHIVE, envhive_serve, plain_environ

LONGEST = "a-name-that-is-as-long-as-names-may-be-x"


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=plain_environ(), capture_output=True, text=True, timeout=120)


def init(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run(ENVHIVE, "init", *arguments, cwd=cwd)


def must_pass(*command: str, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def own_tests_pass(folder: Path) -> None:
    """Those that come with a project. The plug-ins of this repository's tests, which load for seconds, are not its."""
    environ = plain_environ(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    command = [sys.executable, "-m", "pytest", "-W", "error"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("with_server", [False, True], ids=["without a server", "with a server"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_runs_tests_lints_and_validates(kind: Kind, with_server: bool, tmp_path: Path) -> None:
    options = ["--with-server"] if with_server else []
    made = init("my-game", "--kind", kind, *options, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    folder = tmp_path / "my-game"
    must_pass(sys.executable, "-m", "ruff", "check", cwd=folder)
    must_pass(sys.executable, "-m", "ruff", "format", "--check", cwd=folder)
    own_tests_pass(folder)
    report = must_pass(ENVHIVE, "validate", "my-game", "--strict", cwd=tmp_path)
    assert "my-game is as it should be: 0 error(s), 0 warning(s)" in report


@pytest.mark.parametrize("name", ["word-game", "Word Game"])
def test_the_next_commands_are_printed_and_work(name: str, tmp_path: Path) -> None:
    made = init(name, cwd=tmp_path)
    commands = [shlex.split(line)[:3] for line in made.stdout.splitlines() if line.startswith("  envhive ")]
    assert commands == [["envhive", command, name] for command in ("validate", "serve", "play")]
    with envhive_serve(name, cwd=tmp_path) as server:
        assert server.get("/metadata")["name"] == "WordGameEnvironment"
        assert server.health()["max_sessions"] == 1000


@pytest.mark.parametrize("gym_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MountainCarContinuous-v0"])
def test_spaces_become_models(gym_id: str, tmp_path: Path) -> None:
    init("pole", "--kind", "gymnasium", "--gym-id", gym_id, cwd=tmp_path)
    folder = tmp_path / "pole"
    must_pass(sys.executable, "-m", "ruff", "check", cwd=folder)
    must_pass(sys.executable, "-m", "ruff", "format", "--check", cwd=folder)
    own_tests_pass(folder)


@pytest.mark.parametrize("name", ["x", LONGEST, "my_env"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_format_does_not_depend_on_the_name(kind: Kind, name: str, tmp_path: Path) -> None:
    write_project(tmp_path, Project.named(name, kind, with_server=True).files())
    must_pass(sys.executable, "-m", "ruff", "check", cwd=tmp_path)
    must_pass(sys.executable, "-m", "ruff", "format", "--check", cwd=tmp_path)


def test_the_manifest_names_the_class_or_the_app() -> None:
    manifest = yaml.safe_load(Project.named("game", "basic").files()["openenv.yaml"])
    assert manifest.pop("validation")["capabilities"]["declared_tools"] == []  # what OpenEnv's own command asks for
    assert manifest == {
        "spec_version": 1,
        "name": "game",
        "version": "0.1.0",
        "type": "space",
        "runtime": "fastapi",
        "app": "game.environment:GameEnvironment",
        "port": 8000,
    }
    files = Project.named("game", "basic", with_server=True).files()
    assert yaml.safe_load(files["openenv.yaml"])["app"] == "server.app:app"
    assert 'server = "server.app:main"' in files["pyproject.toml"]
    assert "server/app.py" in files


@pytest.mark.parametrize(
    ("name", "package"), [("my-env", "my_env"), ("Word Game", "word_game"), ("2048-game", None), ("class", None)]
)
def test_a_name_becomes_a_python_name(name: str, package: str | None) -> None:
    if package is not None:
        assert package_name(name) == package
        return
    with pytest.raises(ConfigurationError, match=r"cannot be the name of a Python package\. Take letters"):
        package_name(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["json"], "'json' is the name of another Python package. Take another: json-env"),
        (["test"], "'test' is the name of another Python package. Take another: test-env"),
        (["full"], "is there and is not empty. Take another name, or write over what is there with --force"),
        (["a_file"], "is a file. Take another name"),
        (["a", "--gym-id", "CartPole-v1"], "--gym-id goes with --kind gymnasium"),
        (["a", "--kind", "gymnasium", "--gym-id", "Nope-v1"], "Give the id of an environment that it can make"),
        (["a", "--kind", "gymnasium", "--gym-id", "Blackjack-v1"], "Begin with --kind basic"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "a_file").write_text("mine")
    done = init(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a_file", "full", "mine.txt"]


def test_force_writes_beside_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert init("full", "--force", cwd=tmp_path).returncode == 0
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "full" / "openenv.yaml").exists()


def test_without_gymnasium_it_is_said_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("raise ImportError('not here')")
    script = (
        "import sys; sys.path.insert(0, '.'); from envhive.cli import main; main(['init', 'a', '--kind', 'gymnasium'])"
    )
    done = run(sys.executable, "-c", script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install gymnasium" in done.stderr
