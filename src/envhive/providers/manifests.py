"""What Kubernetes is told, as plain data: a Deployment, a Service before it, and a Secret if there is a token."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from envhive.errors import ConfigurationError
from envhive.providers.base import ServerSpec
from envhive.providers.container import command_of, image_of, variables_of

LONGEST_NAME: Final = 46
"""Pods are named after their Deployment, with 17 characters more, and servers after their pods."""

_NAME: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LEAVE_S: Final = 5
"""Until everybody knows that a pod is about to go, newcomers may still come to it."""
_CHECK_S: Final = 5
_ALIVE_CHECK_S: Final = 10
_START_S: Final = 300
_SLACK_S: Final = 10
_TOKEN_KEY: Final = "tokens"


def manifests(
    spec: ServerSpec,
    *,
    name: str,
    namespace: str | None = None,
    replicas: int = 1,
    container_port: int = 8000,
    drain_timeout_s: float = 300.0,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The objects to apply, in their order.

    Args:
        spec: What to run; its image is needed.
        name: What all of them are called.
        namespace: Where they are; by default wherever they are applied.
        replicas: How many pods.
        container_port: Where the server listens, and the Service, too.
        drain_timeout_s: How long the sessions of a pod that is taken away may take to finish.
        labels, annotations: More of them, for all objects.
    """
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"A name for Kubernetes has at most {LONGEST_NAME} lower-case letters, digits and dashes, and begins with "
            f"a letter; {name!r} does not."
        )
    selector = {"app.kubernetes.io/instance": name}
    all_labels = {"app.kubernetes.io/name": "envhive", **selector, **(labels or {})}
    metadata: dict[str, Any] = {"name": name, "labels": all_labels}
    if namespace is not None:
        metadata["namespace"] = namespace
    if annotations:
        metadata["annotations"] = dict(annotations)
    template = {
        "metadata": {"labels": all_labels},
        "spec": _pod(spec, name, container_port, drain_timeout_s),
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template,
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": selector, "ports": [{"name": "http", "port": container_port, "targetPort": "http"}]},
    }
    return [*_secrets(spec, name, metadata), service, deployment]


def _secrets(spec: ServerSpec, name: str, metadata: dict[str, Any]) -> list[dict[str, Any]]:
    if spec.token is None:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, "name": _secret_name(name)},
            "type": "Opaque",
            "stringData": {_TOKEN_KEY: spec.token},
        }
    ]


def _secret_name(name: str) -> str:
    return f"{name}-token"


def _pod(spec: ServerSpec, name: str, container_port: int, drain_timeout_s: float) -> dict[str, Any]:
    container = {
        "name": "server",
        "image": image_of(spec),
        "env": _env(spec, name, container_port, drain_timeout_s),
        "ports": [{"name": "http", "containerPort": container_port}],
        "resources": _resources(spec),
        "securityContext": {"allowPrivilegeEscalation": False},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_LEAVE_S)]}}},
        **_probes(drain_timeout_s),
    }
    if (command := command_of(spec)) is not None:
        container["args"] = command
    return {
        "automountServiceAccountToken": False,  # environments run what agents write
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": math.ceil(drain_timeout_s) + _LEAVE_S + _SLACK_S,
        "containers": [container],
    }


def _env(spec: ServerSpec, name: str, container_port: int, drain_timeout_s: float) -> list[dict[str, Any]]:
    variables = {
        "ENVHIVE_GRACE_PERIOD": f"{drain_timeout_s:g}",
        **variables_of(spec, container_port),
    }
    plain = [
        {"name": each, "value": value.replace("$(", "$$(")}  # Kubernetes fills in $(NAME)
        for each, value in variables.items()
        if each != "ENVHIVE_TOKENS" or spec.token is None
    ]
    replica = {"name": "ENVHIVE_REPLICA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    if spec.token is None:
        return [*plain, replica]
    reference = {"secretKeyRef": {"name": _secret_name(name), "key": _TOKEN_KEY}}
    return [*plain, replica, {"name": "ENVHIVE_TOKENS", "valueFrom": reference}]


def _resources(spec: ServerSpec) -> dict[str, Any]:
    amounts = {
        **({} if spec.cpus is None else {"cpu": f"{round(spec.cpus * 1000)}m"}),
        **({} if spec.memory_mb is None else {"memory": f"{spec.memory_mb}Mi"}),
    }
    return {"requests": amounts, "limits": amounts} if amounts else {}


def _probes(drain_timeout_s: float) -> dict[str, Any]:
    health = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
    # A server that drains by `envhive drain` says so with 503: it must not be taken for dead before it is empty.
    alive_failures = math.ceil((drain_timeout_s + 60) / _ALIVE_CHECK_S)
    return {
        "startupProbe": {**health, "periodSeconds": 1, "failureThreshold": _START_S},
        "readinessProbe": {**health, "periodSeconds": _CHECK_S, "failureThreshold": 2},
        "livenessProbe": {**health, "periodSeconds": _ALIVE_CHECK_S, "failureThreshold": alive_failures},
    }
