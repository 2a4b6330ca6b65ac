"""`envhive validate` with OpenEnv's own client, and of OpenEnv's own server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envhive.scaffold.project import KINDS, Kind, Project, write_project
from tests.integration.conftest import Peer, ServeTheirs
from tests.support.processes import ENVHIVE, plain_environ

pytestmark = pytest.mark.integration

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
