"""Servers as the tasks of a Docker Swarm service, which places them on its nodes and brings back those that die."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import CommonOptions, Progress, Provider, Replica, ServerSpec
from envhive.providers.container import (
    RUN_LABEL,
    ContainerCalls,
    command_of,
    image_of,
    labels_of,
    variables_of,
)
from envhive.providers.docker_engine import at_host, connect, talking
from envhive.providers.guarded import Guarded
from envhive.providers.sweep import by_hand, sweeping

logger: Final = logging.getLogger("envhive.providers")

_LOOK_S: Final = 0.2
_SLACK_S: Final = 10.0
_SECOND: Final = 1_000_000_000
"""Docker counts in nanoseconds."""
_FAILURES: Final = 2
"""So many times a task may fail at its start before waiting for it is given up."""
_UPDATE_ATTEMPTS: Final = 10
_NAME: Final = "r{{.Task.Slot}}-{{.Task.ID}}"
"""A task that takes the place of a dead one has another id, so nobody takes it for the owner of the dead's sessions."""
_CHECK_STARTING_S: Final = 1
_CHECK_S: Final = 5
_API_WITH_START_INTERVAL: Final = (1, 44)


class DockerSwarmProvider(ContainerCalls, Provider):
    """Runs an image's server as one service with many tasks, each on a port of its node that Swarm chooses.

    Swarm publishes these ports on all addresses of its nodes: ask for a token where others can reach them. A task
    that is to go is sent SIGTERM, upon which EnvHive lets its sessions finish, for at most `drain_timeout_s`.

    Example:
        with Fleet(DockerSwarmProvider("my-env:latest", replicas=4)) as fleet:
            print(fleet.url)

    Args:
        image: What to run; the nodes pull it.
        target: What `envhive serve` is to serve in it; by default the image knows.
        container_port: Where the server listens inside.
        init_swarm: Make this Docker a swarm of its own if it is in none. It stays one.
        advertise_addr: The address of such a swarm's first node.
        constraints: Where tasks may run, such as `node.labels.gpu==true`.
        docker_host: Where Docker's daemon is; it must be a manager's.
        stop_timeout_s: How long servers of this machine may take to end, when all is stopped, before they are killed.
    """

    kind = "swarm"

    def __init__(
        self,
        image: str | None = None,
        *,
        target: str | None = None,
        replicas: int = 1,
        container_port: int = 8000,
        init_swarm: bool = False,
        advertise_addr: str = "127.0.0.1",
        constraints: Sequence[str] = (),
        docker_host: str | None = None,
        start_timeout_s: float = 180.0,
        drain_timeout_s: float = 300.0,
        stop_timeout_s: float = 5.0,
        progress: Progress | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            ServerSpec(image=image, target=target, **common),
            replicas=replicas,
            start_timeout_s=start_timeout_s,
            progress=progress,
        )
        self.drain_timeout_s = drain_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._container_port = container_port
        self._published_port: int | None = None
        self._init_swarm = init_swarm
        self._advertise_addr = advertise_addr
        self._constraints = list(constraints)
        self._docker_host = docker_host
        self._docker: Any = None
        self._guard: Guarded | None = None
        self._service: str | None = None
        self._updates_forced = 0
        self._known_failures: set[str] = set()
        self._nodes: dict[str, tuple[str, str]] = {}
        self._ports: dict[str, int] = {}
        """Of tasks: of those that are to go Swarm says none any longer, while their sessions still use it."""
        self._lock = threading.RLock()

    # The service.

    def _scale(self, count: int) -> None:
        with self._lock:
            if self._service is None:
                self._create(count)
            else:
                self._known_failures = {task["ID"] for task in self._failed_tasks()}
                self._update(count)
        self._wait(self._nobody_leaves, "sessions to finish", self.drain_timeout_s + _SLACK_S)

    def _create(self, count: int) -> None:
        image_of(self.spec)
        self._released.clear()
        self._docker = connect(self._docker_host)
        self._require_swarm()
        self._guard = sweeping("swarm", self.run_id, environment=at_host(self._docker_host))
        self._tell(f"placing {count} tasks")
        with talking():
            self._service = self._docker.api.create_service(**self._wanted(count))["ID"]

    def _require_swarm(self) -> None:
        with talking():
            swarm = self._docker.info().get("Swarm", {})
            if swarm.get("LocalNodeState") == "inactive" and self._init_swarm:
                address = self._advertise_addr
                self._docker.swarm.init(advertise_addr=address, listen_addr=f"{address}:2377")
                return
        if swarm.get("LocalNodeState") != "active":
            raise ProviderError(
                f"This Docker is in no swarm (its state is {swarm.get('LocalNodeState', 'unknown')}). For one of this "
                f"machine: docker swarm init --advertise-addr {self._advertise_addr}, or init_swarm=True."
            )
        if not swarm.get("ControlAvailable"):
            raise ProviderError(
                "This Docker is a worker of its swarm, and only managers take orders: set DOCKER_HOST to a manager's, "
                "such as ssh://user@manager."
            )

    def _wanted(self, count: int) -> dict[str, Any]:
        """The whole service, as Docker's API has it."""
        spec = self.spec
        container = {
            "Image": image_of(spec),
            "Args": command_of(spec),
            "Env": [f"{name}={value}" for name, value in self._variables().items()],
            "Labels": labels_of(self.run_id),
            "StopGracePeriod": int((self.drain_timeout_s + _SLACK_S) * _SECOND),
            "Healthcheck": self._how_often_to_check(),
        }
        limits = {
            **({} if spec.cpus is None else {"NanoCPUs": int(spec.cpus * 1e9)}),
            **({} if spec.memory_mb is None else {"MemoryBytes": spec.memory_mb * 1024 * 1024}),
        }
        port = {"Protocol": "tcp", "TargetPort": self._container_port, "PublishMode": "host"}
        return {
            "name": f"envhive-{self.run_id}",
            "labels": labels_of(self.run_id),
            "mode": {"Replicated": {"Replicas": count}},
            "task_template": {
                "ContainerSpec": container,
                "Resources": {"Limits": limits, "Reservations": limits},
                "RestartPolicy": {"Condition": "any", "Delay": _SECOND},
                "Placement": {"Constraints": self._constraints},
                "ForceUpdate": self._updates_forced,
            },
            "update_config": {"Parallelism": 1, "Order": "start-first", "FailureAction": "pause", "Monitor": _SECOND},
            "endpoint_spec": {
                "Ports": [port if self._published_port is None else {**port, "PublishedPort": self._published_port}]
            },
        }

    def _variables(self) -> dict[str, str]:
        grace = {"ENVHIVE_GRACE_PERIOD": f"{self.drain_timeout_s:g}"}
        given = {**grace, **variables_of(self.spec, self._container_port)}
        plain = {name: value.replace("{{", '{{"{{"}}') for name, value in given.items()}  # Swarm fills in templates
        return {**plain, "ENVHIVE_REPLICA": _NAME}

    def _how_often_to_check(self) -> dict[str, int]:
        """What to run is the image's own. A task counts as running, and has a port, when it has succeeded once."""
        version = tuple(int(part) for part in self._docker.api.api_version.split("."))
        if version < _API_WITH_START_INTERVAL:
            return {"Interval": _CHECK_S * _SECOND}
        return {"StartInterval": _CHECK_STARTING_S * _SECOND}

    def _update(self, count: int) -> None:
        from docker.errors import APIError

        with talking():
            for attempt in range(_UPDATE_ATTEMPTS):
                version = self._docker.api.inspect_service(self._service)["Version"]["Index"]
                try:
                    self._docker.api.update_service(self._service, version, **self._wanted(count))
                    return
                except APIError as error:
                    if "out of sequence" not in str(error) or attempt == _UPDATE_ATTEMPTS - 1:
                        raise  # else Swarm itself has written to the service meanwhile

    def restart(self) -> None:
        with self._lock:
            if self._service is None:
                raise ProviderError("This provider has not been started.")
            self._updates_forced += 1
            self._update(self.count)
        limit = self.count * (self.start_timeout_s + self.drain_timeout_s)
        self._wait(self._is_updated, "tasks to be replaced", limit)
        self._wait(self._nobody_leaves, "sessions to finish", self.drain_timeout_s + _SLACK_S)

    def _is_updated(self) -> bool:
        with talking():
            status = self._docker.api.inspect_service(self._service).get("UpdateStatus", {})
        if status.get("State") == "paused":
            raise ProviderError(self._with_last_words(f"Swarm has stopped replacing tasks: {status.get('Message')}."))
        return bool(status.get("State") == "completed")

    def _nobody_leaves(self) -> bool:
        """Swarm takes a moment until it has decided who is to go."""
        wanted = [task for task in self._tasks() if task["DesiredState"] == "running"]
        return len(wanted) <= self.count and not any(replica.draining for replica in self.replicas())

    def tend(self) -> None:
        """Swarm does it."""

    # Its tasks.

    def replicas(self) -> list[Replica]:
        return [replica for task in self._tasks() if (replica := self._replica(task)) is not None]

    def _tasks(self) -> list[dict[str, Any]]:
        if self._service is None:
            return []
        with talking():
            tasks: list[dict[str, Any]] = self._docker.api.tasks(filters={"service": self._service})
        return sorted(tasks, key=lambda task: (task.get("Slot", 0), task["CreatedAt"]))

    def _replica(self, task: dict[str, Any]) -> Replica | None:
        status = task["Status"]
        if status["State"] != "running":
            return None
        ports = status.get("PortStatus", {}).get("Ports", [])
        published = [port["PublishedPort"] for port in ports if port["TargetPort"] == self._container_port]
        address, node = self._node(task["NodeID"])
        if published:  # for IPv4 first and then for IPv6; they may differ, and then each may be another task's, too
            self._ports[task["ID"]] = published[-1 if ":" in address else 0]
        if task["ID"] not in self._ports:
            return None
        host = f"[{address}]" if ":" in address else address
        return Replica(
            f"r{task['Slot']}-{task['ID']}",
            f"http://{host}:{self._ports[task['ID']]}",
            f"task {task['ID'][:12]} on {node}",
            draining=task["DesiredState"] != "running",
        )

    def _node(self, node_id: str) -> tuple[str, str]:
        """A node's address, and its name."""
        if node_id not in self._nodes:
            with talking():
                node = self._docker.api.inspect_node(node_id)
            address = node["Status"].get("Addr", "")
            if address in ("", "0.0.0.0"):  # as managers of some versions say of themselves
                address = node.get("ManagerStatus", {}).get("Addr", "").rpartition(":")[0]
            self._nodes[node_id] = (address, node["Description"]["Hostname"])
        return self._nodes[node_id]

    def _failed_tasks(self) -> list[dict[str, Any]]:
        return [task for task in self._tasks() if task["Status"]["State"] in ("failed", "rejected")]

    def _failure(self) -> str | None:
        failed = [task for task in self._failed_tasks() if task["ID"] not in self._known_failures]
        for slot, times in Counter(task.get("Slot") for task in failed).items():
            if times >= _FAILURES:
                last = [task for task in failed if task.get("Slot") == slot][-1]["Status"]
                return (
                    f"Task {slot} has ended {times} times ({last['State']}): {last.get('Err') or last.get('Message')}."
                )
        return None

    def logs(self, lines: int = 100) -> str:
        if self._service is None:
            return ""
        with talking():
            stream: Iterator[bytes] = self._docker.api.service_logs(
                self._service, stdout=True, stderr=True, tail=lines, is_tty=False
            )
            return b"".join(stream).decode(errors="replace")

    # The end.

    def _release(self) -> None:
        self._released.set()
        with self._lock:
            service, self._service = self._service, None
            if service is not None:
                try:
                    self._remove(service)
                except ProviderError as error:
                    again = by_hand("swarm", self.run_id)
                    logger.warning("The service %s could not be removed (%s); to try again: %s", service, error, again)
            guard, self._guard = self._guard, None
            if guard is not None:
                guard.stop()
            client, self._docker = self._docker, None
            if client is not None:
                client.close()

    def _remove(self, service: str) -> None:
        """Remove the service, and see to it that its containers of this machine end soon: Swarm lets them drain."""
        from docker.errors import APIError, NotFound

        with talking():
            with contextlib.suppress(NotFound):
                self._docker.api.remove_service(service)
            deadline = time.monotonic() + self._stop_timeout_s
            while left := self._containers():
                if time.monotonic() > deadline:
                    for container in left:
                        with contextlib.suppress(APIError):  # Swarm is removing it already
                            self._docker.api.remove_container(container["Id"], force=True, v=True)
                time.sleep(_LOOK_S)

    def _containers(self) -> list[Any]:
        found: list[Any] = self._docker.api.containers(all=True, filters={"label": f"{RUN_LABEL}={self.run_id}"})
        return found

    # OpenEnv's calls.

    def _take(self, port: int | None, options: Mapping[str, Any]) -> None:
        unknown = set(options) - {"replicas"}
        if unknown:
            raise ConfigurationError(
                f"start_container does not take {', '.join(sorted(unknown))}: give them to the provider's constructor."
            )
        self._published_port = port
        self.count = int(options.get("replicas", self.count))
        if self.count > 1:
            logger.warning("One address leads to one of %d replicas; a Fleet has one for all", self.count)

    def _first_address(self) -> str:
        deadline = time.monotonic() + self.start_timeout_s
        while not (replicas := self.replicas()):
            if (failure := self._failure()) is not None or time.monotonic() > deadline:
                raise ProviderError(self._with_last_words(failure or "No task ran in time."))
            time.sleep(_LOOK_S)
        return replicas[0].url
