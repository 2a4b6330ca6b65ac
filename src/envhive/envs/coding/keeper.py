"""The program inside the sandbox: runs code in a child, keeps the limits, ends all that the code started.

It is a script of its own and imports the standard library alone. The server talks to it over one socket, a JSON
document a line. In a pid namespace it is process 1: nothing in there can kill or stop it, and all dies with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

TICK_S = 0.05
"""How often the processes and the memory of a long step are looked at."""
CHUNK = 1 << 18
ROUNDS = 200
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


class Worker:
    """The child that runs the code, and the pipes to it."""

    def __init__(self, keeper: Keeper) -> None:
        orders, self.orders = os.pipe()
        self.results, results = os.pipe()
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            keeper.link.close()
            for descriptor in (self.orders, self.results, self.out, self.err):
                os.close(descriptor)
            _work(orders, results, out, err, keeper.settings)
        for descriptor in (orders, results, out, err):
            os.close(descriptor)
        for descriptor in (self.results, self.out, self.err):
            os.set_blocking(descriptor, False)

    def send(self, order: dict[str, Any]) -> None:
        os.kill(self.pid, signal.SIGCONT)
        data = json.dumps(order).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # it is gone: its end is seen on the pipe of results
            while data:
                data = data[os.write(self.orders, data) :]

    def bury_its_dead(self) -> bool:
        """Have it take note of children of its own that were killed: it alone can. False if it does not answer."""
        if not any(pid not in (os.getpid(), self.pid) for pid in _table(dead=True)):
            return True
        self.send({"do": "bury"})
        return bool(select.select([self.results], [], [], 1)[0]) and os.read(self.results, CHUNK) == b"\n"

    def close(self) -> None:
        for descriptor in (self.orders, self.results, self.out, self.err):
            os.close(descriptor)


class Stream:
    """One of the code's outputs: its beginning is kept, the rest is read and thrown away."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.limit = limit
        self.kept = bytearray()
        self.truncated = False
        self.ended = False

    def read(self) -> bool:
        """Read what there is; False if there is nothing just now."""
        try:
            data = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.ended = True
            return False
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room
        return True

    def drain(self) -> None:
        """What is left in the pipe: not more than it held, should somebody go on writing."""
        for _ in range(8):
            if not self.read():
                return

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


class Keeper:
    """Takes orders from the server and answers each."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.settings: dict[str, Any] = {}
        self.worker: Worker | None = None

    def run(self) -> None:
        with self.link, self.link.makefile("rb") as lines:
            self._say({"ready": True})
            for line in lines:
                order = json.loads(line)
                self._say(self._begin(order) if order["do"] == "begin" else self._run(order))
        self._drop_worker()
        if self.settings.get("remove"):
            shutil.rmtree(self.settings["remove"], ignore_errors=True)

    def _say(self, document: dict[str, Any]) -> None:
        self.link.sendall(json.dumps(document).encode() + b"\n")

    def _begin(self, settings: dict[str, Any]) -> dict[str, Any]:
        """A new episode: no process, no file and no variable of the last one is left."""
        self._drop_worker()
        self.settings = settings
        _empty(settings["folder"])
        return {}

    def _drop_worker(self) -> None:
        if self.worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.worker.pid, signal.SIGKILL)  # all there is to do where there is no /proc, as on macOS
            self.worker.close()
            self.worker = None
        _end_others(spared=None)

    def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        if self.worker is None:
            os.makedirs(self.settings["folder"], exist_ok=True)
            self.worker = Worker(self)
        worker = self.worker
        worker.send(order)
        streams = [Stream(descriptor, self.settings["output_bytes"]) for descriptor in (worker.out, worker.err)]
        outcome, limit = self._follow(worker, streams, order["time_s"])
        persistent = self.settings["namespace"] == "persistent"
        died_of = _status_of(worker.pid) if outcome is None and not limit else None
        kept = persistent and outcome is not None and not limit
        kept = _end_others(spared=worker.pid if kept else None) and kept and worker.bury_its_dead()
        for stream in streams:
            stream.drain()
        if kept:
            os.kill(worker.pid, signal.SIGSTOP)  # threads that the code left running rest until the next step
        else:
            self._drop_worker()
        result = outcome or {"exit_code": -signal.SIGKILL if died_of is None else died_of, "tests": [], "limit": ""}
        return {
            **result,
            "limit": limit or result["limit"],
            "stdout": streams[0].text(),
            "stderr": streams[1].text(),
            "truncated": any(stream.truncated for stream in streams),
            "namespace_lost": persistent and not kept,
        }

    def _follow(self, worker: Worker, streams: list[Stream], time_s: float) -> tuple[dict[str, Any] | None, str]:
        """Read what the worker writes until it is done, gone, or over a limit. Its result, and the limit it met."""
        deadline = time.monotonic() + time_s
        result = b""
        poll = select.poll()
        poll.register(worker.results, select.POLLIN)
        by_descriptor = {stream.descriptor: stream for stream in streams}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        look_at = time.monotonic() + TICK_S
        while True:
            now = time.monotonic()
            if now >= deadline:
                return None, "time"
            if now >= look_at:
                if excess := self._excess():
                    return None, excess
                if _has_ended(worker.pid) and not poll.poll(0):
                    return None, ""  # what it forked may hold its pipes open
                look_at = now + TICK_S
            for descriptor, _ in poll.poll(max(1, min(deadline, look_at) * 1000 - now * 1000)):
                if descriptor == worker.results:
                    data = os.read(descriptor, CHUNK)
                    result += data
                    if not data:
                        return None, ""
                    if result.endswith(b"\n"):
                        return _parsed(result), ""
                else:
                    stream = by_descriptor[descriptor]
                    stream.read()
                    if stream.ended:
                        poll.unregister(descriptor)

    def _excess(self) -> str:
        """Which limit all processes of the code exceed together: each alone is held by the kernel."""
        pids = _others()
        if len(pids) > self.settings["processes"]:
            return "processes"
        most = self.settings["memory_bytes"]
        # The quick sum counts a page that forks share once for each, so it is the exact one that decides.
        return "memory" if _exceeds(most, _quick_bytes, pids) and _exceeds(most, _exact_bytes, pids) else ""


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
        return {
            "exit_code": int(found["exit_code"]),
            "tests": [(bool(passed), str(message)[:2000]) for passed, message in found["tests"]],
            "limit": str(found["limit"]),
        }
    except (ValueError, TypeError, KeyError):  # the code wrote there
        return None


# Processes.


def _others() -> list[int]:
    """All processes that the code started and that live."""
    return [pid for pid in _table(dead=False) if pid != os.getpid()]


def _table(dead: bool) -> dict[int, int]:
    """This process and all below it, each with its parent; with those that are dead and not buried, or without."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rsplit(b") ", 1)[1].split(b" ", 2)[:2]
            except (OSError, IndexError):  # it has just gone
                continue
            if dead or state not in b"ZX":
                parents[int(name)] = int(parent)
    mine = os.getpid()
    if mine == 1:
        return parents  # in a namespace of its own there are no others
    found, layer = {mine: os.getppid()}, {mine}
    while layer:
        below = {pid: parent for pid, parent in parents.items() if parent in layer and pid not in found}
        found |= below
        layer = set(below)
    return found


def _exceeds(most: int, measure: Callable[[int], int], pids: list[int]) -> bool:
    return sum(map(measure, pids)) > most


def _quick_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * resource.getpagesize()


def _exact_bytes(pid: int) -> int:
    """Its memory, with its part of what it shares."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return 0


def _end_others(spared: int | None) -> bool:
    """Kill all that the code started; False if it goes on starting more."""
    for _ in range(ROUNDS):
        living = [pid for pid in _others() if pid != spared]
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _bury(spared)
        if not living:
            return True
        time.sleep(0.001)
    return False


def _bury(spared: int | None) -> None:
    """Take note of the dead, so that they leave the process table."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == spared:
                return
            os.waitpid(ended.si_pid, 0)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _status_of(pid: int) -> int | None:
    """How a worker ended that closed its pipe: it is about to, or has."""
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


