"""What Kubernetes is told: against its schema, and in a conversation with a stand-in for its API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import ServerSpec
from envhive.providers.kubernetes import KubernetesProvider
from envhive.providers.manifests import manifests
from tests.support.kube_api import Cluster, kube_api

FULL = ServerSpec(
    image="registry.example.org/game:1",
    target="game:Game",
    workers=2,
    max_sessions=64,
    environment={"PRICE": "$(cheap) {{x}}"},
    token="secret-of-the-tests",
    cpus=1.5,
    memory_mb=512,
    settings={"level": 3},
)


def validate(document: dict[str, Any]) -> None:
    """Against Kubernetes' own schema; strictly, so that a field that is not in it is an error."""
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate carries Kubernetes' schemas")
    checker.validate(document, checker.latest_version(), strict=True)


# The manifests.


@pytest.mark.parametrize("spec", [FULL, ServerSpec(image="game")], ids=["full", "plain"])
def test_manifests_keep_to_kubernetes_schema(spec: ServerSpec) -> None:
    for document in manifests(spec, name="game", namespace="lab", labels={"a": "b"}, annotations={"c": "d"}):
        validate(document)


def test_the_schema_would_notice() -> None:
    *_, deployment = manifests(FULL, name="game")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
    with pytest.raises(Exception, match="httpget"):
        validate(deployment)


def test_manifests_say_what_the_spec_says() -> None:
    secret, service, deployment = manifests(FULL, name="game", replicas=3, container_port=9000, drain_timeout_s=60)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert deployment["spec"]["replicas"] == 3
    assert container["args"] == ["envhive", "serve", "game:Game", "--set", "level=3"]
    assert (values["WORKERS"], values["MAX_CONCURRENT_ENVS"], values["PORT"]) == ("2", "64", "9000")
    assert values["PRICE"] == "$$(cheap) {{x}}"
    assert container["resources"]["limits"] == {"cpu": "1500m", "memory": "512Mi"}
    assert service["spec"]["ports"] == [{"name": "http", "port": 9000, "targetPort": "http"}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert values["ENVHIVE_GRACE_PERIOD"] == "60"
    assert pod["terminationGracePeriodSeconds"] > 60
    assert secret["stringData"] == {"tokens": FULL.token}
    assert "secret-of-the-tests" not in str(deployment)


def test_a_pod_that_drains_is_not_taken_for_dead() -> None:
    *_, deployment = manifests(ServerSpec(image="game"), name="game", drain_timeout_s=600)
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 600


@pytest.mark.parametrize("name", ["Game", "1game", "a.b", "-a", "a-", "", "a" * 47])
def test_a_name_that_kubernetes_would_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name for Kubernetes"):
        manifests(FULL, name=name)


# The conversation.


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with kube_api(tmp_path) as (cluster, config):
        monkeypatch.setenv("KUBECONFIG", str(config))  # for the sweep
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield cluster


def test_a_deployment_is_started_scaled_restarted_and_removed(cluster: Cluster) -> None:
    said: list[str] = []
    options = {"replicas": 2, "token": "t", "container_port": cluster.port, "progress": said.append}
    with KubernetesProvider("game:1", **options) as provider:  # type: ignore[arg-type]
        name = provider.name
        assert [replica.name for replica in provider.replicas()] == [f"{name}-1", f"{name}-2"]
        assert provider.base_url == f"http://127.0.0.11:{cluster.port}"
        assert f"{name}-1 says hello" in provider.logs()
        provider.scale(3)
        assert len(provider.replicas()) == 3
        provider.scale(1)
        assert [replica.draining for replica in provider.replicas()] == [False]
        provider.restart()
        assert [replica.name for replica in provider.replicas()] == [f"{name}-4"]
    assert all(not things for things in cluster.objects.values())
    assert "placing 2 pods" in said
    core, apps = "/api/v1/namespaces/lab", "/apis/apps/v1/namespaces/lab/deployments"
    changes = [(method, path) for method, path in cluster.asked if method != "GET"]
    assert changes == [
        ("POST", f"{core}/secrets"),
        ("POST", f"{core}/services"),
        ("POST", apps),
        ("PATCH", f"{apps}/{name}/scale"),
        ("PATCH", f"{apps}/{name}/scale"),
        ("PATCH", f"{apps}/{name}"),
        ("DELETE", f"{apps}/{name}"),
        ("DELETE", f"{core}/services/{name}"),
        ("DELETE", f"{core}/secrets/{name}-token"),
        ("DELETE", f"{core}/pods/{name}-4"),
    ]
    for document in cluster.given:
        assert document["metadata"]["labels"]["envhive.run"] == provider.run_id


def test_what_is_posted_keeps_to_kubernetes_schema(cluster: Cluster) -> None:
    for document in KubernetesProvider("game:1", token="t", namespace="lab").manifests():
        validate(document)


def test_an_image_that_cannot_be_pulled_ends_the_waiting_and_leaves_nothing(cluster: Cluster) -> None:
    cluster.trouble = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "game:1"'}
    with pytest.raises(ProviderError, match=r'does not start \(ImagePullBackOff\): Back-off pulling image "game:1"'):
        KubernetesProvider("game:1", container_port=cluster.port).start()
    assert all(not things for things in cluster.objects.values())


def test_pods_that_are_out_of_reach_are_said_to_be(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envhive.providers.kubernetes._REACHED_S", 0.0)
    monkeypatch.setattr("envhive.providers.base.is_healthy", lambda url: False)
    with pytest.raises(ProviderError, match=r"cannot be reached from here.* port-forward service/envhive-"):
        KubernetesProvider("game:1", container_port=cluster.port).start()


def test_without_a_cluster_it_is_said_what_must_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ProviderError, match=r"No cluster is configured .*kubectl get pods"):
        KubernetesProvider("game:1").start()
