"""`envhive build`, with a stand-in for docker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envhive.cli.build import default_tag
from envhive.scaffold.project import Project, write_project
from tests.support.processes import ENVHIVE, plain_environ


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_project(tmp_path / "game", Project.named("game", "basic").files())
    return tmp_path / "game"


def build(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = plain_environ(**({} if path is None else {"PATH": path}))
    return subprocess.run([ENVHIVE, "build", *arguments], env=environ, capture_output=True, text=True, timeout=60)


def docker(folder: Path, script: str) -> str:
    """A PATH whose docker is a shell script."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_a_dry_run_prints_the_command(folder: Path) -> None:
    done = build(str(folder), "--tag", "game:1", "--dry-run", "--", "--no-cache")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"docker build --tag game:1 --file {folder}/Dockerfile --no-cache {folder}\n"


def test_docker_is_run_with_the_folders_dockerfile(folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.rglob("*"))
    done = build(str(folder), path=docker(tmp_path, 'echo "ran: $@"'))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ran: build --tag game:latest --file {folder}/Dockerfile {folder}" in done.stdout
    assert "docker run --rm -p 8000:8000 game:latest" in done.stdout
    assert sorted(folder.rglob("*")) == before


def test_a_failed_build_is_a_failure(folder: Path, tmp_path: Path) -> None:
    done = build(str(folder), path=docker(tmp_path, 'test "$1" = info'))
    assert (done.returncode, "Built" in done.stdout) == (1, False)
    assert "docker build ended with code 1" in done.stderr


def test_without_a_daemon_it_is_said_what_to_start(folder: Path, tmp_path: Path) -> None:
    done = build(str(folder), path=docker(tmp_path, "echo 'no daemon there' >&2; exit 1"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no daemon there" in done.stderr
    assert "Start Docker Desktop" in done.stderr


def test_without_docker_it_is_said_what_to_install(folder: Path, tmp_path: Path) -> None:
    done = build(str(folder), path=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "docker is not installed" in done.stderr


def test_without_a_dockerfile_it_is_said_where_to_find_one(folder: Path) -> None:
    (folder / "Dockerfile").unlink()
    done = build(str(folder), "--dry-run")
    assert done.returncode == 2
    assert "`envhive init NAME` writes one" in done.stderr


def test_the_image_is_called_like_the_environment(folder: Path, tmp_path: Path) -> None:
    assert default_tag(folder) == "game:latest"
    (tmp_path / "Other_Game").mkdir()
    assert default_tag(tmp_path / "Other_Game") == "other-game:latest"
