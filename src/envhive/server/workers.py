"""Several processes behind one port, under a supervisor that starts them, restarts the dead, and stops them all."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from envhive.errors import ConfigurationError
from envhive.server.leaving import FORCED_EXIT
from envhive.server.ledger import Ledger
from envhive.sockets import folder_for_sockets

logger: Final = logging.getLogger("envhive.server")

ORDERS: Final = "ENVHIVE_WORKER_ORDERS"
"""Environment variable with which a worker gets its orders."""

_TICK: Final = 0.05
_HEALTHY_AFTER: Final = 5.0
_LONGEST_PAUSE: Final = 10.0
_STOP_SLACK: Final = 10.0
_BAD_CONFIGURATION: Final = 2


def can_run_workers() -> str | None:
    """Why several workers cannot be had here, if they cannot."""
    if not hasattr(socket, "send_fds") or not hasattr(socket, "AF_UNIX"):
        return "this system cannot pass connections between processes"
    return None


@dataclass
class Worker:
    """One worker process, and what became of those before it."""

    index: int
    process: subprocess.Popen[bytes] | None = None
    status: int = -1
    started_at: float = 0.0
    ready: bool = False
    failures: int = 0
    again_at: float = 0.0
    said: bytearray = field(default_factory=bytearray)


class Supervisor:
    """Keeps `count` workers running. It never looks at how busy one is, and never kills one for being slow."""

    def __init__(
        self,
        listener: socket.socket,
        count: int,
        orders: dict[str, Any],
        grace_period: float,
        on_ready: Callable[[dict[str, Any]], None],
    ) -> None:
        self._listener = listener
        self._orders = orders
        self._grace_period = grace_period
        self._on_ready = on_ready
        self._ledger = Ledger.create(count)
        self._workers = [Worker(index) for index in range(count)]
        self._stopping = False
        self._insisted = False
        self._signal = signal.SIGTERM
        self._announced = False
        self._lifeline: tuple[int, int] = os.pipe()

    def run(self) -> int:
        """Run until told to stop. Returns the exit code."""
        folder = str(folder_for_sockets("envhive-", f"{len(self._workers)}.http"))
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for worker in self._workers:
                self._start(worker, folder)
            while not self._stopping:
                time.sleep(_TICK)
                for worker in self._workers:
                    self._look_after(worker, folder)
            return self._end()
        except ConfigurationError:
            self._end()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._ledger.close()
            for descriptor in self._lifeline:
                os.close(descriptor)
            shutil.rmtree(folder, ignore_errors=True)

    def _stop(self, number: int, frame: Any) -> None:
        """The first signal asks to finish; a second one insists."""
        if self._stopping:
            self._insisted = True
            for worker in self._workers:
                if worker.process is not None:
                    worker.process.kill()
        self._stopping = True
        self._signal = signal.Signals(number)

    def _start(self, worker: Worker, folder: str) -> None:
        status_in, status_out = os.pipe()
        os.set_blocking(status_in, False)
        descriptors = {"listener": self._listener.fileno(), "ledger": self._ledger.descriptor}
        descriptors |= {"lifeline": self._lifeline[0], "status": status_out}
        orders = {**self._orders, **descriptors, "index": worker.index, "count": len(self._workers), "folder": folder}
        orders["first"] = not self._announced  # then it waits for the others before it accepts connections
        try:
            worker.process = subprocess.Popen(
                [sys.executable, "-m", "envhive.server.worker"],
                env={**os.environ, ORDERS: json.dumps(orders)},
                pass_fds=tuple(descriptors.values()),
                start_new_session=True,  # Ctrl-C goes to the supervisor, which tells the workers in its own way
            )
        except OSError:
            os.close(status_in)
            raise
        finally:
            os.close(status_out)
        worker.status, worker.started_at, worker.ready, worker.said = status_in, time.monotonic(), False, bytearray()

    def _look_after(self, worker: Worker, folder: str) -> None:
        self._listen_to(worker)
        if worker.process is None:
            if time.monotonic() >= worker.again_at:
                try:
                    self._start(worker, folder)
                except OSError as error:  # no process, or no descriptor, is to be had just now
                    logger.error("Worker %d could not be started: %s", worker.index, error)
                    worker.again_at = time.monotonic() + _LONGEST_PAUSE
        elif (code := worker.process.poll()) is not None:
            self._mourn(worker, code)

    @staticmethod
    def _hear(worker: Worker) -> dict[str, Any] | None:
        """A worker says one thing: that it is ready, or why it cannot start. None as long as it has said nothing."""
        if worker.ready or worker.status < 0:
            return None
        try:
            worker.said += os.read(worker.status, 65536)
        except BlockingIOError:
            return None
        if not worker.said.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(worker.said)
        worker.said.clear()
        worker.ready = "error" not in message
        return message

    def _listen_to(self, worker: Worker) -> None:
        message = self._hear(worker)
        if message is None:
            return
        if not worker.ready:
            if not self._announced:
                raise ConfigurationError(message["error"])
            logger.error("Worker %d cannot start: %s", worker.index, message["error"])
        elif not self._announced and all(other.ready for other in self._workers):
            self._announced = True
            self._on_ready(message)

    def _mourn(self, worker: Worker, code: int) -> None:
        """A worker died: its places are free again, and another takes its number."""
        self._ledger.forget(worker.index)
        self._listen_to(worker)  # it may have said why just before
        os.close(worker.status)
        pid = worker.process.pid if worker.process is not None else 0
        worker.process, worker.status = None, -1
        if code == _BAD_CONFIGURATION and not self._announced:
            raise ConfigurationError(f"Worker {worker.index} could not start.")
        lived = time.monotonic() - worker.started_at
        worker.failures = 0 if worker.ready or lived > _HEALTHY_AFTER else worker.failures + 1
        pause = 0.0 if worker.failures <= 1 else min(_LONGEST_PAUSE, 0.25 * 2**worker.failures)
        worker.again_at = time.monotonic() + pause
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        logger.error("Worker %d (pid %d) %s; starting another in %.1f s", worker.index, pid, how, pause)

    def _end(self) -> int:
        """Tell every worker to stop, wait for them, and end those that do not."""
        running = []
        for worker in self._workers:
            if worker.process is None:
                continue
            running.append(worker.process)
            self._hear(worker)
            if worker.ready:
                worker.process.send_signal(self._signal)
            else:
                worker.process.kill()  # it has no sessions yet, and a signal amidst its imports would be a traceback
        self._listener.close()  # or newcomers would wait for its end when no worker takes them any more
        deadline = time.monotonic() + self._grace_period + _STOP_SLACK
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.error("Worker with pid %d did not stop; killing it", process.pid)
                process.kill()
                process.wait()
        return FORCED_EXIT if self._insisted else 0
