"""Runs a command for as long as somebody holds the other end of its standard input, and no longer.

    python guard.py [--grace SECONDS] [--remove FOLDER] [--sweep JSON_LIST] [--apart] -- [COMMAND...]

A provider starts what it starts through a guard. If the provider's process is killed, however hard, the pipe closes,
and the guard ends the command with all its children, removes the folder, and runs the sweep. A provider that wants the
command to end writes a byte first: then it removes and sweeps by itself. This file uses the standard library alone, so
any Python can run it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from enum import Enum, auto
from types import FrameType
from typing import Any, Final

_TICK: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1


class _Asked(Exception):  # noqa: N818  # it is no error
    """A signal asked the guard to end."""


def _raise_asked(number: int, frame: FrameType | None) -> None:
    raise _Asked


def _die_with_the_guard() -> None:
    """Linux only: the command is told to end when the guard itself is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


class _Why(Enum):
    """Why the guard's work is over."""

    ENDED = auto()
    """The command has ended by itself."""
    TOLD = auto()
    """Who started it wants it to end."""
    LEFT = auto()
    """Who started it is gone."""


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Ask the command to end, and wait. On SIGTERM a server would wait for its sessions; on SIGINT it does not."""
    _tell(process, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)


def _tell(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all that is left of the command's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _step_apart() -> int | None:
    """Go on in a process that is no child of our starter: returns None there, and here how that one has ended."""
    guard = os.fork()
    return abs(os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1])) if guard else None


def _watch(process: subprocess.Popen[bytes] | None) -> _Why:
    """Wait until the command has ended by itself, or nobody wants it any longer."""
    while process is None or process.poll() is None:
        ready, _, _ = select.select([0], [], [], _TICK)
        if ready:
            return _Why.TOLD if os.read(0, 1) else _Why.LEFT
    return _Why.ENDED


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--grace", type=float, default=5.0)
    parser.add_argument("--remove")
    parser.add_argument("--sweep", type=json.loads)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("command", nargs="*")
    options: Any = parser.parse_args(arguments)
    if options.apart and (code := _step_apart()) is not None:
        return code
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_asked)
    process = None
    if options.command:
        process = subprocess.Popen(
            options.command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_the_guard
        )
    try:
        why = _watch(process)
    except _Asked:
        why = _Why.LEFT
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if process is not None:
        if why is not _Why.ENDED:
            _end(process, options.grace)
        _tell(process, signal.SIGKILL)  # if it would not end, and children that it left behind
        process.wait()
    if options.sweep and why is _Why.LEFT:
        deadline = time.monotonic() + 30
        while subprocess.run(options.sweep).returncode and time.monotonic() < deadline:
            time.sleep(1)
    if options.remove and why is _Why.LEFT:
        shutil.rmtree(options.remove, ignore_errors=True)
    code = process.returncode if process is not None and why is _Why.ENDED else 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
