"""What /proc says about this very process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from envhive.bench import procfs

pytestmark = pytest.mark.skipif(not procfs.available(), reason="there is no /proc here")


def test_a_tree_holds_the_children_and_not_the_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in procfs.tree(os.getpid())
        assert procfs.usage(os.getpid()).processes >= 2
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        assert procfs.tree(child.pid) == []
        assert procfs.usage(child.pid) == procfs.Usage()


def test_work_shows_as_cpu_time() -> None:
    pids = [os.getpid()]
    before, whole = procfs.cpu_seconds(pids), procfs.machine_cpu_seconds()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert procfs.cpu_seconds(pids) - before >= 0.05
    assert whole is not None
    assert (procfs.machine_cpu_seconds() or 0) > whole


def test_cpu_time_is_told_to_less_than_a_tick() -> None:
    pids, before = [os.getpid()], procfs.cpu_seconds([os.getpid()])
    until = time.process_time() + 0.001
    while time.process_time() < until:
        pass
    assert 0.001 <= procfs.cpu_seconds(pids) - before < 0.009


def test_a_process_that_waits_to_be_buried_is_not_running() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert child.stdin is None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not procfs.is_running(child.pid)
    child.wait()
    assert not procfs.is_running(child.pid)
    assert procfs.is_running(os.getpid())


def test_memory_threads_and_files_are_counted() -> None:
    usage = procfs.usage(os.getpid())
    assert usage.memory > 5_000_000
    assert usage.threads >= 1
    with open(os.devnull) as _:
        assert procfs.usage(os.getpid()).files > usage.files - 1 >= 2
    assert usage.file_limit >= usage.files
    assert (procfs.free_memory() or 0) <= (procfs.total_memory() or 0)
    assert (procfs.thread_limit() or 1) >= 1
