"""Slurm for tests: a controller and two nodes on this machine, in a folder of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import free_port
from tests.support.servers import eventually

NODES: Final = ("n1", "n2")
_PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "scontrol")
_READY_S: Final = 60.0

_CONF: Final = """
ClusterName=envhive
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
KillWait=30
MinJobAge=300
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster that runs."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """What makes Slurm's programs speak to it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout.strip()

    def jobs(self, name: str | None = None) -> list[str]:
        """The jobs, or those of a name, that wait or run."""
        named = [] if name is None else [f"--name={name}"]
        return self.ask("squeue", "--noheader", "--format=%i %T %N", *named).splitlines()


@contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """Two nodes with two CPUs each; skips the test where there is no Slurm, or it does not start."""
    missing = [program for program in _PROGRAMS if _find(program) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)} (apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("Slurm's nodes can be started by root alone")
    # Not pytest's folder: the path of a Unix socket has room for about 100 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        cluster = Slurm(Path(name))
        _write_files(cluster.folder)
        daemons = _Daemons(cluster, stack)
        try:
            daemons.run("munged", "--foreground", "--force", *_munge_options(cluster.folder))
            daemons.wait_for((cluster.folder / "munge.socket").exists)
            daemons.run("slurmctld", "-D")
            for node in NODES:
                daemons.run("slurmd", "-D", "-N", node, log=f"slurmd.{node}")
            daemons.wait_for(lambda: _idle_nodes(cluster) == len(NODES))
        except _NotStartedError as error:
            pytest.skip(f"Slurm does not start on this machine: {error}")
        stack.callback(_cancel_all, cluster)
        yield cluster


class _NotStartedError(Exception):
    """A daemon ended, or did not get ready."""


class _Daemons:
    """What a cluster consists of: started one by one, and stopped when the block ends."""

    def __init__(self, cluster: Slurm, stack: ExitStack) -> None:
        self._cluster = cluster
        self._stack = stack
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, program: str, *options: str, log: str | None = None) -> None:
        name = log or program
        with self._log(name).open("wb") as output:
            process = subprocess.Popen(
                [str(_find(program)), *options],
                env={**os.environ, **self._cluster.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._running[name] = process
        self._stack.callback(_stop, process)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_S
        while not condition():
            ended = [name for name, process in self._running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise _NotStartedError("\n".join(f"{name}: {self._log(name).read_text()}" for name in ended))
            time.sleep(0.05)

    def _log(self, name: str) -> Path:
        return self._cluster.folder / f"{name}.log"


def _find(program: str) -> str | None:
    """The daemons are where the PATH of a user need not lead."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")


def _munge_options(folder: Path) -> list[str]:
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    return [f"--{option}={folder / name}" for option, name in {**files, "log-file": "munge.log"}.items()]


def _write_files(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host = os.uname().nodename
    shared = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN"
    nodes = "\n".join(f"NodeName={node} Port={free_port()} {shared}" for node in NODES)
    conf = _CONF.format(host=host, controller_port=free_port(), folder=folder, nodes=nodes)
    (folder / "slurm.conf").write_text(conf)


def _idle_nodes(cluster: Slurm) -> int:
    try:
        return cluster.ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").count("n")
    except subprocess.CalledProcessError:
        return 0  # the controller is not there yet


def _cancel_all(cluster: Slurm) -> None:
    """What a failed test has left would outlive its node."""
    cluster.ask("scancel", "--user=root")
    eventually(lambda: not cluster.jobs(), within=30)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
