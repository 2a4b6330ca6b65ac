"""The lock between workers, beside environments that have locks of their own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envhive.server.filelock import FileLock
from tests.support.servers import eventually

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who waits for a lock")

HOLDER = """
import fcntl, sys, threading
from envhive.server.filelock import FileLock
shared = open(sys.argv[2], "r+b")
with FileLock(int(sys.argv[1])):
    print("has it", flush=True)
    threading.Thread(target=fcntl.lockf, args=(shared, fcntl.LOCK_EX), daemon=True).start()
    input()
"""


@pytest.fixture
def lock() -> Iterator[FileLock]:
    descriptor = os.memfd_create("lock")
    made = FileLock(descriptor)
    yield made
    made.close()
    os.close(descriptor)


def waits_for_a_file(pid: int) -> bool:
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_threads_that_wait_for_a_file_are_no_deadlock(lock: FileLock, tmp_path: Path) -> None:
    """The holder waits, in another thread, for a file that this process has: that thread alone is in the way."""
    (tmp_path / "file").write_bytes(b"x")
    command = [sys.executable, "-c", HOLDER, str(lock._descriptor), str(tmp_path / "file")]
    with (
        (tmp_path / "file").open("r+b") as shared,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock._descriptor]) as holder,
    ):
        assert holder.stdin is not None
        assert holder.stdout is not None
        fcntl.lockf(shared, fcntl.LOCK_EX)
        assert holder.stdout.readline() == b"has it\n"
        eventually(lambda: waits_for_a_file(holder.pid))
        taken: list[BaseException | None] = []

        def take() -> None:
            try:
                with lock:
                    taken.append(None)
            except OSError as error:
                taken.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        thread.join(0.2)
        assert taken == []
        holder.stdin.close()
        thread.join(20)
        assert taken == [None]
        fcntl.lockf(shared, fcntl.LOCK_UN)


def test_whoever_takes_it_keeps_pythons_own_lock(lock: FileLock) -> None:
    """An environment that then got that, and kept it for seconds, would keep every worker waiting."""
    turns = 0
    begun = threading.Event()

    def compute() -> None:
        nonlocal turns
        begun.set()
        for _ in range(1_000_000):
            turns += 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=compute)
        thread.start()
        begun.wait()  # from now on it computes whenever it may
        at = turns
        with lock:
            pass
        assert turns == at
    finally:
        sys.setswitchinterval(before)
        thread.join()
