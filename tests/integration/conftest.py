"""Real peers, real servers, real sockets on the loopback interface.

Each peer is a release of OpenEnv in a virtual environment of its own, made on first use and kept in `.cache/peers`.
"""

from __future__ import annotations

import fcntl
import http.client
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.dockerd import Docker, private_docker
from tests.support.processes import free_port

PEERS: Final = (("openenv", "0.10.0"), ("openenv-core", "0.3.0"))
SCRIPTS: Final = Path(__file__).parent / "peers"
CACHE: Final = Path(os.environ.get("ENVHIVE_PEER_CACHE") or Path(__file__).parents[2] / ".cache" / "peers")

START_S: Final = 120.0
"""A peer takes 4 s to import on an idle machine, and machines are not always idle."""
STOP_S: Final = 10.0
INSTALL_S: Final = 1200.0

# The scripts need a peer to be imported, so pytest must not look into them for doctests.
collect_ignore_glob = ["peers/*"]

ServeOurs = Callable[[int], AbstractContextManager[str]]
ServeTheirs = Callable[["Peer", int], AbstractContextManager[str]]


# The peers.


@dataclass(frozen=True)
class Peer:
    """One release of OpenEnv, and the Python that has it."""

    name: str
    version: str
    python: Path


@pytest.fixture(scope="session", params=PEERS, ids=lambda peer: "-".join(peer))
def peer(request: pytest.FixtureRequest) -> Peer:
    name, version = request.param
    return Peer(name, version, installed(name, version))


def installed(name: str, version: str) -> Path:
    """The Python of a virtual environment with the peer in it."""
    folder = CACHE / f"{name}-{version}"
    python, complete = folder / "bin" / "python", folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits here, and then finds it made
        if not (complete.exists() and python.exists()):
            shutil.rmtree(folder, ignore_errors=True)
            run_or_fail(sys.executable, "-m", "venv", str(folder))
            install(python, f"{name}=={version}")
            complete.touch()
    return python


def install(python: Path, *packages: str) -> None:
    """Install packages by uv, which is quick; or by pip, where uv does not reach what pip is set up to reach."""
    uv = Path(sys.executable).with_name("uv")
    quick = [str(uv), "pip", "install", "--compile-bytecode", "--python", str(python), *packages]
    if not uv.exists() or subprocess.run(quick, env=clean_environ(), capture_output=True, timeout=INSTALL_S).returncode:
        run_or_fail(str(python), "-m", "pip", "install", "--disable-pip-version-check", *packages)


def run_or_fail(*command: str) -> None:
    done = subprocess.run(
        command, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_S
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}", pytrace=False)


