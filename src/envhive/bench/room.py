"""How much memory a server could still have, by whichever limit is the nearest: the machine's, or one put on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from envhive.bench import procfs

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60
"""Where there is no limit, cgroups of the first kind name a number beyond this."""


class Room(msgspec.Struct, frozen=True):
    """Bytes, of those that a limit allows."""

    left: int
    total: int
    limit: str
    """Whose it is."""

    @property
    def share(self) -> float:
        return self.left / self.total


def memory_room(pid: int) -> Room | None:
    """Under the limit that a process and its descendants are nearest to; None where nothing is known."""
    rooms = [*_of_the_machine(), *_of_cgroups(pid)]
    for each in procfs.tree(pid):
        rooms += _of_address_space(each)
    return min(rooms, key=lambda room: room.share, default=None)


def kills_for_memory() -> int:
    """Processes that this machine's kernel has killed so far, to have their memory."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _of_the_machine() -> Iterator[Room]:
    free, total = procfs.free_memory(), procfs.total_memory()
    if free is not None and total:
        yield Room(free, total, "this machine")


def _of_cgroups(pid: int) -> Iterator[Room]:
    """Of the groups that a process is in, and those around them: a container's limit is that of one of them."""
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            base, files, cache = _CGROUPS, ("memory.max", "memory.current"), "inactive_file"
        elif "memory" in kinds.split(","):
            base, cache = _CGROUPS / "memory", "total_inactive_file"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.strip("/")
        for group in (folder, *folder.parents):
            yield from _of_cgroup(group, *files, cache)
            if group == base:
                break


def _of_cgroup(group: Path, limit_file: str, used_file: str, cache: str) -> Iterator[Room]:
    with contextlib.suppress(OSError, ValueError):  # it is not there, or its limit is "max"
        limit = int((group / limit_file).read_text())
        used = int((group / used_file).read_text())
        for line in (group / "memory.stat").read_text().splitlines():
            if line.startswith(f"{cache} "):
                used -= int(line.split()[1])  # it is given back when it is needed
        if 0 < limit < _UNLIMITED:
            yield Room(max(limit - used, 0), limit, "its control group")


def _of_address_space(pid: int) -> Iterator[Room]:
    if limit := procfs.limit_of(pid, "Max address space"):
        yield Room(max(limit - procfs.address_space(pid), 0), limit, "a process's address space")
