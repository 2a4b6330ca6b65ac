"""Servers as Slurm jobs: one job a replica, one server a node.

    sbatch ──► job on a node: envhive serve ──► FOLDER/r1 says its port, FOLDER/r1.log what it said
               └─ ends when FOLDER/lease has stopped changing: its starter is gone

All jobs of a provider have one name, by which they are found and cancelled.

    python -m envhive.providers.slurm RUN_ID        cancels what a provider has left
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Unpack

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import CommonOptions, Progress, Replica, ServerSpec
from envhive.providers.guarded import Guarded, tail
from envhive.providers.placing import PlacingProvider
from envhive.providers.process import without_settings
from envhive.providers.sweep import sweeping

logger: Final = logging.getLogger("envhive.providers")

_PROGRAMS: Final = ("sbatch", "squeue", "scancel", "scontrol")
_PROGRAM_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 1.0
"""The controller serves a whole cluster: it is not asked more often."""
_BEATS: Final = 6
"""How often the lease is renewed in the time after which it ends."""
_KILL_S: Final = 60.0
_EVERYWHERE: Final = ("0.0.0.0", "::")

_WAITING: Final = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_RUNNING: Final = {"CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
_ENDING: Final = "COMPLETING"

# $$ is the server's own process id, as the shell becomes the server. Contents are compared, not times: the clocks of
# nodes and of file servers differ.
_SCRIPT: Final = """#!/bin/sh
[ -d {folder} ] || exit 1
(
    last= missed=0
    while [ $missed -lt {beats} ]; do
        sleep {pause}
        now=$(cat {folder}/lease 2>/dev/null)
        if [ "$now" = "$last" ]; then missed=$((missed + 1)); else missed=0 last=$now; fi
    done
    echo "The starter of this server is gone."
    kill -TERM $$
    sleep {kill}
    kill -KILL $$
) &
exec {command}
"""


@dataclass(frozen=True)
class _Job:
    """What Slurm says of a job."""

    state: str
    host: str
    reason: str

    def __str__(self) -> str:
        return self.state if self.reason in ("", "None") else f"{self.state} ({self.reason})"


class SlurmProvider(PlacingProvider):
    """Runs `envhive serve TARGET` in Slurm jobs, on nodes that Slurm chooses.

    Example:
        with SlurmProvider("echo", replicas=2, partition="cpu", time_limit="4:00:00") as provider:
            print(provider.base_url)

    Args:
        target: A shipped name, `package.module:Class`, or a folder; found from where this program runs.
        folder: A folder that this machine and all nodes see, for addresses and logs; by default in the home folder.
        partition, account, time_limit: What `sbatch` calls so; Slurm's defaults where None.
        exclusive: Whether each server has a node of its own.
        sbatch: More options of `sbatch`, as words or as one line.
        host: The address to listen on; all of the node's by default.
        python: The Python that runs it on the nodes, with EnvHive installed.
        start_timeout_s: How long jobs may wait for nodes, and servers until they are healthy.
        stop_timeout_s: How long a server may take to end before it is killed.
        lease_s: How long jobs outlive this program if it vanishes with its machine.
    """

    kind = "slurm"

    def __init__(
        self,
        target: str,
        *,
        replicas: int = 1,
        folder: str | Path | None = None,
        partition: str | None = None,
        account: str | None = None,
        time_limit: str | None = None,
        exclusive: bool = True,
        sbatch: str | Sequence[str] = (),
        host: str = "0.0.0.0",
        python: str = sys.executable,
        start_timeout_s: float = 1800.0,
        drain_timeout_s: float = 300.0,
        stop_timeout_s: float = 5.0,
        lease_s: float = 300.0,
        progress: Progress | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            ServerSpec(target=target, **common),
            replicas=replicas,
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
            progress=progress,
        )
        self._base = _usual_folder() if folder is None else Path(folder).absolute()
        named = {"partition": partition, "account": account, "time": time_limit}
        self._options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        self._options += ["--exclusive"] if exclusive else []
        self._options += shlex.split(sbatch) if isinstance(sbatch, str) else sbatch
        self._host = host
        self._python = python
        self._stop_timeout_s = stop_timeout_s
        self._lease_s = lease_s
        self._folder: Path | None = None
        self._guard: Guarded | None = None
        self._left = threading.Event()
        self._jobs: dict[str, str] = {}
        self._queue = _Queue(_job_name(self.run_id), self._tell)
        self._addresses: dict[str, str] = {}

    def _prepare(self) -> None:
        missing = [program for program in _PROGRAMS if shutil.which(program) is None]
        if missing:
            raise ConfigurationError(
                f"Slurm's programs are not on this machine: no {', '.join(missing)}. Start this where you would submit "
                "jobs."
            )
        self._folder = self._base / self.run_id
        try:
            self._folder.mkdir(parents=True, mode=0o700)
            self._guard = sweeping("slurm", self.run_id, remove=self._folder)
        except OSError as error:
            raise ProviderError(f"No folder for Slurm's jobs: {error}.") from error
        self._left = threading.Event()
        threading.Thread(
            target=self._renew_lease, args=(self._folder, self._left), name="envhive-slurm-lease", daemon=True
        ).start()

    def _renew_lease(self, folder: Path, left: threading.Event) -> None:
        beat = 0
        while True:
            beat += 1
            try:
                (folder / "lease").write_text(str(beat))
            except OSError as error:  # the file server may be back before the lease has ended
                logger.warning("The lease of Slurm's jobs could not be renewed: %s", error)
            if left.wait(self._lease_s / _BEATS):
                return

    def _place(self, name: str) -> None:
        command = ["sbatch", "--parsable", f"--job-name={_job_name(self.run_id)}", "--export=ALL", *self._wants(name)]
        environment = {**_environment(), **self.spec.variables()}
        number = _run(command, environment, self._script(name)).strip().partition(";")[0]
        self._queue.add(number)
        self._jobs[name] = number

    def _wants(self, name: str) -> list[str]:
        options = ["--nodes=1", "--ntasks=1", "--no-requeue", f"--output={self._folder}/{name}.log"]
        if self.spec.cpus is not None:
            options.append(f"--cpus-per-task={math.ceil(self.spec.cpus)}")
        if self.spec.memory_mb is not None:
            options.append(f"--mem={self.spec.memory_mb}")
        return [*options, *self._options]

    def _script(self, name: str) -> str:
        where = ["--host", self._host, "--port", "0", "--announce", f"{self._folder}/{name}", "--replica", name]
        return _SCRIPT.format(
            folder=shlex.quote(str(self._folder)),
            beats=_BEATS,
            pause=self._lease_s / _BEATS,
            kill=_KILL_S,
            command=shlex.join([self._python, "-m", "envhive", "serve", *self.spec.arguments(), *where]),
        )

    def _locate(self, name: str) -> Replica | None:
        job = self._job(name)
        if self._folder is None or job is None or job.state not in _RUNNING:
            return None
        try:
            announced = json.loads((self._folder / name).read_text())
        except (OSError, ValueError):
            return None
        address = self._address_of(job.host) if self._host in _EVERYWHERE else self._host
        address = f"[{address}]" if ":" in address else address
        return Replica(name, f"http://{address}:{announced['port']}", f"job {self._jobs[name]} on {job.host}")

    def _address_of(self, host: str) -> str:
        """A number: that is what proxies want, and names of nodes mean something inside Slurm alone."""
        if host not in self._addresses:
            words = _run(["scontrol", "show", "node", host, "--oneliner"]).split()
            known = next((word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr=")), host)
            try:
                self._addresses[host] = str(socket.getaddrinfo(known, None, type=socket.SOCK_STREAM)[0][4][0])
            except OSError as error:
                raise ProviderError(f"The address {known} of Slurm's node {host} is unknown here: {error}.") from error
        return self._addresses[host]

    def _ended(self, name: str) -> str | None:
        if name not in self._jobs:
            return None  # it is being submitted
        job = self._job(name)
        if job is not None and job.state in _WAITING | _RUNNING:
            return None
        return f"has ended: job {self._jobs[name]} is {job or 'gone'}"

    def _job(self, name: str, fresh: bool = False) -> _Job | None:
        number = self._jobs.get(name)
        return None if number is None else self._queue.look(number, fresh)

    def _remove(self, name: str) -> None:
        number = self._jobs.get(name)
        if number is None:
            return
        job = self._job(name, fresh=True)
        if job is not None and job.state in _RUNNING:
            # Not cancelled at first: when a cancelled job is killed is up to Slurm alone.
            _run(["scancel", "--signal=TERM", "--full", number], check=False)
            self._wait_for_end(name, self._stop_timeout_s)
            _run(["scancel", "--signal=KILL", "--full", number], check=False)
        if job is not None and job.state in _RUNNING | _WAITING:
            _run(["scancel", number], check=False)
            self._wait_for_end(name, _KILL_S)
        self._jobs.pop(name, None)

    def _wait_for_end(self, name: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (job := self._job(name, fresh=True)) is not None and job.state in {*_WAITING, *_RUNNING, _ENDING}:
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK_S / 5)

    def _said(self, name: str, lines: int) -> str:
        if self._folder is None:
            return ""
        return tail(self._folder / f"{name}.log", lines) or f"job {self._jobs.get(name)}: {self._job(name)}"

    def _clean_up(self) -> None:
        self._left.set()
        guard, self._guard = self._guard, None
        folder, self._folder = self._folder, None
        try:
            if guard is not None:
                _run(["scancel", f"--name={_job_name(self.run_id)}"])
                guard.stop()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


class _Queue:
    """Slurm's jobs of one name, asked for all at once and not too often."""

    def __init__(self, job_name: str, progress: Progress) -> None:
        self._job_name = job_name
        self._progress = progress
        self._lock = threading.Lock()
        self._looked_at = -_LOOK_S
        self._jobs: dict[str, _Job] = {}

    def add(self, number: str) -> None:
        """A job that Slurm has just taken: what it was last asked cannot tell of it."""
        with self._lock:
            self._jobs[number] = _Job("PENDING", "", "")

    def look(self, number: str, fresh: bool) -> _Job | None:
        """How a job is, or was a moment ago; None if Slurm has forgotten it."""
        with self._lock:
            if time.monotonic() - self._looked_at > (_LOOK_S / 10 if fresh else _LOOK_S):
                self._ask()
            return self._jobs.get(number)

    def _ask(self) -> None:
        command = ["squeue", f"--name={self._job_name}", "--states=all", "--noheader", "--format=%i|%T|%B|%r"]
        try:
            listed = _run(command).splitlines()
        except ProviderError as error:  # a controller that restarts does not end jobs: what it said before holds
            logger.warning("Slurm did not say how its jobs are: %s", error)
        else:
            before = self._jobs
            self._jobs = {number: _Job(*rest) for number, *rest in (line.split("|", 3) for line in listed)}
            for number, job in self._jobs.items():
                if job != before.get(number):
                    self._progress(f"job {number}: {job}")
        self._looked_at = time.monotonic()


def _usual_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "envhive" / "slurm"


def _job_name(run_id: str) -> str:
    return f"envhive-{run_id}"


def _environment() -> dict[str, str]:
    """This process's variables without those of a job that it may be in itself."""
    return {
        name: value
        for name, value in without_settings().items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM", "SBATCH_"))
    }


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None, said: str = "", check: bool = True
) -> str:
    """Run one of Slurm's programs; raises `ProviderError` with what it complained about."""
    try:
        done = subprocess.run(
            command, env=environment, input=said, capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProviderError(f"{command[0]} did not run: {error}.") from error
    if check and done.returncode:
        raise ProviderError(f"{command[0]} was refused: {done.stderr.strip() or done.returncode}")
    return done.stdout
