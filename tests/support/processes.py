"""Servers as processes of their own: started as a user starts them, and always ended."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.networks import inside

ENVHIVE = str(Path(sys.executable).with_name("envhive"))
_PORTS: Final = range(20_000, 23_000)


class ServerProcess:
    """A running `envhive serve`."""

    def __init__(self, process: subprocess.Popen[str], port: int, namespace: str | None = None) -> None:
        self.process = process
        self.port = port
        self._namespace = namespace

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def health(self) -> dict[str, Any]:
        """What /health says."""
        report: dict[str, Any] = self.get("/health")
        return report

    def sessions(self) -> list[dict[str, Any]]:
        """What /sessions says."""
        listed: list[dict[str, Any]] = self.get("/sessions")
        return listed

    def get(self, path: str) -> Any:
        """What a path answers, asked from where the server is."""

        def ask() -> Any:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return json.load(answer)

        return ask() if self._namespace is None else inside(self._namespace, ask)

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            assert self.process.poll() is None, f"the server ended: {self.process.communicate()}"
            assert time.monotonic() < deadline, "the server did not come up"
            try:
                self.health()
                return
            except OSError:  # refused, cut, or a worker that is still starting and has not answered yet
                time.sleep(0.02)


def children_of(pid: int) -> list[str]:
    """The ids of the processes that a process has started and that have not ended."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def free_port() -> int:
    """A port below those that outgoing connections are given, so that none of them takes it before the server does.

    Each process of a parallel run has a range of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(_PORTS.start, _PORTS.stop) + worker % 4 * len(_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def plain_environ(**more: str) -> dict[str, str]:
    """The environment without what a server would read from it."""
    dropped = ("HOST", "PORT", "WORKERS", "MAX_CONCURRENT_ENVS", "SESSION_TIMEOUT", "OPENENV_MODE")
    kept = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("ENVHIVE_")}
    return {**kept, **more}


@contextmanager
def envhive_serve(
    *arguments: str,
    cwd: Path | None = None,
    host: str = "127.0.0.1",
    namespace: str | None = None,
    environ: dict[str, str] | None = None,
    stderr: Any = subprocess.PIPE,
    log: Path | None = None,
    most_files: int | None = None,
) -> Iterator[ServerProcess]:
    """`envhive serve ARGUMENTS` on a free port, up and healthy; stopped when the block ends.

    What it says goes to pipes that are read at its end, or to `log`: a pipe holds 64 kB, and then blocks the server.
    """
    port = free_port()
    there = [] if namespace is None else ["ip", "netns", "exec", namespace]
    limits = [] if most_files is None else ["prlimit", f"--nofile={most_files}:{most_files}"]
    with ExitStack() as stack:
        output = subprocess.PIPE if log is None else stack.enter_context(log.open("a"))
        process = subprocess.Popen(
            [*there, *limits, ENVHIVE, "serve", *arguments, "--host", host, "--port", str(port)],
            cwd=cwd,
            env=plain_environ(**(environ or {})),
            stdout=output,
            stderr=output if log is not None else stderr,
            text=True,
        )
    server = ServerProcess(process, port, namespace)
    try:
        server.wait_until_healthy()
        yield server
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Ask a process to end, and see to it that it does. On SIGTERM a server would wait for sessions that were left."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def refused(*arguments: str, cwd: Path | None = None, **environ: str) -> str:
    """What `envhive ARGUMENTS` says that are no good: one line, and nothing on standard output."""
    done = subprocess.run(
        [ENVHIVE, *arguments], cwd=cwd, env=plain_environ(**environ), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr
