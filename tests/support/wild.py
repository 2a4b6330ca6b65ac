"""An environment that does to its process whatever it is told."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import faulthandler
import os
import random
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any, ClassVar

from envhive import Action, Environment, Observation, State
from envhive.bench.procfs import tree


class Deed(Action):
    do: str = "add"
    by: int = 1
    text: str = ""


class Outcome(Observation):
    total: int = 0
    pid: int = 0
    found: Any = None


class Wild(Environment[Deed, Outcome, State]):
    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self, journal: Path | None = None) -> None:
        super().__init__()
        self.journal = journal
        self.total = 0
        self.started: list[subprocess.Popen[bytes]] = []

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Outcome:
        self.total = seed or 0
        return Outcome(total=self.total, pid=os.getpid())

    def step(self, action: Deed, timeout_s: float | None = None, **kwargs: Any) -> Outcome:
        found = getattr(self, action.do)(action)
        return Outcome(total=self.total, pid=os.getpid(), found=found)

    @property
    def state(self) -> State:
        return State(step_count=self.total)

    def close(self) -> None:
        self.note("close")

    def note(self, what: str) -> None:
        if self.journal is not None:
            with self.journal.open("a") as journal:
                journal.write(f"{what}\n")

    # Deeds.

    def add(self, action: Deed) -> None:
        self.total += action.by

    def fork(self, action: Deed) -> int | None:
        """A child that should have become another program, and comes back instead."""
        child = os.fork()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else None

    def segfault(self, action: Deed) -> None:
        faulthandler.disable()  # the test runner's, which would print a page for each
        ctypes.string_at(0)

    def abort(self, action: Deed) -> None:
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGABRT)

    def leave(self, action: Deed) -> None:
        os._exit(3)

    def leave_later(self, action: Deed) -> None:
        threading.Timer(0.05, os._exit, (5,)).start()

    def spin(self, action: Deed) -> None:
        """A loop in C that has the interpreter's lock, and outlives any test."""
        self.note("spin")
        re.match(r"(a+)+$", "a" * 60 + "b")

    def grow(self, action: Deed) -> int:
        return len(bytearray(action.by))

    def start_program(self, action: Deed) -> int:
        self.started.append(subprocess.Popen(["sleep", "600"]))
        return self.started[-1].pid

    def echo(self, action: Deed) -> str:
        return action.text * action.by

    def draw(self, action: Deed) -> float:
        return random.random()

    def signals(self, action: Deed) -> list[bool]:
        return [
            signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            signal.getsignal(signal.SIGINT) == signal.default_int_handler,
            signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
            threading.current_thread() is threading.main_thread(),
        ]

    def listening_sockets(self, action: Deed) -> int:
        found = 0
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            try:
                with socket.socket(fileno=os.dup(descriptor)) as it:
                    found += it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            except OSError:
                pass
        return found

    def descriptors(self, action: Deed) -> int:
        return len(os.listdir("/proc/self/fd"))


class HangingClose(Wild):
    def close(self) -> None:
        super().close()
        self.spin(Deed())


_told: contextvars.ContextVar[str] = contextvars.ContextVar("told", default="nothing")


class AsyncWild(Wild):
    """The same with coroutines, and a task of its own."""

    async def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Outcome:
        _told.set("in reset")
        self.ticks = 0
        self.ticker = asyncio.get_running_loop().create_task(self._tick())
        return Wild.reset(self, seed)

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)

    async def step(self, action: Deed, timeout_s: float | None = None, **kwargs: Any) -> Outcome:
        if action.do == "wait":
            self.note("waiting")
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.note("cancelled")
                raise
        await asyncio.sleep(0)
        return Wild.step(self, action)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.note("close")

    def told(self, action: Deed) -> str:
        return _told.get()

    def ticked(self, action: Deed) -> int:
        return self.ticks


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """The processes below one that live."""
    return [each for each in tree(pid)[1:] if is_alive(each)]
