"""The sandbox, as the environment sees it: a process that runs code, in namespaces of its own where bubblewrap is."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

logger: Final = logging.getLogger("envhive.environment")

KEEPER: Final = Path(__file__).with_name("keeper.py")
INSIDE: Final = "/tmp/work"
"""The working folder, as code in the sandbox sees it."""
PATIENCE_S: Final = 10.0
"""Seconds beyond the time limit after which a keeper that says nothing is taken for dead."""
START_PATIENCE_S: Final = 30.0
NO_SANDBOX: Final = (
    "bubblewrap does not work here: the code can reach the network and all files of this user, "
    "the environment variables of its processes among them. Install bubblewrap, or serve it in a container."
)


class SandboxLost(Exception):  # noqa: N818
    """The sandbox ended, or does not answer. The next step starts another."""

    def __str__(self) -> str:
        return f"The sandbox was lost, with its files and variables: {super().__str__()}"


@functools.cache
def working_bubblewrap() -> str:
    """Where bubblewrap is, if it can make a sandbox here; else nothing, and a warning in the log, once."""
    found = shutil.which("bwrap")
    problem = "it is not installed"
    if found is not None:
        command = [found, *_walls(disk_bytes=1 << 20, packages=False), *_python(packages=False), "-c", "pass"]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=30, env={}, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        else:
            if tried.returncode == 0:
                return found
            problem = tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else f"exit {tried.returncode}"
    logger.warning("%s (%s)", NO_SANDBOX, problem)
    return ""


def _python(packages: bool) -> list[str]:
    """Python without the user's own packages and, unless they are asked for, without the installed ones."""
    if packages:
        return [sys.executable, "-s", "-P"]
    return [str(Path(sys.executable).resolve()), "-S", "-s", "-P"]


def _walls(disk_bytes: int, packages: bool) -> list[str]:
    """bubblewrap's arguments: Python and the system's libraries to read, a small folder in memory to write."""
    places = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"]
    python = Path(_python(packages)[0]).resolve()
    prefixes = {sys.base_prefix, str(Path(sys.base_prefix).resolve()), str(python.parent.parent)}
    prefixes |= {sys.prefix, *filter(os.path.isdir, sys.path)} if packages else set()
    places += sorted(each for each in prefixes if not Path(each).is_relative_to("/usr"))
    size = str(disk_bytes)
    return [
        *("--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--hostname", "sandbox"),
        *(word for place in places for word in _bound(place)),
        *("--ro-bind", str(KEEPER), "/keeper.py"),
        *("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--size", size, "--tmpfs", "/tmp", "--dir", INSIDE, "--remount-ro", "/"),
        *(word for name, value in _variables(INSIDE).items() for word in ("--setenv", name, value)),
        *("--chdir", INSIDE, "--"),
    ]


def _bound(place: str) -> tuple[str, ...]:
    if os.path.islink(place):
        return ("--symlink", os.readlink(place), place)
    return ("--ro-bind-try", place, place)


def _variables(folder: str) -> dict[str, str]:
    """All the environment variables that the code has. The hash seed makes sets print in the same order each time."""
    return {
        "HOME": folder,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TMPDIR": folder,
    }


class Sandbox:
    """A keeper and all that it runs. Started when it is first asked for something."""

    def __init__(self, *, walled: bool, disk_bytes: int, packages: bool) -> None:
        self.walled = walled
        self._disk_bytes = disk_bytes
        self._packages = packages
        self._outside: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper_pid = 0
        self._link: socket.socket | None = None
        self._unread = b""

    @property
    def folder(self) -> str:
        """The working folder, as the code sees it."""
        if self.walled:
            return INSIDE
        if self._outside is None or not os.path.isdir(self._outside):
            self._outside = tempfile.mkdtemp(prefix="envhive-coding-")
        return os.path.join(self._outside, "work")

    @property
    def outside(self) -> str | None:
        """What is to be removed when the server is gone; none if the folder goes with the sandbox."""
        return self._outside

    @property
    def is_running(self) -> bool:
        return self._link is not None

    def ask(self, document: dict[str, Any], patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Tell the keeper something and return its answer; raises `SandboxLost`."""
        if self._link is None:
            self._start()
        assert self._link is not None
        try:
            self._link.settimeout(patience_s)
            self._link.sendall(json.dumps(document).encode() + b"\n")
            return self._answer(time.monotonic() + patience_s)
        except OSError as error:
            self.stop()
            raise SandboxLost(str(error)) from error

    def _answer(self, deadline: float) -> dict[str, Any]:
        assert self._link is not None
        while b"\n" not in self._unread:
            self._link.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._link.recv(1 << 18)
            if not data:
                raise ConnectionResetError("the sandbox ended")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> None:
        self._link, theirs = socket.socketpair()
        self._unread = b""
        try:
            with theirs:
                self._spawn(theirs.fileno())
            self._answer(time.monotonic() + START_PATIENCE_S)
        except OSError as error:
            self.stop()
            raise SandboxLost(f"it did not start: {error}") from error

    def _spawn(self, link: int) -> None:
        command = [*_python(self._packages), "/keeper.py" if self.walled else str(KEEPER), str(link)]
        if not self.walled:
            self._process = self._popen(command, link)
            self._keeper_pid = self._process.pid
            return
        reading, writing = os.pipe()
        with open(reading, "rb") as told:
            try:
                walls = ["--info-fd", str(writing), *_walls(self._disk_bytes, self._packages)]
                self._process = self._popen([working_bubblewrap(), *walls, *command], link, writing)
            finally:
                os.close(writing)
            found = re.search(rb'"child-pid":\s*(\d+)', told.read())
        if found is None:
            raise ConnectionResetError("bubblewrap failed")
        self._keeper_pid = int(found[1])

    def _popen(self, command: list[str], *passed: int) -> subprocess.Popen[bytes]:
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            command,
            pass_fds=passed,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            env=_variables(self.folder),
            cwd="/",
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the keeper and all that it runs. May be called twice."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            if self.walled:
                _kill(self._keeper_pid)  # process 1 of its namespace: the kernel ends all others with it
            else:
                self._let_it_clear_up()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _let_it_clear_up(self) -> None:
        """A keeper without a pid namespace ends what it runs when its server has left; then it ends itself."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)  # the code may have stopped it
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Stop, and remove the working folder."""
        self.stop()
        if self._outside is not None:
            shutil.rmtree(self._outside, ignore_errors=True)
            self._outside = None


def _kill(pid: int) -> None:
    if pid > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def counts_processes() -> bool:
    """Whether a limit on processes counts those of the sandbox alone: since Linux 5.14, in a user namespace."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return sys.platform == "linux" and release is not None and (int(release[1]), int(release[2])) >= (5, 14)
