"""Servers as tasks of a Swarm service, with a real Docker that is a swarm of one node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from envhive import EnvHiveError, GenericEnvClient
from envhive.errors import ProviderError
from envhive.fleet.fleet import Fleet
from envhive.providers.base import ask
from envhive.providers.swarm import DockerSwarmProvider
from tests.support.dockerd import IMAGE, STRANGER, Docker
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def swarm(docker: Docker) -> Iterator[Docker]:
    """The same Docker, which the first provider that may do so makes a swarm."""
    with pytest.raises(ProviderError, match=r"in no swarm .* docker swarm init --advertise-addr 127\.0\.0\.1"):
        DockerSwarmProvider(STRANGER, docker_host=docker.host).start()
    yield docker
    docker.client.swarm.leave(force=True)


@pytest.fixture(autouse=True)
def nothing_is_left(swarm: Docker, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, what it started is gone afterwards."""
    yield
    if "fleet" not in request.fixturenames:  # which the next test uses, too
        assert swarm.containers() == []
        assert swarm.client.services.list() == []


def provider(docker: Docker, image: str = IMAGE, **options: Any) -> DockerSwarmProvider:
    return DockerSwarmProvider(image, docker_host=docker.host, init_swarm=True, **options)


def client(url: str) -> Any:
    return GenericEnvClient(url, token=TOKEN).sync()


def outcome(env: Any) -> str:
    try:
        return str(env.step({"message": "hello"}).observation["echoed_message"])
    except EnvHiveError:
        return "EnvHiveError"


def test_a_service_runs_as_it_was_asked_to(swarm: Docker) -> None:
    limits = {"cpus": 0.5, "memory_mb": 100}
    with provider(swarm, STRANGER, replicas=2, environment={"COLOUR": "a {{b}} c"}, **limits) as started:
        assert [ask(replica.url, "GET", "/health")[0] for replica in started.replicas()] == [200, 200]
        assert started.logs().splitlines() == ["a stranger serves"] * 2
        (service,) = swarm.client.services.list()
        assert service.attrs["Spec"]["Labels"]["envhive.run"] == started.run_id
        container = swarm.client.api.inspect_container(swarm.containers()[0])
        assert container["HostConfig"]["NanoCpus"] == 500_000_000
        assert "COLOUR=a {{b}} c" in container["Config"]["Env"]
        names = {
            line.partition("=")[2]
            for each in swarm.containers()
            for line in swarm.client.api.inspect_container(each)["Config"]["Env"]
            if line.startswith("ENVHIVE_REPLICA=")
        }
        assert names == {replica.name for replica in started.replicas()}


def test_tasks_are_reached_where_ipv4_and_ipv6_have_different_ports(swarm: Docker) -> None:
    other = swarm.client.containers.run(STRANGER, detach=True, ports={"8000/tcp": ("0.0.0.0", None)})
    try:  # it has taken a port of IPv4's alone, so the next ones are no longer the same
        with provider(swarm, STRANGER, replicas=2) as started:
            tasks = [each["Ports"] for each in swarm.client.api.containers() if len(each["Ports"]) == 2]
            assert len(tasks) == 2
            assert all(len({port["PublicPort"] for port in ports}) == 2 for ports in tasks), tasks
            assert [ask(replica.url, "GET", "/health")[0] for replica in started.replicas()] == [200, 200]
            reached = {replica.url.rpartition(":")[2] for replica in started.replicas()}
            assert reached == {str(port["PublicPort"]) for ports in tasks for port in ports if port["IP"] == "0.0.0.0"}
    finally:
        other.remove(force=True)


def test_an_image_that_no_node_has_is_named(swarm: Docker) -> None:
    with pytest.raises(ProviderError, match=r"rejected.*No such image: 127\.0\.0\.1:1/nothing:1"):
        provider(swarm, "127.0.0.1:1/nothing:1").start()


