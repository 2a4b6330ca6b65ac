"""Servers in containers, with a real Docker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from envhive import EnvHiveError, GenericEnvClient
from envhive.errors import ProviderError
from envhive.fleet.fleet import Fleet
from envhive.providers.base import ask
from envhive.providers.docker import LocalDockerProvider
from tests.support.dockerd import IMAGE, STRANGER, Docker
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

TOKEN = "a-token-of-the-tests"


@pytest.fixture(autouse=True)
def no_container_is_left(docker: Docker, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, what it started is gone afterwards."""
    before = set(docker.containers())
    yield
    if "fleet" not in request.fixturenames:  # which the next test uses, too
        assert set(docker.containers()) <= before


def provider(docker: Docker, image: str = IMAGE, **options: Any) -> LocalDockerProvider:
    return LocalDockerProvider(image, docker_host=docker.host, **options)


def client(url: str) -> Any:
    return GenericEnvClient(url, token=TOKEN).sync()


# One provider, from start to end.


def test_a_server_runs_in_a_container_as_it_was_asked_to(docker: Docker) -> None:
    asked = {"cpus": 0.5, "memory_mb": 300, "max_sessions": 7, "environment": {"COLOUR": "a {{b}} c"}}
    with provider(docker, target="echo", token=TOKEN, **asked) as started:
        with client(started.base_url) as env:
            env.reset()
            assert env.step({"message": "hello"}).observation["echoed_message"] == "hello"
        assert ask(started.base_url, "GET", "/sessions")[0] == 401
        assert '"max_sessions":7' in ask(started.base_url, "GET", "/health", token=TOKEN)[1].decode().replace(" ", "")
        assert "EnvHive serves echo" in started.logs()
        (name,) = docker.containers()
        about = docker.client.api.inspect_container(name)
        assert about["HostConfig"]["NanoCpus"] == 500_000_000
        assert about["HostConfig"]["Memory"] == 300 * 1024 * 1024
        assert about["Config"]["Labels"]["envhive.run"] == started.run_id
        assert about["Config"]["Labels"]["envhive.owner"].endswith(f":{os.getpid()}")
        assert {"ENVHIVE_REPLICA=r1", "COLOUR=a {{b}} c"} <= set(about["Config"]["Env"])
        assert [port["HostIp"] for port in about["NetworkSettings"]["Ports"]["8000/tcp"]] == ["127.0.0.1"]
    assert docker.containers() == []


def test_the_base_image_is_not_root_and_knows_whether_it_is_healthy(docker: Docker) -> None:
    with provider(docker, container_port=9000):
        (container,) = docker.client.containers.list()
        assert container.exec_run(["id", "-u"]).output == b"1000\n"
        check = container.attrs["Config"]["Healthcheck"]["Test"]
        assert check[0] == "CMD"
        assert container.exec_run(check[1:]).exit_code == 0
        assert container.exec_run(check[1:], environment={"PORT": "9001"}).exit_code != 0


def test_a_server_that_is_not_envhives_is_started_and_stopped_all_the_same(docker: Docker) -> None:
    with provider(docker, STRANGER, replicas=2) as started:
        assert [ask(replica.url, "GET", "/health")[0] for replica in started.replicas()] == [200, 200]
        started.scale(1)
        started.restart()
        assert [replica.name for replica in started.replicas()] == ["r3"]
        assert started.logs() == "a stranger serves"


