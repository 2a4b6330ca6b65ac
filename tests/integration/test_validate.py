"""`envhive validate` with OpenEnv's own client, and of OpenEnv's own server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envhive.scaffold.project import KINDS, Kind, Project, write_project
from tests.integration.conftest import Peer, ServeOurs, ServeTheirs, clean_environ, installed
from tests.support.processes import ENVHIVE, plain_environ

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def openenv() -> Path:
    """The peer's own command."""
    return installed("openenv", "0.10.0").with_name("openenv")


THEIR_CLIENT = "OpenEnv's own client can use it"


def live_stage(*arguments: str) -> dict[str, Any]:
    command = [ENVHIVE, "validate", *arguments, "--json"]
    done = subprocess.run(command, env=plain_environ(), capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    stage: dict[str, Any] = json.loads(done.stdout)["stages"]["live"]
    return stage


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_environment_is_used_by_openenvs_client(kind: Kind, peer: Peer, tmp_path: Path) -> None:
    write_project(tmp_path / "game", Project.named("game", kind).files())
    stage = live_stage(str(tmp_path / "game"), "--openenv-python", str(peer.python))
    assert (stage["findings"], stage["skipped"]) == ([], [])
    assert THEIR_CLIENT in stage["passed"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_environment_passes_openenvs_validation(kind: Kind, openenv: Path, tmp_path: Path) -> None:
    write_project(tmp_path / "game", Project.named("game", kind).files())
    command = [openenv, "validate", str(tmp_path / "game"), "--json"]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    statuses = {each["check_id"]: each["status"] for each in report["results"]}
    assert statuses.pop("static.manifest") == "pass"
    assert set(statuses.values()) <= {"skip"}  # the rest needs an image that is built from PyPI
    assert report["manifest"]["capabilities"]["declared_tools"] == (["weigh", "answer"] if kind == "mcp" else [])


def test_openenvs_validation_finds_fault_where_there_is_one(openenv: Path, tmp_path: Path) -> None:
    write_project(tmp_path / "game", Project.named("game", "basic").files())
    manifest = tmp_path / "game" / "openenv.yaml"
    manifest.write_text(manifest.read_text().replace("floor_margin: 0.1", "floor_margin: much"))
    command = [openenv, "validate", str(tmp_path / "game")]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=300)
    assert (done.returncode, "FAIL  static.manifest" in done.stdout) == (1, True)


def test_a_running_server_passes_openenvs_validation(openenv: Path, serve_ours: ServeOurs) -> None:
    with serve_ours(4) as url:
        command = [openenv, "validate", "--url", url, "--json"]
        done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["standard_profile"], report["standard_version"]) == ("openenv-http/1.x", "1.0.0")


def test_a_python_without_openenv_is_told(tmp_path: Path) -> None:
    stage = live_stage("echo", "--openenv-python", str(tmp_path / "nobody"))
    (finding,) = stage["findings"]
    assert (finding["check"], finding["level"]) == (THEIR_CLIENT, "error")
    assert "is not there" in finding["problem"]


def test_openenvs_server_can_be_validated(peer: Peer, serve_theirs: ServeTheirs) -> None:
    with serve_theirs(peer, 4) as url:
        stage = live_stage(url, "--timeout", "10")
    assert "sessions side by side do not disturb each other" in stage["passed"]
    assert "sessions that are closed give back their places: the server does not tell how many" in stage["skipped"][0]
