"""What a server has: measured before a fault and after it, so that nothing is left behind unseen."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.error
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from envhive.bench.procfs import memory, tree
from tests.support.processes import ServerProcess
from tests.support.servers import eventually
from tests.support.wild import is_alive

MEGABYTE: Final = 1024 * 1024

MEMORY_TOLERANCE: Final = 12 * MEGABYTE
"""Growth that is no leak: the allocator keeps pages for the threads there once were, and Python its free lists.
Up to 3 MB a process were seen; 300 sessions that keep their 50 kB would exceed it."""

TOLERANCE: Final = 4
"""Threads and descriptors: the default executor starts threads as it is asked to, and keeps them; workers keep the
channels to one another."""

POOL: Final = 64
"""Threads that close environments which have none of their own: started as they are needed, and kept."""


@dataclass(frozen=True)
class Belongings:
    """Of a server's process and all below it."""

    processes: int
    threads: int
    descriptors: int
    memory: int
    """Bytes in memory, shared ones counted once."""
    own_memory: int
    """Those of them that are in no file. Whoever else runs this Python shares those, and changes everybody's part."""
    sessions: int
    listed: int

    @classmethod
    def of(cls, server: ServerProcess) -> Belongings:
        pids = [pid for pid in tree(server.process.pid) if is_alive(pid)]
        return cls(
            processes=len(pids),
            threads=sum(_entries(pid, "task") for pid in pids),
            descriptors=sum(_entries(pid, "fd") for pid in pids),
            memory=memory(pids),
            own_memory=sum(map(own_memory, pids)),
            sessions=_in_use(server),
            listed=len(server.sessions()),
        )

    def excess_over(self, before: Belongings, **tolerances: int) -> list[str]:
        """What there is more of than before, beyond what is no leak."""
        allowed = {"processes": 0, "threads": TOLERANCE, "descriptors": TOLERANCE, "own_memory": MEMORY_TOLERANCE}
        allowed |= {"sessions": 0, "listed": 0, **tolerances}
        found = {name: (getattr(before, name), getattr(self, name)) for name in allowed}
        return [f"{name}: {was} → {now}" for name, (was, now) in found.items() if now > was + allowed[name]]


def _entries(pid: int, folder: str) -> int:
    with contextlib.suppress(OSError):  # it has just ended
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    return 0


def own_memory(pid: int) -> int:
    """Bytes of a process that are in no file."""
    with contextlib.suppress(OSError):  # it has just ended
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return 0


@dataclass
class Tally:
    """What became of the requests that were made meanwhile."""

    counts: Counter[str] = field(default_factory=Counter)

    def answered(self, times: int = 1) -> None:
        self.counts["answered"] += times

    def failed(self, error: BaseException | str, times: int = 1) -> None:
        self.counts[error if isinstance(error, str) else type(error).__name__] += times

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in self.counts.most_common()) or "–"


@contextmanager
def nothing_left_behind(server: ServerProcess, what: str, *, within: float = 30, **tolerances: int) -> Iterator[Tally]:
    """See that the server has, after whatever happens in this block, what it had before; print a row that says so.

    `tolerances` allow for more of something, by its name in `Belongings`.
    """
    eventually(lambda: _is_empty(server), within)
    before, tally = Belongings.of(server), Tally()
    yield tally
    after: list[Belongings] = []

    def is_as_before() -> bool:
        if not _is_empty(server):
            return False
        after[:] = [Belongings.of(server)]
        return not after[0].excess_over(before, **tolerances)

    try:
        eventually(is_as_before, within)
    except AssertionError:
        assert after, f"after {what} the server is not empty"
        raise AssertionError(f"left behind after {what}: {after[0].excess_over(before, **tolerances)}") from None
    print(row(what, before, after[0], tally))


def _in_use(server: ServerProcess) -> int:
    try:
        health = server.health()
    except urllib.error.HTTPError as unwell:  # environments could not be made, which it says for a while
        health = json.load(unwell)
    return int(health["active_sessions"])


def _is_empty(server: ServerProcess) -> bool:
    try:
        return _in_use(server) == 0
    except OSError:  # it has no descriptor for the question yet
        return False


def row(what: str, before: Belongings, after: Belongings, tally: Tally) -> str:
    """A line of the table in docs/reliability.md."""
    pairs = [(getattr(before, name), getattr(after, name)) for name in ("threads", "processes", "descriptors")]
    pairs.append((round(before.memory / MEGABYTE), round(after.memory / MEGABYTE)))
    return " | ".join((f"| {what}", *(f"{was} → {now}" for was, now in pairs), f"{tally} |"))