def test_providers_that_start_at_once_do_not_get_in_each_others_way(docker: Docker) -> None:
    providers = [provider(docker, STRANGER, replicas=2) for _ in range(4)]
    threads = [threading.Thread(target=each.start) for each in providers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        urls = [replica.url for each in providers for replica in each.replicas()]
        assert len(set(urls)) == 8
        assert {ask(url, "GET", "/health")[0] for url in urls} == {200}
        assert len(docker.containers()) == 8
    finally:
        for each in providers:
            each.stop()


def test_code_written_for_openenv_starts_and_stops_a_container(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    from envhive.compat.hook import AliasFinder

    monkeypatch.setenv("DOCKER_HOST", docker.host)
    finder = AliasFinder()
    before = set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        from openenv.core.containers.runtime.providers import (  # type: ignore[import-not-found]
            ContainerProvider,
            LocalDockerProvider,
        )

        theirs = LocalDockerProvider()
        assert isinstance(theirs, ContainerProvider)
        url = theirs.start_container(STRANGER, env_vars={"COLOUR": "red"})
        theirs.wait_for_ready(url, timeout_s=30.0)
        assert ask(url, "GET", "/health")[0] == 200
        (name,) = docker.containers()
        assert "COLOUR=red" in docker.client.api.inspect_container(name)["Config"]["Env"]
        theirs.stop_container()
        theirs.close()
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "openenv":
                del sys.modules[name]


# What goes wrong.


def test_an_image_that_does_not_exist_is_said_to(docker: Docker) -> None:
    with pytest.raises(
        ProviderError, match=r"no image 127\.0\.0\.1:1/nobody/nothing:1 here, and it could not be pulled"
    ):
        provider(docker, "127.0.0.1:1/nobody/nothing:1").start()
    with pytest.raises(ProviderError, match="docker pull nothing"):
        provider(docker, "nothing", pull="never").start()


def test_a_server_that_ends_at_once_is_told_of_with_its_last_words(docker: Docker) -> None:
    with pytest.raises(ProviderError, match=r"Replica r1 ended with code 2\. The last it said:\n(.|\n)*'nonsense' is"):
        provider(docker, target="nonsense").start()


def test_a_program_that_is_not_in_the_image_leaves_no_container(docker: Docker) -> None:
    with pytest.raises(ProviderError, match="envhive"):
        provider(docker, STRANGER, target="echo").start()


def test_a_server_that_never_gets_healthy_is_removed(docker: Docker) -> None:
    idle = {"command": ["python3", "-c", "import signal; signal.pause()"]}
    with pytest.raises(ProviderError, match="0 of 2 replicas were healthy in time"):
        provider(docker, STRANGER, replicas=2, run_options=idle, start_timeout_s=1.0, stop_timeout_s=1.0).start()


def test_a_daemon_that_is_not_there_is_named(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path / 'docker.sock'}"
    with pytest.raises(ProviderError, match=rf"does not answer at {nowhere} .*systemctl start docker"):
        LocalDockerProvider("image", docker_host=nowhere).start()


def test_nothing_is_left_when_the_provider_is_killed(docker: Docker) -> None:
    script = (
        "from envhive.providers.docker import LocalDockerProvider\n"
        f"LocalDockerProvider({STRANGER!r}, replicas=2).start()\n"
        "print('started', flush=True)\n"
        "input()\n"
    )
    environ = {**os.environ, "DOCKER_HOST": docker.host}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], env=environ, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "started\n"
        assert len(docker.containers()) == 2
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not docker.containers(), within=30)


def test_what_is_left_can_be_listed_and_swept_by_hand(docker: Docker) -> None:
    labels = {"envhive.run": "1-cafe", "envhive.owner": "somebody"}
    docker.client.containers.create(STRANGER, labels=labels, name="left-over")
    environ = {**os.environ, "DOCKER_HOST": docker.host}
    sweep = [sys.executable, "-m", "envhive.providers.sweep", "docker"]
    listed = subprocess.run(sweep, env=environ, capture_output=True, text=True, timeout=60)
    assert listed.stdout == "1-cafe  somebody  container left-over\n"
    assert subprocess.run([*sweep, "2-cafe"], env=environ, timeout=60).returncode == 0
    assert docker.containers() == ["left-over"]
    assert subprocess.run([*sweep, "1-cafe"], env=environ, timeout=60).returncode == 0


# A fleet of containers.


@pytest.fixture(scope="module")
def fleet(docker: Docker) -> Iterator[Fleet]:
    with Fleet(provider(docker, replicas=2, token=TOKEN)) as fleet:
        yield fleet
    assert docker.containers() == []


def sessions_of(fleet: Fleet) -> list[int]:
    return sorted(member.sessions for member in fleet.members())


def test_sessions_are_spread_over_the_containers(fleet: Fleet) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(client(fleet.url)).reset()
        assert sum(sessions_of(fleet)) == 8
        assert min(sessions_of(fleet)) >= 2
    eventually(lambda: sessions_of(fleet) == [0, 0])


def test_a_killed_container_costs_its_own_sessions_alone_and_is_replaced(fleet: Fleet, docker: Docker) -> None:
    with ExitStack() as stack:
        envs = [stack.enter_context(client(fleet.url)) for _ in range(4)]
        for env in envs:
            env.reset()
        victim = max(fleet.members(), key=lambda member: member.sessions)
        docker.client.api.kill(victim.where.split()[-1], signal="SIGKILL")
        results = [outcome(env) for env in envs]
        assert results.count("EnvHiveError") == victim.sessions
        assert results.count("hello") == 4 - victim.sessions
    eventually(lambda: [member.status for member in fleet.members()] == ["ok", "ok"], within=30)
    assert victim.name not in [member.name for member in fleet.members()]
    with client(fleet.url) as env:
        env.reset()


def outcome(env: Any) -> str:
    try:
        return str(env.step({"message": "hello"}).observation["echoed_message"])
    except EnvHiveError:
        return "EnvHiveError"


def test_scaling_down_waits_for_the_sessions_of_those_that_go(fleet: Fleet) -> None:
    with ExitStack() as stack:
        envs = [stack.enter_context(client(fleet.url)) for _ in range(8)]
        for env in envs:
            env.reset()
        scaling = threading.Thread(target=fleet.scale, args=(1,))
        scaling.start()
        eventually(lambda: "draining" in [member.status for member in fleet.members()])
        assert [outcome(env) for env in envs] == ["hello"] * 8
        assert scaling.is_alive()
    scaling.join(60)
    assert len(fleet.members()) == 1
