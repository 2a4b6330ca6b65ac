"""What the server's processes use, read from /proc. Where there is none (macOS), nothing is claimed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

_PROC: Final = Path("/proc")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_SCHEDULED: Final = 2
"""In the number that stands for a process's clock on Linux: time for which it was scheduled."""


class Usage(msgspec.Struct, frozen=True):
    """What a tree of processes uses at a moment."""

    processes: int = 0
    cpu_s: float = 0.0
    memory: int = 0
    """Bytes, shared ones counted once."""
    threads: int = 0
    files: int = 0
    """Open files of the process that has the most."""
    file_limit: int = 0
    """Of that process; 0 if it is not known."""


def available() -> bool:
    return (_PROC / "self" / "stat").exists()


def tree(pid: int) -> list[int]:
    """A process and all its descendants that live."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid] if _stat_fields(pid) else []
    for known in found:  # grows as it goes
        found.extend(children.get(known, ()))
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there, and not only waiting to be buried."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that these processes and their ended children have used so far."""
    total = 0.0
    for pid in pids:
        if fields := _stat_fields(pid):
            own, ended_children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
            total += _cpu_clock(pid, own / _TICKS_PER_SECOND) + ended_children / _TICKS_PER_SECOND
    return total


def _cpu_clock(pid: int, rough: float) -> float:
    """A process's CPU time to the nanosecond: in ticks of 10 ms, a hundred steps of 50 µs are nothing."""
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:  # it ended meanwhile, or is hidden
        return rough


def memory(pids: Iterable[int]) -> int:
    """Bytes in memory, those that several processes share counted once."""
    return sum(_proportional_size(pid) or _resident_size(pid) for pid in pids)


def usage(pid: int) -> Usage:
    """Everything at once, of a process and its descendants."""
    pids = tree(pid)
    files = [(_open_files(each), each) for each in pids]
    most, busiest = max(files, default=(0, 0))
    return Usage(
        processes=len(pids),
        cpu_s=cpu_seconds(pids),
        memory=memory(pids),
        threads=sum(int(fields[17]) for each in pids if (fields := _stat_fields(each))),
        files=most,
        file_limit=limit_of(busiest, "Max open files") if busiest else 0,
    )


def free_memory() -> int | None:
    """Bytes that this machine could still give to processes."""
    return _number_after(_PROC / "meminfo", "MemAvailable:")


def total_memory() -> int | None:
    return _number_after(_PROC / "meminfo", "MemTotal:")


def address_space(pid: int) -> int:
    """Bytes that a process has asked for, whether or not it uses them."""
    return _number_after(_PROC / str(pid) / "status", "VmSize:") or 0


def machine_cpu_seconds() -> float | None:
    """CPU time that everything on this machine has used so far."""
    try:
        fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, soft_irq, *_ = map(int, fields)
    return (user + nice + system + irq + soft_irq) / _TICKS_PER_SECOND


def thread_limit(pid: int | None = None) -> int | None:
    """The most threads there may be here, or that a process may have, of whichever limit is the lowest."""
    found = []
    if pid is not None and os.geteuid():  # root may have more than its limit
        found += [limit] if (limit := limit_of(pid, "Max processes")) else []
    for path in (Path("/sys/fs/cgroup/pids.max"), _PROC / "sys/kernel/threads-max", _PROC / "sys/kernel/pid_max"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min(found, default=None)


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second, the name, may hold spaces and brackets."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended while we looked
        return []


def _proportional_size(pid: int) -> int | None:
    return _number_after(_PROC / str(pid) / "smaps_rollup", "Pss:")


def _resident_size(pid: int) -> int:
    return _number_after(_PROC / str(pid) / "status", "VmRSS:") or 0


def _number_after(path: Path, label: str) -> int | None:
    """The kilobytes that a line of a file in /proc names, as bytes."""
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(label):
                return int(line.split()[1]) * 1024
    return None


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(_PROC / str(pid) / "fd"))
    except OSError:  # ended, or another user's
        return 0


def limit_of(pid: int, name: str) -> int:
    """One of a process's own limits; 0 if there is none, or it is not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / str(pid) / "limits").read_text().splitlines():
            if line.startswith(name):
                return int(line.removeprefix(name).split()[0])
    return 0
