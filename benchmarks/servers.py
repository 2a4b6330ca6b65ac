"""The servers that are compared: how each is started, pinned to a core, and stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

PEER: Final = "openenv"
PEER_VERSION: Final = "0.10.0"

HERE: Final = Path(__file__).resolve().parent
_PEER_FOLDER: Final = HERE.parent / ".cache" / "peers" / f"{PEER}-{PEER_VERSION}"
_PEER_PYTHON: Final = _PEER_FOLDER / "bin" / "python"
_HOST: Final = "127.0.0.1"
_MAX_SESSIONS: Final = "20000"
_INSTALL_LIMIT_S: Final = 1200.0
_START_LIMIT_S: Final = 60.0
_STOP_LIMIT_S: Final = 5.0
_LOG_TAIL: Final = 2000


class BenchmarkError(Exception):
    """A measurement that could not be made; the text says why."""


@dataclass(frozen=True)
class Server:
    """A server that can be started: its name, and its command for a port."""

    name: str
    command: Callable[[int], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunningServer:
    name: str
    port: int
    pid: int


def envhive(name: str, target: str) -> Server:
    script = str(Path(sys.executable).parent / "envhive")
    return Server(name, lambda port: [script, "serve", target, "--port", str(port), "--max-sessions", _MAX_SESSIONS])


def peer(name: str, form: str) -> Server:
    """OpenEnv as its documentation starts it, one worker."""
    return Server(
        name,
        lambda port: [str(_PEER_PYTHON), "-m", "uvicorn", "peer_app:app", "--host", _HOST, "--port", str(port)],
        {"PEER_FORM": form},
    )


def bare_picows(name: str) -> Server:
    return Server(name, lambda port: [sys.executable, "echo_server.py", str(port)])


@contextlib.contextmanager
def serving(server: Server, core: int) -> Iterator[RunningServer]:
    """Start a server on a free port, wait until it listens, and stop it in the end, whatever happens."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            server.command(port),
            cwd=HERE,
            env={**_clean_environment(), **server.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only this script, which stops the servers in its own order
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        try:
            _wait_until_listening(server.name, process, port, log)
            yield RunningServer(server.name, port, process.pid)
        finally:
            _stop(process)


def _clean_environment() -> dict[str, str]:
    """This process's environment without what the servers would take their settings from."""
    settings = {"HOST", "PORT", "WORKERS", "MAX_CONCURRENT_ENVS", "SESSION_TIMEOUT", "ENABLE_WEB_INTERFACE"}
    prefixes = ("ENVHIVE_", "OPENENV_", "PYTHON", "UVICORN_")
    return {name: value for name, value in os.environ.items() if name not in settings and not name.startswith(prefixes)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_listening(name: str, process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchmarkError(f"{name} ended with code {process.returncode} at its start:\n{_tail(log)}")
        with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
            return
        time.sleep(0.1)
    raise BenchmarkError(f"{name} did not listen within {_START_LIMIT_S:g} s:\n{_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-_LOG_TAIL:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own group, so that no child of it is left behind
        process.wait()


# The peer's virtual environment.


def install_peer() -> None:
    """Make the peer's virtual environment, unless an earlier run has.

    The integration tests keep the same peers in the same place: lock and marker are theirs too, so that neither
    takes the folder away from under the other.
    """
    _PEER_FOLDER.parent.mkdir(parents=True, exist_ok=True)
    complete = _PEER_FOLDER / "complete"  # written last: a folder without it is a broken attempt
    with _PEER_FOLDER.with_name(f"{_PEER_FOLDER.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists() and _PEER_PYTHON.exists():
            return
        print(f"Installing {PEER} {PEER_VERSION} into a virtual environment of its own (once) ...", flush=True)
        shutil.rmtree(_PEER_FOLDER, ignore_errors=True)
        _run_quietly([sys.executable, "-m", "venv", str(_PEER_FOLDER)])
        _run_quietly([str(_PEER_PYTHON), "-m", "pip", "install", f"{PEER}=={PEER_VERSION}"])
        complete.touch()


def peer_packages() -> dict[str, str]:
    """The versions that the peer runs on: they are whatever was current when it was installed."""
    names = [PEER, "fastapi", "pydantic", "starlette", "uvicorn", "uvloop", "websockets"]
    code = (
        "import importlib.metadata as m, json, sys;"
        "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in sys.argv[1:]}))"
    )
    output = _run_quietly([str(_PEER_PYTHON), "-c", code, *names])
    versions: dict[str, str] = json.loads(output)
    return versions


def _run_quietly(command: list[str]) -> str:
    """Run a command; its output is shown only if it fails."""
    try:
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{' '.join(command[:4])} took more than {_INSTALL_LIMIT_S:g} s") from None
    if result.returncode != 0:
        raise BenchmarkError(f"{' '.join(command[:4])} failed:\n{result.stdout}")
    return result.stdout
