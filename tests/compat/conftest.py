"""The folders are environments written for OpenEnv. They are served, and never imported by the tests themselves."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

import envhive
from tests.integration.conftest import CACHE, clean_environ, install, installed, run_or_fail

collect_ignore_glob = ["folders/*", "llm_script.py"]  # which need OpenEnv, or a hook, to be imported

PEER: Final = ("openenv", "0.10.0")
SOURCE: Final = Path(envhive.__file__).parents[1]
PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="session")
def peer_python() -> Path:
    """A Python with OpenEnv, and without EnvHive."""
    return installed(*PEER)


@pytest.fixture(scope="session", params=["without OpenEnv", "with OpenEnv"])
def our_python(request: pytest.FixtureRequest) -> Path:
    """A Python with EnvHive; once without OpenEnv, once with it."""
    python = Path(sys.executable) if request.param == "without OpenEnv" else both_installed()
    script = "import envhive, importlib.util as i; print(envhive.__file__, i.find_spec('openenv') is not None)"
    told = subprocess.run([python, "-c", script], env=our_environ(), capture_output=True, text=True, check=True)
    assert told.stdout.split() == [envhive.__file__, str(request.param == "with OpenEnv")]
    return python


def both_installed() -> Path:
    """The Python of a virtual environment with the peer, and with all that EnvHive needs."""
    peer = installed(*PEER)
    folder = CACHE / f"{PEER[0]}-{PEER[1]}-beside-envhive"
    python, complete = folder / "bin" / "python", folder / "complete"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits here, and then finds it made
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            run_or_fail(sys.executable, "-m", "venv", str(folder))
            (theirs,) = peer.parents[1].glob("lib/python*/site-packages")
            (ours,) = folder.glob("lib/python*/site-packages")
            (ours / "peer.pth").write_text(f"{theirs}\n")  # all of the peer is there, at the price of one line
            needed = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
            install(python, *needed)
            complete.touch()
    return python


def our_environ() -> dict[str, str]:
    """For servers of ours: the code that is tested, whatever is installed."""
    return clean_environ(PYTHONPATH=str(SOURCE))


def serve_command(python: Path, *arguments: str) -> list[str]:
    """`envhive serve` by this Python, in whose environment the command need not be installed."""
    return [str(python), "-c", "from envhive.cli import main; main()", "serve", *arguments]
