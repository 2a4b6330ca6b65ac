"""Ray for real: a cluster of three nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive.errors import ConfigurationError, MissingPackageError, ProviderError
from envhive.providers.base import Replica
from envhive.providers.ray import RayProvider
from tests.integration.provider_contract import START_S, TARGET, Engine, ProviderContract, processes_of
from tests.support.processes import free_port, plain_environ
from tests.support.ray_cluster import ray_cluster
from tests.support.servers import eventually
from tests.support.wild import is_alive

pytestmark = pytest.mark.integration


class RayEngine(Engine):
    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.starting = f"""
from envhive.providers.ray import RayProvider
provider = RayProvider({TARGET!r}, replicas=2, address={cluster.address!r}, **{{options}})
"""

    def provider(self, target: str, **options: Any) -> RayProvider:
        return RayProvider(target, **options)

    def has(self, run_id: str) -> list[str]:
        import ray

        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        return [name for name in names if name.startswith(f"envhive-{run_id}-")]

    def has_nothing(self, run_id: str) -> bool:
        return super().has_nothing(run_id) and not list(Path(tempfile.gettempdir()).glob(f"envhive-{run_id}-*"))

    def node_of(self, replica: Replica) -> str:
        found = re.match(r"node (\w+) ", replica.where)
        assert found is not None
        return found[1]


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    """This process is connected for all tests, as users may be; what a provider connects itself has its own test."""
    with ray_cluster() as cluster:
        import ray

        ray.init(address=cluster.address, log_to_driver=False)
        try:
            yield RayEngine(cluster)
        finally:
            ray.shutdown()


def server_of(replica: Replica) -> int:
    return int(replica.where.rpartition(" ")[2])


def actor_of(replica: Replica, run_id: str) -> int:
    """The first process above the server that is neither server nor guard."""
    pid = server_of(replica)
    while run_id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


class TestRay(ProviderContract):
    pass


def test_a_killed_actor_and_a_lost_node_come_back_by_themselves(engine: RayEngine) -> None:
    with engine.provider(TARGET, replicas=2) as provider:

        def names() -> set[str]:
            return {replica.name for replica in provider.replicas()}

        (first, second), before = provider.replicas(), names()
        os.kill(actor_of(first, provider.run_id), signal.SIGKILL)
        eventually(lambda: not is_alive(server_of(first)), within=30)
        eventually(lambda: len(names() - before) == 1 and len(names()) == 2, within=START_S)
        provider.wait_ready()
        assert second in provider.replicas()

        before = names()
        head = engine.cluster.head_node.node_id
        lost = next(each for each in provider.replicas() if not head.startswith(engine.node_of(each)))
        engine.cluster.remove_node(
            next(node for node in engine.cluster.worker_nodes if node.node_id.startswith(engine.node_of(lost)))
        )
        eventually(lambda: not is_alive(server_of(lost)), within=30)
        eventually(lambda: len(names() - before) == 1 and len(names()) == 2, within=START_S)
        provider.wait_ready()
        assert len({engine.node_of(replica) for replica in provider.replicas()}) == 2
    eventually(lambda: engine.has_nothing(provider.run_id), within=15)


def test_a_replica_for_which_there_is_no_room_says_so(engine: RayEngine) -> None:
    provider = engine.provider(TARGET, cpus=2, start_timeout_s=0.5)
    with pytest.raises(ProviderError, match=r"0 of 1 replicas(.|\n)*Ray has not found a node for it yet"):
        provider.start()
    eventually(lambda: engine.has_nothing(provider.run_id))


def test_what_is_for_connecting_is_refused_where_there_is_a_connection(engine: RayEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"give runtime_env to ray\.init"):
        engine.provider(TARGET, runtime_env={"working_dir": "."}).start()


def test_a_provider_without_a_cluster_starts_one_brings_the_code_along_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    project = tmp_path / "project"
    project.mkdir()
    (project / "my_echo.py").write_text("from envhive.envs.echo import EchoEnvironment as MyEcho\n")
    script = f"""
import ray
from envhive import GenericEnvClient
from envhive.providers.ray import RayProvider
provider = RayProvider("my_echo:MyEcho", runtime_env={{"working_dir": {str(project)!r}}})
with provider, GenericEnvClient(provider.base_url).sync() as env:
    env.reset()
    print(provider.run_id)
assert not ray.is_initialized()
"""
    environ = plain_environ(HOME=str(tmp_path))  # where Ray keeps a token for its own clusters
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    eventually(lambda: not processes_of(done.stdout.strip()))


def test_a_cluster_that_does_not_answer_is_an_error_at_once() -> None:
    pytest.importorskip("ray")
    port = free_port()
    script = f"""
from envhive.providers.ray import RayProvider
RayProvider("echo", address="127.0.0.1:{port}").start()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=START_S)
    assert f"ProviderError: Ray does not answer at 127.0.0.1:{port}" in done.stderr


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'envhive\[ray\]'"):
        RayProvider("echo").start()
