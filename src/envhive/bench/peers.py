"""Peers to measure beside: installed from PyPI into virtual environments of their own, once, and kept."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.resources
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from envhive.bench.servers import Recipe, clean_environment
from envhive.errors import ConfigurationError

_INSTALL_LIMIT_S: Final = 1200.0
_IMPORT_LIMIT_S: Final = 120.0
_CACHE_VARIABLE: Final = "ENVHIVE_PEER_CACHE"
_TOLD_BY: Final = ("fastapi", "pydantic", "starlette", "uvicorn", "uvloop", "websockets")

Form = Literal["sync", "async"]


class Peer(msgspec.Struct, frozen=True):
    """A release of another server for environments."""

    name: str
    version: str
    app: str
    """File in `apps` with the benchmark environment, written for this peer."""
    client_import: str
    """What a trainer's program imports of it."""


PEERS: Final = {
    "openenv": Peer("openenv", "0.10.0", "openenv_app.py.txt", "from openenv.core import GenericEnvClient"),
}
OUR_CLIENT_IMPORT: Final = "from envhive import GenericEnvClient"


def find(name: str) -> tuple[Peer, Form]:
    """A peer by its name, perhaps with the form of the environment, as in openenv:async."""
    peer_name, _, form = name.partition(":")
    if peer_name not in PEERS or form not in ("", "sync", "async"):
        raise ConfigurationError(f"{name!r} is no peer that is known here ({', '.join(PEERS)}, with :sync or :async).")
    return PEERS[peer_name], "async" if form == "async" else "sync"


def cache_folder() -> Path:
    """Where the peers are kept: ENVHIVE_PEER_CACHE, or the user's cache."""
    given = os.environ.get(_CACHE_VARIABLE)
    if given:
        return Path(given).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "envhive" / "peers"


def peer_folder(peer: Peer) -> Path:
    return cache_folder() / f"{peer.name}-{peer.version}"


def install(peer: Peer, on_install: Callable[[str], None] = lambda text: None) -> Path:
    """The Python of the peer's virtual environment, which is made unless an earlier run has made it."""
    folder = peer_folder(peer)
    python, complete = folder / "bin" / "python", folder / "complete"  # the latter is written last
    with _locked(folder):
        if not (complete.exists() and python.exists()):
            on_install(f"Installing {peer.name} {peer.version} into a virtual environment of its own (once) ...")
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)], _INSTALL_LIMIT_S)
            package = f"{peer.name}=={peer.version}"
            _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", package], _INSTALL_LIMIT_S)
            complete.touch()
    return python


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two runs at a time must not install into one folder: the second waits, and finds it made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock").open("w")
    except OSError as error:
        raise ConfigurationError(f"Cannot keep peers in {folder.parent}: {error.strerror}.") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def app_folder(peer: Peer) -> Iterator[Path]:
    """A folder with the peer's app in it, as a module. The app is no module here: it imports what only the peer has."""
    import tempfile

    text = importlib.resources.files("envhive.bench").joinpath("apps", peer.app).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="envhive-bench-") as name:
        folder = Path(name)
        (folder / "peer_app.py").write_text(text, encoding="utf-8")
        yield folder


def peer_server(peer: Peer, python: Path, form: Form, app: Path, name: str, workers: int = 1) -> Recipe:
    """The peer as its documentation starts it."""
    command = [str(python), "-m", "uvicorn", "peer_app:app", "--app-dir", str(app), "--host", "127.0.0.1"]
    more = ["--log-level", "warning", *(["--workers", str(workers)] if workers > 1 else [])]
    return Recipe(name, lambda port: [*command, "--port", str(port), *more], {"PEER_FORM": form}, workers)


def import_seconds(python: Path, statement: str) -> float:
    """How long an import takes in a fresh interpreter, the interpreter's own start not counted.

    `-P`: what lies in the current folder is nobody's package.
    """
    code = f"import time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
    return float(_run([str(python), "-P", "-c", code], _IMPORT_LIMIT_S).split()[-1])


def packages(peer: Peer, python: Path) -> dict[str, str]:
    """The versions that the peer runs on: whatever was current when it was installed."""
    code = (
        "import importlib.metadata as m, json, sys;"
        "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in sys.argv[1:]}))"
    )
    found: dict[str, str] = json.loads(_run([str(python), "-P", "-c", code, peer.name, *_TOLD_BY], _IMPORT_LIMIT_S))
    return found


def _run(command: list[str], limit_s: float) -> str:
    """Run a command; what it said is shown only if it fails."""
    try:
        done = subprocess.run(
            command,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{' '.join(command[:4])} took more than {limit_s:g} s.") from None
    except OSError as error:
        raise ConfigurationError(f"{command[0]} cannot be run: {error.strerror}.") from None
    if done.returncode:
        raise ConfigurationError(f"{' '.join(command[:6])} failed: {done.stdout.strip()[-2000:]}")
    return done.stdout
