"""Environments whose steps wait until a test lets them go on, and a server process that can be killed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

from tests.support.envs import Counting, Move, Seen, counting
from tests.support.servers import eventually

_ROOT: Final = Path(__file__).parents[2]
_PATIENCE: Final = 20.0

LAYER_1: Final = {"Sec-WebSocket-Protocol": "another"}
"""Headers of a client that does not offer layer 2: there are no ids, and time-outs are the client's own."""


class Gate:
    """Where a `do="wait"` step, or a `level="wait"` reset, stands until `open` is called."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def wait_until_reached(self) -> None:
        assert self.reached.wait(_PATIENCE), "no request came to the gate"

    def pass_through(self) -> None:
        self.reached.set()
        assert self._opened.wait(_PATIENCE), "nobody opened the gate"

    def environment(self, **attributes: Any) -> type[Counting]:
        """A fresh environment class with this gate in it."""

        def reset(env: Counting, level: str = "", **kwargs: Any) -> Seen:
            if level == "wait":
                self.pass_through()
            return Counting.reset(env, level=level, **kwargs)

        def step(env: Counting, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
            if action.do == "wait":
                self.pass_through()
            return Counting.step(env, action, timeout_s, **kwargs)

        return counting(reset=reset, step=step, **attributes)


class Marking(Counting):
    """Makes the file that a step names, then takes its time: for servers in another process."""

    def step(self, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        if "mark" in action.metadata:
            Path(action.metadata["mark"]).touch()
        return super().step(action, timeout_s, **kwargs)


class ServerProcess:
    """`envhive serve` in a process of its own, always on the same port. For tests that kill it."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = (sys.executable, "-c", "from envhive.cli import main; main()", "serve", "tests.client.gates:Marking")
        options = ("--host", "127.0.0.1", "--port", str(self.port), "--log-level", "error")
        self._process = subprocess.Popen((*command, *options), cwd=_ROOT, stdout=subprocess.DEVNULL)
        eventually(self._listens, within=30)

    def kill(self) -> None:
        """As the kernel does when memory runs out: no goodbye."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_PATIENCE)
            self._process = None

    def end(self) -> None:
        """As an engine does that restarts it: it says goodbye."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_PATIENCE)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the server process ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
            return False
        return True
