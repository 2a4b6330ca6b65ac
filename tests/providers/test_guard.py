"""What is started through a guard ends when its starter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envhive.providers.guarded import Guarded, tail
from tests.support.processes import children_of
from tests.support.servers import eventually
from tests.support.wild import is_alive

CHILD = """
import os, subprocess, time
subprocess.Popen(["sleep", "600"])
print(os.getpid(), flush=True)
time.sleep(600)
"""

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""

STARTER = """
import sys, time
from pathlib import Path
from envhive.providers.guarded import Guarded
folder = Path(sys.argv[1])
sweep = [sys.executable, "-c", f"open({str(folder / 'swept')!r}, 'w')"]
(folder / "inner").mkdir()
guarded = Guarded(
    [sys.executable, "-c", sys.argv[2]],
    folder / "log",
    sweep=sweep,
    remove=folder / "inner",
    grace_s=1,
    apart="apart" in sys.argv,
)
print("started", flush=True)
time.sleep(600)
"""


def start(tmp_path: Path, *how: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", STARTER, str(tmp_path), CHILD, *how]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    assert starter.stdout.readline() == "started\n"
    eventually(lambda: tail(tmp_path / "log", 1) != "", within=20)
    return starter, int(tail(tmp_path / "log", 1))


def group_of(leader: int) -> list[int]:
    """The processes of a process group that are alive."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    found = []
    for pid in pids:
        try:
            if os.getpgid(pid) == leader and is_alive(pid):
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def test_a_starter_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    starter, command = start(tmp_path)
    assert len(group_of(command)) == 2
    starter.kill()
    starter.communicate()
    eventually(lambda: not group_of(command), within=20)
    eventually(lambda: (tmp_path / "swept").exists() and not (tmp_path / "inner").exists(), within=20)


def test_a_starter_that_is_killed_with_all_its_children_leaves_nothing(tmp_path: Path) -> None:
    starter, command = start(tmp_path, "apart")
    for child in children_of(starter.pid):
        os.kill(int(child), signal.SIGKILL)
    assert is_alive(command)
    starter.kill()
    starter.communicate()
    eventually(lambda: not group_of(command), within=20)
    eventually(lambda: (tmp_path / "swept").exists() and not (tmp_path / "inner").exists(), within=20)


def test_a_guard_that_was_left_alone_cleans_up_also_for_a_starter_that_stops_it(tmp_path: Path) -> None:
    """So does an actor of Ray's, for as long as it lives after its children were killed."""
    (tmp_path / "inner").mkdir()
    command = [sys.executable, "-c", CHILD]
    guarded = Guarded(command, tmp_path / "log", remove=tmp_path / "inner", grace_s=1, apart=True)
    eventually(lambda: tail(tmp_path / "log", 1) != "", within=20)
    leader = int(tail(tmp_path / "log", 1))
    guarded._process.kill()
    guarded.wait(20)
    assert is_alive(leader)
    guarded.stop()
    eventually(lambda: not group_of(leader) and not (tmp_path / "inner").exists(), within=20)


def test_a_guard_that_stands_apart_tells_how_its_command_has_ended(tmp_path: Path) -> None:
    guarded = Guarded([sys.executable, "-c", "raise SystemExit(7)"], tmp_path / "log", apart=True)
    assert guarded.wait(20) == 7
    guarded.stop()


def test_a_guard_that_is_killed_takes_its_command_with_it(tmp_path: Path) -> None:
    starter, command = start(tmp_path)
    try:
        guard = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: not is_alive(command), within=20)
    finally:
        for pid in group_of(command):
            os.kill(pid, signal.SIGKILL)
        starter.kill()
        starter.communicate()


def test_stopping_ends_the_command_and_its_children_and_leaves_sweeping_to_the_starter(tmp_path: Path) -> None:
    log, swept = tmp_path / "log", tmp_path / "swept"
    sweep = [sys.executable, "-c", f"open({str(swept)!r}, 'w')"]
    guarded = Guarded([sys.executable, "-c", CHILD], log, sweep=sweep)
    eventually(lambda: tail(log, 1) != "", within=20)
    command = int(tail(log, 1))
    assert guarded.exit_code is None
    guarded.stop()
    guarded.stop()
    assert not group_of(command)
    assert not swept.exists()


def test_a_command_that_does_not_want_to_end_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    guarded = Guarded([sys.executable, "-c", STUBBORN], log, grace_s=0.2)
    eventually(lambda: tail(log, 1) != "", within=20)
    command = int(tail(log, 1))
    guarded.stop()
    assert not is_alive(command)


@pytest.mark.parametrize(("ending", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_the_commands_own(ending: str, code: int, tmp_path: Path) -> None:
    guarded = Guarded([sys.executable, "-c", ending], tmp_path / "log")
    try:
        assert guarded.wait(20) == code
    finally:
        guarded.stop()
