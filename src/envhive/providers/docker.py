"""Servers as containers of this machine."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Unpack

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import CommonOptions, Progress, Replica, ServerSpec
from envhive.providers.container import (
    REPLICA_LABEL,
    RUN_LABEL,
    ContainerCalls,
    command_of,
    image_of,
    labels_of,
    variables_of,
)
from envhive.providers.docker_engine import Pull, at_host, connect, require_image, talking
from envhive.providers.guarded import Guarded
from envhive.providers.placing import PlacingProvider
from envhive.providers.sweep import by_hand, sweeping

logger: Final = logging.getLogger("envhive.providers")

_LOOK_S: Final = 0.1
_OVER: Final = ("exited", "dead", "removing")


class LocalDockerProvider(ContainerCalls, PlacingProvider):
    """Runs an image's server here, a container a replica, on ports that Docker chooses.

    The image need not have EnvHive in it: any OpenEnv server that answers `/health` will do.

    Example:
        with LocalDockerProvider("my-env:latest", replicas=2) as provider:
            print(provider.base_url)

    Args:
        image: What to run; pulled if it is not here.
        target: What `envhive serve` is to serve in it; by default the image knows.
        container_port: Where the server listens inside.
        host: The address of this machine that ports are published on.
        pull: When to ask the image's registry: `missing`, `always` or `never`.
        docker_host: Where Docker's daemon is, if not where `DOCKER_HOST` or Docker's context says.
        run_options: More keywords for the Docker SDK's `containers.create`, such as `volumes` or `device_requests`.
        stop_timeout_s: How long a server may take to end before it is killed.
    """

    kind = "docker"

    def __init__(
        self,
        image: str | None = None,
        *,
        target: str | None = None,
        replicas: int = 1,
        container_port: int = 8000,
        host: str = "127.0.0.1",
        pull: Pull = "missing",
        docker_host: str | None = None,
        run_options: Mapping[str, Any] | None = None,
        start_timeout_s: float = 120.0,
        drain_timeout_s: float = 300.0,
        stop_timeout_s: float = 5.0,
        progress: Progress | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            ServerSpec(image=image, target=target, **common),
            replicas=replicas,
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
            progress=progress,
        )
        self._container_port = container_port
        self._host = host
        self._published_port: int | None = None
        self._pull = pull
        self._docker_host = docker_host
        self._run_options = dict(run_options or {})
        self._stop_timeout_s = stop_timeout_s
        self._docker: Any = None
        self._guard: Guarded | None = None
        self._began: dict[str, float] = {}
        self._looking = threading.Lock()
        self._looked = 0.0
        self._seen: dict[str, dict[str, Any]] = {}

    def _take(self, port: int | None, options: Mapping[str, Any]) -> None:
        if port is not None and self.count > 1:
            raise ConfigurationError(f"{self.count} replicas cannot all have port {port}.")
        self._published_port = port
        self._run_options.update(options)

    def _prepare(self) -> None:
        image = image_of(self.spec)
        self._docker = connect(self._docker_host)
        require_image(self._docker, image, self._pull, self._tell)
        self._guard = sweeping("docker", self.run_id, environment=at_host(self._docker_host))

    def _place(self, name: str) -> None:
        spec = self.spec
        labels = {**labels_of(self.run_id), REPLICA_LABEL: name}
        variables = {**variables_of(spec, self._container_port), "ENVHIVE_REPLICA": name}
        settings: dict[str, Any] = {
            "command": command_of(spec),
            "name": self._container_name(name),
            "ports": {f"{self._container_port}/tcp": (self._host, self._published_port)},
            "nano_cpus": None if spec.cpus is None else int(spec.cpus * 1e9),
            "mem_limit": None if spec.memory_mb is None else f"{spec.memory_mb}m",
            **self._run_options,
        }
        settings["labels"] = {**settings.get("labels", {}), **labels}
        settings["environment"] = {**settings.get("environment", {}), **variables}
        with talking():
            container = self._docker.containers.create(image_of(spec), **settings)
            try:
                container.start()
            except BaseException:  # Ctrl-C too: what is half made is not left behind
                container.remove(force=True, v=True)
                raise
        self._began[name] = time.monotonic()

    def _locate(self, name: str) -> Replica | None:
        for port in self._look().get(name, {}).get("Ports", []):
            if port.get("PrivatePort") == self._container_port and port.get("PublicPort"):
                host = f"[{self._host}]" if ":" in self._host else self._host
                return Replica(name, f"http://{host}:{port['PublicPort']}", f"container {self._container_name(name)}")
        return None

    def _ended(self, name: str) -> str | None:
        began = self._began.get(name)
        if began is None:  # it is being started, or has been removed
            return None
        container = self._look().get(name)
        if container is None:
            return "is gone" if self._looked > began else None
        if container["State"] not in _OVER:
            return None
        with talking():
            state = self._docker.api.inspect_container(container["Id"])["State"]
        return f"ended with code {state['ExitCode']}{' (out of memory)' if state.get('OOMKilled') else ''}"

    def _look(self) -> dict[str, dict[str, Any]]:
        """All containers of this run, by replica: one question for all of them, and not too often."""
        with self._looking:
            now = time.monotonic()
            if now - self._looked > _LOOK_S:
                with talking():
                    found = self._docker.api.containers(all=True, filters={"label": f"{RUN_LABEL}={self.run_id}"})
                self._seen = {container["Labels"][REPLICA_LABEL]: container for container in found}
                self._looked = now
            return self._seen

    def _remove(self, name: str) -> None:
        self._began.pop(name, None)
        try:
            self._end(self._container_name(name))
        except ProviderError as error:
            logger.warning(
                "Replica %s could not be removed (%s); to try again: %s", name, error, by_hand("docker", self.run_id)
            )

    def _end(self, container_name: str) -> None:
        from docker.errors import APIError, NotFound
        from requests.exceptions import RequestException

        with talking(), contextlib.suppress(NotFound):
            container = self._docker.containers.get(container_name)
            if container.status == "running":
                # Not SIGTERM, which asks EnvHive to wait for its sessions: those were waited for, or are not wanted.
                with contextlib.suppress(APIError):  # it ended in this moment
                    container.kill("SIGINT")
                with contextlib.suppress(RequestException):  # it would not
                    container.wait(timeout=self._stop_timeout_s)
            with contextlib.suppress(APIError):  # the daemon is removing it already
                container.remove(force=True, v=True)

    def _said(self, name: str, lines: int) -> str:
        with talking():
            text: bytes = self._docker.api.logs(self._container_name(name), tail=lines)
        return text.decode(errors="replace")

    def _clean_up(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.stop()
        client, self._docker = self._docker, None
        if client is not None:
            client.close()

    def _container_name(self, name: str) -> str:
        return f"envhive-{self.run_id}-{name}"
