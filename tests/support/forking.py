"""An environment with processes of its own, forked from wherever it runs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from typing import Any, ClassVar

from envhive import Action, Environment, Observation, State

_FORK = multiprocessing.get_context("fork")


class Deed(Action):
    do: str


class Outcome(Observation):
    found: Any = None


class Forking(Environment[Deed, Outcome, State]):
    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Outcome:
        return Outcome()

    def step(self, action: Deed, timeout_s: float | None = None, **kwargs: Any) -> Outcome:
        return Outcome(found=getattr(self, action.do)())

    @property
    def state(self) -> State:
        return State()

    def terminate(self) -> int | None:
        """The exit code of a child that is told to end."""
        child = _FORK.Process(target=time.sleep, args=(600,), daemon=True)
        child.start()
        child.terminate()
        child.join(20)
        child.kill()
        return child.exitcode

    def give_up_on_a_pool(self) -> str:
        with _FORK.Pool(1) as pool:
            try:
                pool.apply_async(time.sleep, (600,)).get(timeout=0.1)
            except multiprocessing.TimeoutError:
                return "gave up"
        return "was done"

    def exit_in_a_child(self) -> int:
        if (pid := os.fork()) == 0:
            sys.exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def raise_in_a_child(self) -> int:
        if (pid := os.fork()) == 0:
            raise ValueError("not my parent's")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def return_in_a_child(self) -> int:
        pid = os.fork()
        return pid if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def start_a_program(self) -> int:
        """The pid of a program that stays, started as `os.system` does: with what is inheritable."""
        return subprocess.Popen(["sleep", "600"], close_fds=False).pid

    def keep_one(self) -> int | None:
        """The pid of a child that stays."""
        child = _FORK.Process(target=time.sleep, args=(600,), daemon=True)
        child.start()
        return child.pid
