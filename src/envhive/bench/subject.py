"""The server that is measured: one that the lab starts, and starts again if it dies, or one that runs already."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final, Self
from urllib.parse import urlsplit

from envhive.bench import procfs
from envhive.bench.limits import Budget, allot, cores, is_loopback, local_ports, raise_file_limit, usable_sources
from envhive.bench.room import Room, memory_room
from envhive.bench.servers import Recipe, RunningServer
from envhive.client.options import websocket_url
from envhive.errors import ConfigurationError

GONE: Final = "The server died, and was not started here: the run ends with it."

_DYING_S: Final = 0.5
_PORTS: Final = {"ws": 80, "wss": 443}


class Subject:
    """A context manager: what it starts, it stops."""

    def __init__(
        self,
        *,
        url: str | None = None,
        recipe: Recipe | None = None,
        pid: int | None = None,
        pinned_to: Sequence[int] = (),
    ) -> None:
        self._given_url = url
        self._given_pid = pid
        self._server = None if recipe is None else RunningServer(recipe, pinned_to)

    def __enter__(self) -> Self:
        if self._server is not None:
            self._server.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._server is not None:
            self._server.stop()

    @property
    def url(self) -> str:
        if self._server is not None:
            return self._server.url
        assert self._given_url is not None
        return self._given_url

    @property
    def pid(self) -> int | None:
        """Of the server, where its use of the machine can be read."""
        if not procfs.available():
            return None
        if self._server is None:
            return self._given_pid
        return self._server.pid if self._server.exit_code is None else None

    def died(self, suspected: bool) -> bool:
        """Whether the server has ended; a suspicion is given a moment to come true.

        The connections of a dying process end some milliseconds before the process itself.
        """
        deadline = time.monotonic() + (_DYING_S if suspected else 0.0)
        while True:
            if self._has_ended(suspected):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)

    def _has_ended(self, suspected: bool) -> bool:
        if self._server is not None:
            return self._server.exit_code is not None
        if self._given_pid is not None and procfs.available():
            return not procfs.is_running(self._given_pid)
        return suspected and not _accepts_connections(self.url)

    @property
    def is_ours(self) -> bool:
        """Whether it was started here."""
        return self._server is not None

    @property
    def is_lost(self) -> bool:
        """Whether a server that was not started here, and so cannot be started again, is gone."""
        return self._server is None and self._has_ended(suspected=True)

    @property
    def ready_after_s(self) -> float:
        """How long it took to start, if it was started here."""
        return 0.0 if self._server is None else self._server.ready_after_s

    def revive(self) -> str | None:
        """Start the server again if it died; returns what to say about that."""
        if self._server is None or self._server.exit_code is None:
            return None
        obituary = self._server.obituary()
        self._server.stop()
        self._server.start()
        return f"The server died ({obituary}) and was started again."

    def epitaph(self) -> str | None:
        """What to say in the end of a server that was started here and did not live to see it."""
        if self._server is None or self._server.exit_code is None:
            return None
        return f"The server died ({self._server.obituary()})."

    def obituary(self) -> str:
        """How a server that died has ended, as far as that is known here."""
        known = self._server is not None and self._server.exit_code is not None
        return self._server.obituary() if self._server is not None and known else "it no longer accepts connections"

    def usage(self) -> procfs.Usage | None:
        return None if self.pid is None else procfs.usage(self.pid)

    def memory_left(self) -> Room | None:
        return None if self.pid is None else memory_room(self.pid)

    def cpu_s(self) -> float | None:
        return None if self.pid is None else procfs.cpu_seconds(procfs.tree(self.pid))

    def budget(self, sessions: int, processes: int | None) -> Budget:
        """How so many sessions can be opened from here; raises with one line if they cannot."""
        return allot(
            sessions,
            files=raise_file_limit(),
            ports=local_ports(),
            addresses=usable_sources() if is_loopback(self.url) else 0,
            processes=processes,
            available_cores=len(cores()),
            server_processes=None if self._server is None else self._server.recipe.processes,
        )


def _accepts_connections(url: str) -> bool:
    parts = urlsplit(websocket_url(url))
    try:
        socket.create_connection((parts.hostname or "", parts.port or _PORTS[parts.scheme]), timeout=5).close()
    except TimeoutError:
        return True  # it may be busy
    except OSError:
        return False
    return True


def check_reachable(url: str) -> str | None:
    """A slip in the address is told at once, not counted 16,384 times. Returns what is odd about who answers."""
    try:
        parts = urlsplit(websocket_url(url))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    kind = http.client.HTTPSConnection if parts.scheme == "wss" else http.client.HTTPConnection
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=10)) as connection:
        try:
            connection.request("GET", parts.path.removesuffix("/ws") + "/health")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ConfigurationError(
                    f"{url} shows a certificate that is not trusted here ({error.verify_message}): SSL_CERT_FILE names "
                    f"a file of those to trust."
                ) from None
            if isinstance(error, ssl.SSLError):
                raise ConfigurationError(f"{url} does not speak TLS ({error.reason}): is it http?") from None
            raise ConfigurationError(f"No server answers at {url}: {error or type(error).__name__}.") from None
    if answer.status == http.client.NOT_FOUND:
        return f"{url} has no /health: is it a server of environments?"
    return None
