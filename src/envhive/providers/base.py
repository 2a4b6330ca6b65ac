"""Where servers run. A provider starts them somewhere, says where they answer, and leaves nothing behind.

    ServerSpec ──► Provider.start() ──► replicas, each with an address ──► a client, or a Fleet in front of them

A provider has from one to many replicas of the same server. Each has a name, which the ids of its sessions begin
with, and an address. What differs between engines is how a replica is placed and how it is taken away; starting
together, waiting, failing cleanly, and scaling are the same for all, and are here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, TypedDict
from urllib.parse import urlsplit

from envhive.errors import ConfigurationError, ProviderError

Progress = Callable[[str], None]
"""Is told, in a sentence, what is being waited for."""

_LOOK_S: Final = 0.05
_LONGEST_LOOK_S: Final = 0.5
_HEALTH_TIMEOUT_S: Final = 5.0
_COMPLAINT: Final = 300
"""Characters of what a server that is not well says of itself."""


class CommonOptions(TypedDict, total=False):
    """What every provider takes beside what it runs."""

    workers: int
    max_sessions: int | None
    environment: Mapping[str, str]
    token: str | None
    cpus: float | None
    memory_mb: int | None
    settings: Mapping[str, Any]
    options: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """What runs in every replica, wherever that is."""

    target: str | None = None
    """What `envhive serve` takes: a shipped name, `package.module:Class`, or a folder. None: the image knows."""
    image: str | None = None
    workers: int = 1
    max_sessions: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the server and its environments."""
    token: str | None = None
    """Asked of clients; they get it from the provider."""
    cpus: float | None = None
    memory_mb: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for the environment's constructor."""
    options: tuple[str, ...] = ()
    """More options of `envhive serve`, as on a command line."""

    def __post_init__(self) -> None:
        if self.workers < 1 or (self.max_sessions is not None and self.max_sessions < 1):
            raise ConfigurationError("workers and max_sessions must be at least 1.")

    def variables(self) -> dict[str, str]:
        """What the server is told through its environment, which nobody else on its machine can read."""
        variables = {"WORKERS": str(self.workers)}
        if self.max_sessions is not None:
            variables["MAX_CONCURRENT_ENVS"] = str(self.max_sessions)
        if self.token is not None:
            variables["ENVHIVE_TOKENS"] = self.token
        return {**variables, **self.environment}

    def arguments(self) -> list[str]:
        """What follows `envhive serve`."""
        if self.target is None:
            raise ConfigurationError("Say what to serve: a shipped name, package.module:Class, or a folder.")
        settings = [word for name, value in self.settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        return [self.target, *settings, *self.options]


@dataclass(frozen=True)
class Replica:
    """One server, as others see it."""

    name: str
    """Letters, digits and dashes; the ids of its sessions begin with it and a dot."""
    url: str
    where: str = ""
    """The process, container, node or job, for people."""
    draining: bool = False
    """Whether it takes no new sessions because it is about to go."""


class Provider(ABC):
    """Servers somewhere. A context manager: what was started is stopped, whatever happens.

    Args:
        spec: What to run.
        replicas: How many of it.
        start_timeout_s: How long all of them may take until they are healthy.
        progress: Is told what is being waited for.
    """

    kind: ClassVar[str]
    """Its name on the command line."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        replicas: int = 1,
        start_timeout_s: float = 120.0,
        progress: Progress | None = None,
    ) -> None:
        if replicas < 1:
            raise ConfigurationError("A provider needs at least one replica.")
        self.spec = spec
        self.count = replicas
        self.start_timeout_s = start_timeout_s
        self.run_id = f"{os.getpid()}-{secrets.token_hex(4)}"
        """Names what this provider starts, so that it can be told from what others have started."""
        self.progress = progress
        self.on_joined: Callable[[], None] | None = None
        """Called when new replicas are healthy, before any that they replace are taken away: a proxy may have to hear
        of them first."""
        self._started = False
        self._released = threading.Event()
        """Set when all is stopped: whoever waits for a replica waits no longer."""

    # What an engine does in its own way.

    @abstractmethod
    def _scale(self, count: int) -> None:
        """Begin to have `count` replicas, without waiting for them. Those that go let their sessions finish."""

    @abstractmethod
    def replicas(self) -> list[Replica]:
        """Those that have an address, healthy or not."""

    @abstractmethod
    def logs(self, lines: int = 100) -> str:
        """The last lines of what the replicas have said."""

    @abstractmethod
    def _release(self) -> None:
        """Stop all of it, in whatever state it is. May be called at any time, and twice."""

    def _failure(self) -> str | None:
        """Why waiting is in vain: a replica has ended, and the engine will not start it again."""
        return None

    @abstractmethod
    def restart(self) -> None:
        """Replace every replica by a fresh one, one at a time: first the new, then the old lets its sessions finish."""

    @abstractmethod
    def tend(self) -> None:
        """Bring back replicas that have died, where the engine does not do so by itself."""

    # What is the same everywhere.

    @property
    def token(self) -> str | None:
        """What the servers ask of clients."""
        return self.spec.token

    def _tell(self, sentence: str) -> None:
        if self.progress is not None:
            self.progress(sentence)

    def start(self) -> str:
        """Start all replicas, wait until they are healthy, and return the address of the first."""
        if self._started:
            raise ProviderError("This provider has been started already.")
        self._started = True
        try:
            self._scale(self.count)
            self.wait_ready()
            return self.base_url
        except BaseException:  # Ctrl-C too: what is half started is stopped
            self.stop()
            raise

    def wait_ready(self, timeout_s: float | None = None, *, patient: bool = False) -> None:
        """Wait until every replica is healthy; raises `ProviderError`, with the last that they said, if not.

        `patient` waits also while one has died: somebody may be about to replace it.
        """
        deadline = time.monotonic() + (self.start_timeout_s if timeout_s is None else timeout_s)
        healthy: set[Replica] = set()
        pause, said = _LOOK_S, ""
        while True:
            there = [replica for replica in self.replicas() if not replica.draining]
            healthy = {replica for replica in there if replica in healthy or is_healthy(replica.url)}
            if len(healthy) >= self.count:
                return
            if not patient and (failure := self._failure()) is not None:
                raise ProviderError(self._with_last_words(failure))
            if time.monotonic() > deadline:
                late = [f"{len(healthy)} of {self.count} replicas were healthy in time."]
                late += [_complaint(replica) for replica in there if replica not in healthy]
                raise ProviderError(self._with_last_words(" ".join(late)))
            sentence = f"{len(healthy)} of {self.count} replicas healthy, {len(there)} with an address"
            if sentence != said:
                self._tell(sentence)
                said = sentence
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_LOOK_S)

    def _wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait until an engine has done what it was asked for, and say so."""
        deadline = time.monotonic() + timeout_s
        told = False
        while not condition():
            if time.monotonic() > deadline:
                raise ProviderError(f"Waited {timeout_s:g} s for {what}, in vain.")
            if not told:
                self._tell(f"waiting for {what}")
                told = True
            if self._released.wait(_LONGEST_LOOK_S):
                return

    def scale(self, count: int) -> None:
        """Have `count` replicas from now on. New ones are waited for; those that go let their sessions finish."""
        if count < 1:
            raise ConfigurationError("A provider needs at least one replica.")
        self.count = count
        self._scale(count)
        self._join()

    def _join(self) -> None:
        """Wait for new replicas while others are at work."""
        self.wait_ready(patient=True)
        if self.on_joined is not None:
            self.on_joined()

    def stop(self) -> None:
        """Stop everything. May be called twice."""
        self._release()
        self._started = False

    @property
    def base_url(self) -> str:
        """The address of the first replica."""
        replicas = self.replicas()
        if not replicas:
            raise ProviderError("This provider has not been started.")
        return replicas[0].url

    def _with_last_words(self, sentence: str) -> str:
        with contextlib.suppress(Exception):  # whatever keeps the log from being read, the sentence matters more
            words = self.logs(20).strip()
            if words:
                return f"{sentence} The last it said:\n{words}"
        return sentence

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _complaint(replica: Replica) -> str:
    status, said = ask(replica.url, "GET", "/health", timeout_s=_HEALTH_TIMEOUT_S)
    what = f"answers {status}" if status else "does not answer"
    return f"{replica.where or replica.name} {what} at {replica.url}: {said.decode(errors='replace')[:_COMPLAINT]}."


def is_healthy(url: str) -> bool:
    """Whether a server answers, and would take sessions."""
    return ask(url, "GET", "/health", timeout_s=_HEALTH_TIMEOUT_S)[0] == 200


def ask(
    url: str, method: str, path: str, *, token: str | None = None, timeout_s: float = _HEALTH_TIMEOUT_S
) -> tuple[int, bytes]:
    """A plain HTTP request: status and body; status 0, and why, if there was no answer."""
    parts = urlsplit(url)
    factory = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = factory(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request(method, parts.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def drain(url: str, token: str | None, timeout_s: float, given_up: threading.Event) -> None:
    """Let a server's sessions finish: it takes no new ones. Returns when it has none, is gone, or time is up.

    A server that does not know how to drain, as it is not EnvHive's, is not waited for.
    """
    deadline = time.monotonic() + timeout_s
    status, body = ask(url, "POST", "/drain", token=token)
    if status != 200:
        return
    while status and time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            if not json.loads(body).get("active_sessions"):
                return
        if given_up.wait(_LOOK_S):
            return
        status, body = ask(url, "GET", "/health", token=token)