def clean_environ(**more: str) -> dict[str, str]:
    """The process's environment without what servers, clients and Pythons would read from it."""
    dropped = {"HOST", "PORT", "WORKERS", "MAX_CONCURRENT_ENVS", "SESSION_TIMEOUT", "ENABLE_WEB_INTERFACE"}
    prefixes = ("ENVHIVE_", "OPENENV_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in dropped and not name.startswith(prefixes)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **more}


# Servers.


@pytest.fixture(scope="session")
def serve_ours(tmp_path_factory: pytest.TempPathFactory) -> ServeOurs:
    """Serve the counting environment with EnvHive, for so many sessions."""

    def serve(max_sessions: int) -> AbstractContextManager[str]:
        script = Path(sys.executable).with_name("envhive")
        command = [str(script), "serve", "our_env:CountingEnvironment", "--max-sessions", str(max_sessions)]
        return serving(command, clean_environ(), tmp_path_factory.mktemp("envhive") / "envhive-server.log")

    return serve


@pytest.fixture(scope="session")
def serve_theirs(tmp_path_factory: pytest.TempPathFactory) -> ServeTheirs:
    """Serve the counting environment with a peer, for so many sessions."""

    def serve(peer: Peer, max_sessions: int) -> AbstractContextManager[str]:
        command = [str(peer.python), "-m", "uvicorn", "peer_server:app", "--no-access-log"]
        environ = clean_environ(PEER_MAX_SESSIONS=str(max_sessions))
        return serving(command, environ, tmp_path_factory.mktemp(peer.name) / f"{peer.name}-server.log")

    return serve


@contextmanager
def serving(command: list[str], environ: dict[str, str], log: Path, cwd: Path = SCRIPTS) -> Iterator[str]:
    """Run a server and give its address."""
    port = free_port()
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with running(command, environ, log, cwd=cwd, stdin=subprocess.DEVNULL) as process:
        wait_until_healthy(process, port, log)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(
    command: list[str], environ: dict[str, str], log: Path, cwd: Path = SCRIPTS, **pipes: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a process; what it says goes to `log`, which a failing test shows."""
    with log.open("w") as output:
        pipes = {"stdout": output, "stderr": output, **pipes}
        process = subprocess.Popen(command, cwd=cwd, env=environ, text=True, **pipes)
        _logs.append(log)
        try:
            with process:  # closes its pipes
                try:
                    yield process
                finally:
                    stop(process)
        finally:
            _logs.remove(log)


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_healthy(process: subprocess.Popen[str], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if health_status(port) == 200:
            return
        time.sleep(0.05)
    how = "did not become healthy" if process.poll() is None else f"ended with {process.returncode}"
    pytest.fail(f"{log.stem} {how}:\n{log.read_text()}", pytrace=False)


def health_status(port: int) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


# The peers' clients.


@dataclass(frozen=True)
class Outcome:
    """What a call of a peer's client came to."""

    error: str | None
    returned: Any

    @property
    def result(self) -> Any:
        assert self.error is None, self.error
        return self.returned


class PeerClient:
    """A client of the peer's, by its name in the process that has it."""

    def __init__(self, driver: PeerDriver, name: str) -> None:
        self._driver = driver
        self.name = name

    def reset(self, **keywords: Any) -> Outcome:
        return self._call("reset", **keywords)

    def step(self, **action: Any) -> Outcome:
        return self._call("step", action)

    def state(self) -> Outcome:
        return self._call("state")

    def close(self) -> Outcome:
        return self._call("close")

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Outcome:
        return self._driver.call((self.name, method, args, kwargs))[0]


class PeerDriver:
    """The process in which the peer's clients live; see `peers/peer_client.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._names = (f"client-{number}" for number in itertools.count())
        self._clients: list[PeerClient] = []

    def open(self, url: str, kind: str = "generic") -> PeerClient:
        """A client that is connected."""
        return self._start("open", url, kind, 1)[0]

    def open_all(self, url: str, number: int) -> list[PeerClient]:
        """Clients that connected all at once."""
        return self._start("open", url, "generic", number)

    def make(self, url: str, kind: str = "generic") -> PeerClient:
        """A client that will connect when it is used."""
        return self._start("make", url, kind, 1)[0]

    def _start(self, how: str, url: str, kind: str, number: int) -> list[PeerClient]:
        clients = [PeerClient(self, next(self._names)) for _ in range(number)]
        self._clients += clients
        for outcome in self.call(*((client.name, how, (kind, url), {}) for client in clients)):
            assert outcome.error is None, outcome.error
        return clients

    def close_all(self) -> None:
        clients, self._clients = self._clients, []
        self.call(*((client.name, "close", (), {}) for client in clients))

    def call(self, *calls: tuple[str, str, tuple[Any, ...], dict[str, Any]]) -> list[Outcome]:
        """Make calls all at once: (client, method, args, kwargs) each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(calls) + "\n")
        self._process.stdin.flush()
        # One line answers one line, so nothing is ever left in the file object's buffer, where select cannot see it.
        answered, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline() if answered else ""
        assert line, f"the peer's clients gave no answer to {calls}"
        return [Outcome(outcome.get("error"), outcome.get("result")) for outcome in json.loads(line)]


@pytest.fixture(scope="session")
def peer_process(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerDriver]:
    """One process for all tests with a peer, as importing it is the slowest part of each."""
    log = tmp_path_factory.mktemp(peer.name) / f"{peer.name}-client.log"
    command = [str(peer.python), "peer_client.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(command, clean_environ(), log, **pipes) as process:
        yield PeerDriver(process)


@pytest.fixture
def peer_clients(peer_process: PeerDriver) -> Iterator[PeerDriver]:
    """Makes clients of the peer's, and closes them when the test ends."""
    yield peer_process
    peer_process.close_all()


# What a failing test shows.

_logs: Final[list[Path]] = []
"""Of the processes that run now."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"end of {log.name}", log.read_text()[-4000:]) for log in _logs]
    return report


# Docker.


@pytest.fixture(scope="module")  # no longer: there can be one at a time, and files run side by side
def docker() -> Iterator[Docker]:
    """A daemon of the tests' own, with the image `IMAGE` of this checkout and `STRANGER`, which is not EnvHive's."""
    with private_docker() as docker:
        yield docker
