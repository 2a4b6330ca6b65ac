"""Servers as the pods of a Kubernetes Deployment. Tried against a stand-in for the API alone, not on a cluster."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Unpack

from envhive.errors import MissingPackageError, ProviderError
from envhive.providers.base import CommonOptions, Progress, Provider, Replica, ServerSpec
from envhive.providers.container import OWNER_LABEL, RUN_LABEL, labels_of
from envhive.providers.guarded import Guarded
from envhive.providers.manifests import manifests
from envhive.providers.sweep import by_hand, sweeping

logger: Final = logging.getLogger("envhive.providers")

_LOOK_S: Final = 0.5
_SLACK_S: Final = 30.0
_REACHED_S: Final = 15.0
"""A pod that Kubernetes finds ready and we cannot reach for so long, we cannot reach at all."""
_HOPELESS: Final = {
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
}


class KubernetesProvider(Provider):
    """Runs an image's server as a Deployment with a Service, and gives the addresses of its pods.

    Those are reached from inside the cluster. From outside use `kubectl port-forward`, or run a Fleet inside.
    A pod that is to go is sent SIGTERM, upon which EnvHive lets its sessions finish, for at most `drain_timeout_s`.

    Example:
        with Fleet(KubernetesProvider("registry.example.org/my-env:1.0", replicas=4)) as fleet:
            print(fleet.url)

    Args:
        image: What to run.
        target: What `envhive serve` is to serve in it; by default the image knows.
        namespace: Where in the cluster; by default where this process's pod is, or what the configuration says.
        context: Which of the configured clusters.
        container_port: Where the server listens.
        stop_timeout_s: How long pods may take to end, when all is stopped, before they are killed.
    """

    kind = "kubernetes"

    def __init__(
        self,
        image: str,
        *,
        target: str | None = None,
        replicas: int = 1,
        namespace: str | None = None,
        context: str | None = None,
        container_port: int = 8000,
        start_timeout_s: float = 300.0,
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
        self.name = f"envhive-{self.run_id}"
        self.drain_timeout_s = drain_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._namespace = namespace
        self._context = context
        self._container_port = container_port
        self._api: Any = None
        self._guard: Guarded | None = None
        self._ready_since: float | None = None
        self._lock = threading.RLock()

    def _scale(self, count: int) -> None:
        with self._lock, talking():
            if self._api is None:
                self._create(count)
            else:
                self._apps().patch_namespaced_deployment_scale(
                    self.name, self._namespace, {"spec": {"replicas": count}}
                )
            self._ready_since = None
        self._wait(self._nobody_leaves, "sessions to finish", self.drain_timeout_s + _SLACK_S)

    def _create(self, count: int) -> None:
        from kubernetes.client import CoreV1Api

        self._released.clear()
        self._api = connect(self._context)
        self._namespace = self._namespace or _usual_namespace(self._context)
        options = ["--namespace", self._namespace, *([] if self._context is None else ["--context", self._context])]
        self._guard = sweeping("kubernetes", self.run_id, *options)
        self._tell(f"placing {count} pods")
        create: dict[str, Callable[..., Any]] = {
            "Secret": CoreV1Api(self._api).create_namespaced_secret,
            "Service": CoreV1Api(self._api).create_namespaced_service,
            "Deployment": self._apps().create_namespaced_deployment,
        }
        for manifest in self.manifests(count):
            create[manifest["kind"]](self._namespace, manifest)

    def manifests(self, count: int | None = None) -> list[dict[str, Any]]:
        """What is applied."""
        labels = labels_of(self.run_id)
        return manifests(
            self.spec,
            name=self.name,
            namespace=self._namespace,
            replicas=self.count if count is None else count,
            container_port=self._container_port,
            drain_timeout_s=self.drain_timeout_s,
            labels={RUN_LABEL: labels[RUN_LABEL]},
            annotations={OWNER_LABEL: labels[OWNER_LABEL]},
        )

    def restart(self) -> None:
        if self._api is None:
            raise ProviderError("This provider has not been started.")
        now = {"envhive.restarted": datetime.now(UTC).isoformat()}
        with talking():
            self._apps().patch_namespaced_deployment(
                self.name, self._namespace, {"spec": {"template": {"metadata": {"annotations": now}}}}
            )
        limit = self.count * (self.start_timeout_s + self.drain_timeout_s)
        self._wait(self._is_rolled_out, "pods to be replaced", limit)
        self._wait(self._nobody_leaves, "sessions to finish", self.drain_timeout_s + _SLACK_S)

    def _is_rolled_out(self) -> bool:
        with talking():
            deployment = self._apps().read_namespaced_deployment(self.name, self._namespace)
        status = deployment.status
        return (
            (status.observed_generation or 0) >= deployment.metadata.generation
            and (status.updated_replicas or 0) >= self.count
            and (status.available_replicas or 0) >= self.count
            and (status.replicas or 0) == (status.updated_replicas or 0)
        )

    def _nobody_leaves(self) -> bool:
        """Kubernetes takes a moment until it has decided who is to go: until then there are too many."""
        return len(self._pods()) <= self.count and not any(replica.draining for replica in self.replicas())

    def tend(self) -> None:
        """Kubernetes does it."""

    def replicas(self) -> list[Replica]:
        found = []
        for pod in self._pods():
            if pod.status.phase == "Running" and pod.status.pod_ip:
                host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
                url = f"http://{host}:{self._container_port}"
                where = f"pod {pod.metadata.name} on {pod.spec.node_name}"
                found.append(Replica(pod.metadata.name, url, where, pod.metadata.deletion_timestamp is not None))
        return found

    def _pods(self) -> list[Any]:
        if self._api is None:
            return []
        with talking():
            pods = self._core().list_namespaced_pod(self._namespace, label_selector=f"{RUN_LABEL}={self.run_id}")
        return sorted(pods.items, key=lambda pod: str(pod.metadata.name))

    def _failure(self) -> str | None:
        pods = self._pods()
        for pod in pods:
            for status in pod.status.container_statuses or []:
                waiting = status.state.waiting if status.state is not None else None
                if waiting is not None and waiting.reason in _HOPELESS:
                    return (
                        f"Pod {pod.metadata.name} does not start ({waiting.reason}): {waiting.message or ''}".rstrip()
                    )
        return self._out_of_reach(pods)

    def _out_of_reach(self, pods: list[Any]) -> str | None:
        ready = [pod for pod in pods if any(status.ready for status in pod.status.container_statuses or [])]
        now = time.monotonic()
        if len(ready) < self.count:
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = now
        elif now - self._ready_since > _REACHED_S:
            return (
                f"Kubernetes finds all pods ready, but they cannot be reached from here. Run this inside the cluster; "
                f"or, by hand: kubectl --namespace {self._namespace} port-forward service/{self.name} "
                f"{self._container_port}"
            )
        return None

    def logs(self, lines: int = 100) -> str:
        parts = []
        for pod in self._pods():
            with contextlib.suppress(ProviderError):  # a pod that has not started has said nothing
                with talking():
                    said = self._core().read_namespaced_pod_log(pod.metadata.name, self._namespace, tail_lines=lines)
                parts.append((pod.metadata.name, said))
        return parts[0][1] if len(parts) == 1 else "\n".join(f"--- {name}\n{said}" for name, said in parts)

    def _release(self) -> None:
        self._released.set()
        with self._lock:
            api, self._api = self._api, None
            if api is not None:
                try:
                    self._delete_all(api)
                except ProviderError as error:
                    again = by_hand("kubernetes", self.run_id, "--namespace", str(self._namespace))
                    logger.warning("%s could not be removed (%s); to try again: %s", self.name, error, again)
            guard, self._guard = self._guard, None
            if guard is not None:
                guard.stop()

    def _delete_all(self, api: Any) -> None:
        selector = f"{RUN_LABEL}={self.run_id}"
        with talking():
            for _, _, remove in owned(api, selector, self._namespace, self._stop_timeout_s):
                remove()

    def _apps(self) -> Any:
        from kubernetes.client import AppsV1Api

        return AppsV1Api(self._api)

    def _core(self) -> Any:
        from kubernetes.client import CoreV1Api

        return CoreV1Api(self._api)


def connect(context: str | None = None) -> Any:
    """A client of the cluster that this process is in, or else of the one that is configured."""
    try:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException
    except ImportError:
        raise MissingPackageError.of("Kubernetes' client", "kubernetes") from None
    settings = client.Configuration()
    try:
        if context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(context=context, client_configuration=settings)
    except ConfigException as error:
        raise ProviderError(
            f"No cluster is configured ({str(error).rstrip('.')}). `kubectl get pods` must work here; KUBECONFIG says "
            f"where the configuration is."
        ) from error
    return client.ApiClient(settings)


def _usual_namespace(context: str | None) -> str:
    with contextlib.suppress(OSError), open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
        return file.read().strip()
    from kubernetes import config

    contexts, active = config.list_kube_config_contexts()
    for each in contexts:
        if each["name"] == (context or active["name"]):
            return str(each["context"].get("namespace", "default"))
    return "default"


@contextmanager
def talking() -> Iterator[None]:
    """What the API refuses, and an API that does not answer, become a `ProviderError`."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise ProviderError(f"Kubernetes: {error.status} {error.reason}. {error.body or ''}".rstrip()) from error
    except (HTTPError, OSError) as error:
        raise ProviderError(f"Kubernetes' API does not answer: {error}.") from error


def owned(
    api: Any, selector: str, namespace: str | None, grace_s: float = 0.0
) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """What carries a label: its kind, itself, and how to delete it. Pods last: their Deployment would replace them."""
    from kubernetes.client import AppsV1Api, CoreV1Api

    core, apps = CoreV1Api(api), AppsV1Api(api)
    for kind, where in (("deployment", apps), ("service", core), ("secret", core), ("pod", core)):
        listed = getattr(where, f"list_namespaced_{kind}")(namespace, label_selector=selector)
        for thing in listed.items:
            delete = getattr(where, f"delete_namespaced_{kind}")
            options: dict[str, Any] = {"propagation_policy": "Background"}
            if kind == "pod":
                options["grace_period_seconds"] = int(grace_s)
            yield kind, thing, functools.partial(_unless_gone, delete, thing, options)


def _unless_gone(delete: Callable[..., Any], thing: Any, options: dict[str, Any]) -> None:
    from kubernetes.client.exceptions import ApiException

    try:
        delete(thing.metadata.name, thing.metadata.namespace, **options)
    except ApiException as error:
        if error.status != 404:
            raise
