"""Servers across a Ray cluster: each replica is an actor, which keeps one server running on its node.

    RayProvider ──► actor (placed by Ray) ──► guard ──► envhive serve

What dies comes back by itself: a server is started again by its actor, an actor by Ray, elsewhere if its node is gone.
It then has another name, as the sessions of the dead are gone. When this program ends, Ray ends its actors; when an
actor ends, the guard ends its server.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from envhive.errors import ConfigurationError, MissingPackageError, ProviderError
from envhive.providers.base import CommonOptions, Progress, Replica, ServerSpec
from envhive.providers.guarded import Guarded, tail
from envhive.providers.placing import PlacingProvider
from envhive.providers.process import without_settings

if TYPE_CHECKING:
    from envhive.providers.placing import _Place

_LOOK_S: Final = 0.1
_DYING_S: Final = 0.5
"""Before it ends an actor, Ray kills its children, while the actor still runs: nothing is to be begun by then."""
_FRESH_S: Final = 1.0
_ASK_S: Final = 10.0
_SLACK_S: Final = 15.0
_HEALTHY_AFTER_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 30.0
_MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True)
class _Orders:
    """What an actor is to run."""

    run_id: str
    name: str
    arguments: list[str]
    variables: dict[str, str]
    folder: str | None
    """Where this program runs: the place to look for the target, if nodes have it."""
    grace_s: float


@dataclass(frozen=True)
class _Report:
    """What an actor says of its server."""

    replica: Replica | None = None
    failure: str | None = None
    """How it has ended, if it never came up."""


class Keeper:
    """Lives in an actor, and keeps a server running on its node."""

    def __init__(self, orders: _Orders) -> None:
        import ray

        if orders.folder is not None and os.path.isdir(orders.folder):
            os.chdir(orders.folder)
        context = ray.get_runtime_context()
        self._orders = orders
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._node = f"node {context.get_node_id()[:8]} ({self._host})"
        self._folder = self._new_folder()
        self._report = _Report()
        self._left = threading.Event()
        name = _another(orders.name) if context.was_current_actor_reconstructed else orders.name
        self._thread = threading.Thread(target=self._keep, args=(name,), daemon=True)
        self._thread.start()

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"envhive-{self._orders.run_id}-"))

    def report(self) -> _Report:
        return self._report

    def said(self, lines: int) -> str:
        return tail(self._folder / "log", lines)

    def stop(self) -> None:
        self._left.set()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, name: str) -> None:
        """Run a server, and another when it has died. One that does not come up at all is for others to judge."""
        failures = 0
        while not self._left.is_set():
            began = time.monotonic()
            try:
                failure = self._run(name)
            except OSError as error:
                failure = f"could not be started: {error}"
            if failure is not None:
                self._report = _Report(failure=failure)
                return
            self._report = _Report()
            if self._left.wait(_DYING_S):
                return
            # The guard, if it was left alone, removes its server's folder: the next has one of its own.
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._new_folder()
            failures = 0 if time.monotonic() - began > _HEALTHY_AFTER_S else failures + 1
            self._left.wait(0.0 if failures <= 1 else min(_LONGEST_PAUSE_S, 0.5 * 2**failures))
            name = _another(self._orders.name)

    def _run(self, name: str) -> str | None:
        """Run a server to its end; returns how it has ended if it never came up."""
        announced = self._folder / name
        where = ["--host", self._host, "--port", "0", "--announce", str(announced), "--replica", name]
        server = Guarded(
            [sys.executable, "-m", "envhive", "serve", *self._orders.arguments, *where],
            self._folder / "log",
            environment={**without_settings(), "PYTHONPATH": _own_paths(), **self._orders.variables},
            grace_s=self._orders.grace_s,
            remove=self._folder,
            apart=True,  # Ray kills the children of an actor that it ends
        )
        try:
            while server.exit_code is None and not self._left.wait(_LOOK_S):
                if self._report.replica is None and announced.exists():
                    self._report = _Report(self._describe(name, json.loads(announced.read_text())))
            if self._left.is_set() or self._report.replica is not None:
                return None
            return f"ended with code {server.exit_code}"
        finally:
            server.stop()

    def _describe(self, name: str, announced: Mapping[str, int]) -> Replica:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return Replica(name, f"http://{host}:{announced['port']}", f"{self._node}, process {announced['pid']}")


class RayProvider(PlacingProvider):
    """Runs `envhive serve TARGET` in actors of a Ray cluster, on nodes that Ray chooses.

    Example:
        with RayProvider("echo", replicas=3, address="auto") as provider:
            print(provider.base_url)

    Args:
        target: A shipped name, `package.module:Class`, or a folder, that nodes find as this program does.
        address: The cluster's, as `ray.init` takes it; None: the one that `RAY_ADDRESS` names, or a new one on this
            machine. Of no use if this program is connected to Ray already.
        runtime_env: What `ray.init` takes, so that nodes get the target and its packages. The same holds for it.
        resources: Custom resources that each replica needs, and that only some nodes have.
    """

    kind = "ray"

    def __init__(
        self,
        target: str,
        *,
        replicas: int = 1,
        address: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        resources: Mapping[str, float] | None = None,
        start_timeout_s: float = 120.0,
        drain_timeout_s: float = 300.0,
        stop_timeout_s: float = 5.0,
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
        self._address = address
        self._runtime_env = runtime_env
        self._resources = dict(resources or {})
        self._stop_timeout_s = stop_timeout_s
        self._connected = False
        self._actors: dict[str, _Actor] = {}

    def _prepare(self) -> None:
        _connection.open(self._address, self._runtime_env)
        self._connected = True

    def _place(self, name: str) -> None:
        import ray

        wants: dict[str, Any] = {"num_cpus": self.spec.workers if self.spec.cpus is None else self.spec.cpus}
        if self.spec.memory_mb is not None:
            wants["memory"] = self.spec.memory_mb * _MEGABYTE
        if self._resources:
            wants["resources"] = self._resources
        orders = _Orders(
            self.run_id,
            name,
            self.spec.arguments(),
            self.spec.variables(),
            None if "working_dir" in (self._runtime_env or {}) else os.getcwd(),
            self._stop_timeout_s,
        )
        factory = ray.remote(Keeper).options(
            name=f"envhive-{self.run_id}-{name}", scheduling_strategy="SPREAD", max_restarts=-1, **wants
        )
        self._actors[name] = _Actor(factory.remote(orders))

    def _find(self, place: _Place) -> Replica | None:
        """Where it is now: it moves when it has died and come back."""
        return None if place.again_at is not None else self._locate(place.name)

    def _locate(self, name: str) -> Replica | None:
        actor = self._actors.get(name)
        return None if actor is None else actor.look().replica

    def _ended(self, name: str) -> str | None:
        actor = self._actors.get(name)
        return None if actor is None else actor.look().failure

    def _remove(self, name: str) -> None:
        actor = self._actors.get(name)
        if actor is not None:
            actor.end(self._stop_timeout_s + _SLACK_S)
            self._actors.pop(name, None)

    def _said(self, name: str, lines: int) -> str:
        actor = self._actors.get(name)
        return "" if actor is None else actor.said(lines)

    def _clean_up(self) -> None:
        if self._connected:
            self._connected = False
            _connection.close()


class _Actor:
    """A handle of a `Keeper`. Whoever looks hardly waits: the answer is that to the question before, if it is fresh."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._placed = False
        self._report = _Report()
        self._ask()

    def look(self) -> _Report:
        import ray

        with self._lock:
            if not ray.is_initialized():
                return _Report(failure="was ended: this program has left Ray")  # and asking would start another Ray
            was_long_ago = time.monotonic() - self._asked_at > _FRESH_S
            if self._take(0.0) and was_long_ago:
                self._take(_FRESH_S)
            return self._report

    def _ask(self) -> None:
        self._asked, self._asked_at = self._handle.report.remote(), time.monotonic()

    def _take(self, timeout_s: float) -> bool:
        """Take the answer, if there is one, and ask again."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        if self._report.failure is not None or not ray.wait([self._asked], timeout=timeout_s)[0]:
            return False
        try:
            self._report = ray.get(self._asked)
            self._placed = True
        except ActorUnavailableError:  # Ray is starting it again
            self._report = _Report()
        except RayError as error:
            self._report = _Report(failure=f"was given up by Ray: {error}")
        self._ask()
        return True

    def said(self, lines: int) -> str:
        import ray
        from ray.exceptions import RayError

        if not ray.is_initialized():
            return ""
        self.look()
        if not self._placed:
            return "Ray has not found a node for it yet."
        try:
            return str(ray.get(self._handle.said.remote(lines), timeout=_ASK_S))
        except RayError as error:
            return f"Its log cannot be read now: {error}"

    def end(self, timeout_s: float) -> None:
        import ray

        self.look()
        if not ray.is_initialized():
            return
        if self._placed:
            ray.wait([self._handle.stop.remote()], timeout=timeout_s)
        ray.kill(self._handle, no_restart=True)


class _Connection:
    """This program's, to Ray: made by the first provider that needs it, closed by the last, if it was not there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._ours = False

    def open(self, address: str | None, runtime_env: Mapping[str, Any] | None) -> None:
        try:
            import ray
        except ImportError:
            raise MissingPackageError.of("Ray", "ray") from None
        with self._lock:
            if not ray.is_initialized():
                _reach(address or os.environ.get("RAY_ADDRESS"))
                try:
                    ray.init(
                        address=address,
                        runtime_env=None if runtime_env is None else dict(runtime_env),
                        log_to_driver=False,
                        logging_level=logging.WARNING,
                    )
                except (ConnectionError, RuntimeError, ValueError) as error:
                    raise ProviderError(f"Ray cannot be used: {error}") from error
                self._ours = True
            elif runtime_env is not None:
                raise ConfigurationError("This program is connected to Ray already: give runtime_env to ray.init.")
            self._users += 1

    def close(self) -> None:
        import ray

        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                self._ours = False
                ray.shutdown()


_connection: Final = _Connection()


def _reach(address: str | None) -> None:
    """Raises `ProviderError` if nobody is there; `ray.init` would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and "/" not in host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ASK_S).close()
        except OSError as error:
            raise ProviderError(f"Ray does not answer at {address}: {error}.") from error


def _another(name: str) -> str:
    """A name for what comes after one that has died."""
    return f"{name}-{secrets.token_hex(3)}"


def _own_paths() -> str:
    """Where this process finds modules, beside those that are installed: Ray adds the paths of the program."""
    installed = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return os.pathsep.join(path for path in sys.path if os.path.isdir(path) and not path.startswith(installed))
