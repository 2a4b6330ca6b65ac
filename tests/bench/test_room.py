"""How much memory is left, under whichever limit is nearest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envhive.bench import procfs, room
from envhive.bench.room import Room, memory_room

pytestmark = pytest.mark.skipif(not procfs.available(), reason="there is no /proc here")


def group(folder: Path, limit: str, used: int, cache: int, second: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{'' if second else 'total_'}inactive_file {cache}\n")


def member_of(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a member of a control group, as far as the lab can see."""
    (tmp_path / "proc" / str(os.getpid())).mkdir(parents=True)
    (tmp_path / "proc" / str(os.getpid()) / "cgroup").write_text(f"{line}\n")
    monkeypatch.setattr(room, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(room, "_CGROUPS", tmp_path / "cgroup")


def test_the_machine_has_some_left() -> None:
    found = memory_room(os.getpid())
    assert found is not None
    assert 0 < found.left <= found.total
    assert room.kills_for_memory() >= 0


def test_a_container_s_limit_is_nearer_than_the_machine_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member_of("0::/pod/box", tmp_path, monkeypatch)
    group(tmp_path / "cgroup" / "pod" / "box", "max", 10, 0)
    group(tmp_path / "cgroup" / "pod", "1000000", 990_000, 4_000)  # what only caches files is given back
    assert memory_room(os.getpid()) == Room(14_000, 1_000_000, "its control group")


def test_control_groups_of_the_first_kind_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member_of("4:cpu,memory:/", tmp_path, monkeypatch)
    group(tmp_path / "cgroup" / "memory", "2000000", 1_990_000, 0, second=False)
    assert memory_room(os.getpid()) == Room(10_000, 2_000_000, "its control group")
    group(tmp_path / "cgroup" / "memory", str(2**63 - 4096), 1_990_000, 0, second=False)
    found = memory_room(os.getpid())
    assert found is not None
    assert found.limit == "this machine"


def test_a_process_s_own_limit_counts() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (60_000_000, 60_000_000)); print(); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        found = memory_room(child.pid)
        child.stdin.close()
    assert found is not None
    assert (found.limit, found.total) == ("a process's address space", 60_000_000)
    assert 0 < found.left < 60_000_000
