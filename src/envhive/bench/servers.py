"""The servers that the lab starts: on a port of their own, perhaps on a core of their own, and always stopped."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Final, Self

import msgspec

from envhive.errors import ConfigurationError
from envhive.providers.process import without_settings

_HOST: Final = "127.0.0.1"
_START_LIMIT_S: Final = 60.0
_STOP_LIMIT_S: Final = 15.0
_LOG_TAIL: Final = 600
_BAD_USAGE: Final = 2
_SAME_KEYSTROKE_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


class Recipe(msgspec.Struct, frozen=True):
    """A server that can be started: its name, its command for a port, and how it says that it is ready."""

    name: str
    command: Callable[[int], list[str]]
    environment: Mapping[str, str] = {}
    processes: int = 1
    """Processes that serve sessions."""
    health: str | None = "/health"
    """Path that answers 200 when the server is ready; None if listening is all there is."""


def envhive(target: str, *, max_sessions: int, workers: int = 1, name: str = "EnvHive") -> Recipe:
    """EnvHive itself, as a person starts it."""
    script = str(Path(sys.executable).with_name("envhive"))

    def command(port: int) -> list[str]:
        options = ["--host", _HOST, "--port", str(port), "--max-sessions", str(max_sessions), "--log-level", "warning"]
        return [script, "serve", target, *options, *(["--workers", str(workers)] if workers > 1 else [])]

    return Recipe(name, command, processes=workers)


def bare_picows(name: str = "bare picows") -> Recipe:
    """The floor: frames sent straight back."""
    return Recipe(name, lambda port: [sys.executable, "-m", "envhive.bench.echo", str(port)], health=None)


class RunningServer:
    """A server that was started here. A context manager: it is stopped when the block ends, whatever happens."""

    def __init__(self, recipe: Recipe, cores: Sequence[int] = ()) -> None:
        self.recipe = recipe
        self.ready_after_s = 0.0
        self._cores = list(cores)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Ctrl-C too: a half-started server is still stopped
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return None if self._process is None else self._process.poll()

    def obituary(self) -> str:
        """How a server that died has ended, and the last it said."""
        code = self.exit_code or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"
        last = _tail(self._errors).splitlines()
        return f"{how}; it last said: {last[-1]}" if last and code > 0 else how

    def start(self) -> None:
        """Start it, and wait until it is ready; raises `ConfigurationError` with the last it said if it is not."""
        self.port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by stop
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # and so is this
        cores = set(self._cores)
        began = time.perf_counter()
        self._process = subprocess.Popen(
            self.recipe.command(self.port),
            env={**clean_environment(), **self.recipe.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches only the lab, which stops the servers in its own order
            preexec_fn=lambda: _settle_in(cores),
        )
        self._wait_until_ready()
        self.ready_after_s = time.perf_counter() - began

    def stop(self) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                _stop(process)
        finally:
            for log in (self._log, self._errors):
                if log is not None:
                    log.close()
            self._log = self._errors = None

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ConfigurationError(
                    f"{self.recipe.name} ended with code {self._process.returncode} at its start: {self.last_words()}"
                )
            if _is_ready(self.port, self.recipe.health):
                return
            time.sleep(0.01)
        raise ConfigurationError(f"{self.recipe.name} was not ready within {_START_LIMIT_S:g} s: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it has said so far: its errors, or else its output, which begins with a greeting."""
        said = _tail(self._errors) or _tail(self._log)
        if self.exit_code == _BAD_USAGE:
            return said.splitlines()[-1] if said else ""  # the line that says what is wrong, without the usage above it
        return said


def _tail(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    return log.read().decode(errors="replace").strip()[-_LOG_TAIL:]


def _settle_in(cores: set[int]) -> None:
    """Between fork and exec: to the cores it may use. If the lab is killed, the server ends, too (on Linux)."""
    if cores:
        os.sched_setaffinity(0, cores)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """What is told to end, by whichever signal, or whose terminal is closed, stops the servers that it has started.

    What was started to ignore such a signal (`nohup`) ignores it. Ctrl-C that is hit twice is one: the first is still
    being heeded.
    """
    last_at = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last_at
        if (now := time.monotonic()) > last_at + _SAME_KEYSTROKE_S:
            last_at = now
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)


def clean_environment() -> dict[str, str]:
    """This process's environment without what servers, and their Pythons, would take their settings from."""
    return {name: value for name, value in without_settings().items() if not name.startswith("PYTHON")}


def _free_port() -> int:
    """A port below those that outgoing connections are given, so that none of thousands of them takes it first."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        # Without SO_REUSEADDR, so that a port whose last connections still linger is passed over.
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((_HOST, port))
            return port
    raise ConfigurationError("There is no free port to start a server on.")


def _is_ready(port: int, health: str | None) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=5)
    try:
        if health is None:
            connection.connect()
            return True
        connection.request("GET", health)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, insist: in the end nothing of its process group is left."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