def _empty(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


# The worker's side.


def _work(orders: int, results: int, out: int, err: int, settings: dict[str, Any]) -> NoReturn:
    """What the child does: for each order, run the code and the tests, and tell how it went."""
    with contextlib.suppress(OSError):
        os.setsid()
    # Out of the way of code that counts descriptors from 3 up, and not passed on to what the code starts.
    orders, results, out, err = (_moved(descriptor) for descriptor in (orders, results, out, err))
    _prctl(PR_SET_DUMPABLE, 1)
    _limit(settings)
    random.seed(settings["seed"])
    namespace, pid = _new_namespace(), os.getpid()
    with open(orders, "rb", closefd=False) as lines:
        for line in lines:
            order = json.loads(line)
            if order["do"] == "bury":
                _bury(spared=None)
                os.write(results, b"\n")
                continue
            _prepare(out, err, settings["folder"])
            done = _execute(order, namespace)
            if os.getpid() != pid:
                os._exit(done["exit_code"])  # a fork of the worker, which the code let run on to its end
            os.write(results, json.dumps(done).encode() + b"\n")
            if settings["namespace"] != "persistent":
                break
    os._exit(0)


def _moved(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(descriptor)
    return moved


def _new_namespace() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return module.__dict__


def _limit(settings: dict[str, Any]) -> None:
    limits = [
        (resource.RLIMIT_AS, settings["memory_bytes"]),
        (resource.RLIMIT_FSIZE, settings["disk_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ]
    if hasattr(resource, "RLIMIT_NPROC") and settings["counts_processes"]:
        limits.append((resource.RLIMIT_NPROC, settings["processes"]))
    for what, value in limits:
        with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already
            resource.setrlimit(what, (value, value))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows too large is an OSError then


def _prepare(out: int, err: int, folder: str) -> None:
    """The step's own input, outputs and folder, whatever became of the last one's."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.close(nothing)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(descriptor, "w", closefd=False)
        buffered = io.TextIOWrapper(
            io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=name == "stderr"
        )
        setattr(sys, name, buffered)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8")
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)


def _execute(order: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    exit_code, error = _attempt(order["code"], f"<step {order['step']}>", namespace)
    limit = "memory" if isinstance(error, MemoryError) else ""
    tests = []
    for number, test in enumerate(order["tests"], 1):
        passed, problem = _attempt(test, f"<test {number}>", namespace, quiet=True)
        tests.append((passed == 0 and problem is None, "" if problem is None else _summary(problem)))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the code may have put anything in their place
            stream.flush()
    return {"exit_code": exit_code, "tests": tests, "limit": limit}


def _attempt(code: str, name: str, namespace: dict[str, Any], quiet: bool = False) -> tuple[int, BaseException | None]:
    """Run code; how it ended as an exit code, and what it raised."""
    try:
        exec(compile(code, name, "exec"), namespace)
    except SystemExit as error:
        if quiet:
            return 1, error
        return _exit_code(error), None
    except BaseException as error:  # the code may raise anything, and none of it may end the worker
        if not quiet:
            with contextlib.suppress(BaseException):  # memory may be short, or stderr closed
                frames = error.__traceback__.tb_next if error.__traceback__ else None
                traceback.print_exception(type(error), error, frames, file=sys.stderr)
        return 1, error
    return 0, None


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(Exception):  # the code may have closed stderr
        print(error.code, file=sys.stderr)
    return 1


def _summary(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")[:500]
    except Exception:  # its __str__ is the code's own
        return type(error).__name__


def _prctl(what: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # the parent of all that the code abandons
    _prctl(PR_SET_DUMPABLE, 0)  # closed to the eyes of its own children
    Keeper(socket.socket(fileno=int(sys.argv[1]))).run()