def test_a_server_that_ends_at_once_is_told_of_with_its_last_words(swarm: Docker) -> None:
    with pytest.raises(ProviderError, match=r"failed(.|\n)*'nonsense' is neither"):
        provider(swarm, target="nonsense").start()


def test_openenvs_calls_start_a_service_and_remove_it(swarm: Docker) -> None:
    started = DockerSwarmProvider(docker_host=swarm.host)
    url = started.start_container(STRANGER, env_vars={"COLOUR": "red"})
    started.wait_for_ready(url)
    assert ask(url, "GET", "/health")[0] == 200
    started.stop_container()


def test_nothing_is_left_when_the_provider_is_killed(swarm: Docker) -> None:
    script = (
        "from envhive.providers.swarm import DockerSwarmProvider\n"
        f"DockerSwarmProvider({STRANGER!r}, replicas=2).start()\n"
        "print('started', flush=True)\n"
        "input()\n"
    )
    environ = {**os.environ, "DOCKER_HOST": swarm.host}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], env=environ, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not swarm.containers() and not swarm.client.services.list(), within=30)


# A fleet of tasks.


@pytest.fixture(scope="module")
def fleet(swarm: Docker) -> Iterator[Fleet]:
    with Fleet(provider(swarm, replicas=2, token=TOKEN, drain_timeout_s=60.0)) as fleet:
        yield fleet
    assert swarm.containers() == []


def leaving(fleet: Fleet) -> set[str]:
    return {member.name for member in fleet.members() if member.status == "draining"}


def test_sessions_are_spread_over_the_tasks_and_outlive_a_rolling_restart(fleet: Fleet) -> None:
    before = {member.name for member in fleet.members()}
    with ExitStack() as stack:
        envs = [stack.enter_context(client(fleet.url)) for _ in range(8)]
        for env in envs:
            env.reset()
        assert min(member.sessions for member in fleet.members()) >= 2
        restarting = threading.Thread(target=fleet.restart)
        restarting.start()
        eventually(lambda: leaving(fleet), within=60)  # Swarm goes on to the next when the sessions of one have ended
        assert [outcome(env) for env in envs] == ["hello"] * 8
        with client(fleet.url) as newcomer:
            newcomer.reset()
            assert outcome(newcomer) == "hello"
    restarting.join(60)
    after = {member.name for member in fleet.members()}
    assert len(after) == 2
    assert not after & before


def test_a_killed_task_costs_its_own_sessions_alone_and_swarm_replaces_it(fleet: Fleet, swarm: Docker) -> None:
    with ExitStack() as stack:
        envs = [stack.enter_context(client(fleet.url)) for _ in range(4)]
        for env in envs:
            env.reset()
        victim = max(fleet.members(), key=lambda member: member.sessions)
        swarm.client.api.kill(
            next(name for name in swarm.containers() if victim.name.partition("-")[2] in name), signal="SIGKILL"
        )
        results = [outcome(env) for env in envs]
        assert results.count("EnvHiveError") == victim.sessions
        assert results.count("hello") == 4 - victim.sessions
    eventually(
        lambda: [member.status for member in fleet.members()] == ["ok", "ok"],
        within=60,
        instead=lambda: (
            f"{fleet.members()}\n{swarm.client.api.tasks()}\n{swarm.client.api.containers()}\n{fleet.logs()}"
        ),
    )
    assert victim.name not in [member.name for member in fleet.members()]


def test_scaling_down_waits_for_the_sessions_of_those_that_go(fleet: Fleet) -> None:
    with ExitStack() as stack:
        envs = [stack.enter_context(client(fleet.url)) for _ in range(8)]
        for env in envs:
            env.reset()
        scaling = threading.Thread(target=fleet.scale, args=(1,))
        scaling.start()
        eventually(lambda: leaving(fleet))
        assert [outcome(env) for env in envs] == ["hello"] * 8
        assert scaling.is_alive()
    scaling.join(60)
    assert len(fleet.members()) == 1
