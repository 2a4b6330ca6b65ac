"""Servers that are started for whoever needs them, as processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envhive import GenericEnvClient, MCPToolClient
from envhive.compat.providers import UVProvider as OpenEnvUVProvider
from envhive.errors import ConfigurationError, ProviderError, UnauthorizedError
from envhive.providers import ProcessProvider, UVProvider, make_provider
from envhive.providers.base import ask, is_healthy
from envhive.providers.uv import find_uv
from tests.support.servers import eventually
from tests.support.wild import is_alive

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STARTER = """
import sys, time
from envhive.providers import ProcessProvider
provider = ProcessProvider("echo", replicas=2, workers=2)
print("starting", flush=True)
provider.start()
print(*(replica.where.split()[-1] for replica in provider.replicas()), provider._folder, flush=True)
time.sleep(600)
"""


def pids_of(provider: ProcessProvider) -> list[int]:
    return [int(replica.where.split()[-1]) for replica in provider.replicas()]


def test_a_server_is_there_while_it_is_needed() -> None:
    with ProcessProvider("echo", settings={}, max_sessions=3) as provider:
        pids = pids_of(provider)
        with GenericEnvClient(provider.base_url).sync() as env:
            assert env.step({"message": "hello"}).observation["echoed_message"] == "hello"
        assert "EnvHive serves" in provider.logs()
    assert not any(map(is_alive, pids))
    with pytest.raises(ProviderError, match="not been started"):
        _ = provider.base_url


def test_what_cannot_start_says_why_and_leaves_nothing() -> None:
    provider = ProcessProvider("no_such_environment", replicas=2)
    with pytest.raises(ProviderError, match="neither a shipped environment"):
        provider.start()
    assert provider.replicas() == []
    assert provider._processes == {}


def test_a_killed_starter_leaves_no_server() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    assert starter.stdout.readline() == "starting\n"
    *pids, folder = starter.stdout.readline().split()
    assert all(is_alive(int(pid)) for pid in pids)
    starter.kill()
    starter.communicate()
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids), within=30)
    eventually(lambda: not Path(folder).exists(), within=30)


def test_ctrl_c_while_it_starts_leaves_no_server(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == "starting\n"
    eventually(lambda: list(tmp_path.glob("envhive-*/r1.log")) != [], within=20)
    starter.send_signal(signal.SIGINT)
    _, errors = starter.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.glob("envhive-*/r1.log")) == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running


def test_many_that_start_at_once_get_in_nobodys_way() -> None:
    providers = [ProcessProvider("echo", start_timeout_s=180) for _ in range(5)]
    try:
        with ThreadPoolExecutor(5) as pool:
            urls = list(pool.map(lambda provider: provider.start(), providers))
        assert len(set(urls)) == 5
        assert all(map(is_healthy, urls))
    finally:
        for provider in providers:
            provider.stop()


def test_a_token_is_asked_of_others_and_known_to_the_clients_of_the_provider() -> None:
    provider = ProcessProvider("echo", token="correct-horse")
    with GenericEnvClient.from_provider(provider).sync() as env:
        env.reset()
        with pytest.raises(UnauthorizedError):
            GenericEnvClient(env.base_url, token="wrong-horse").sync().reset()


def test_a_client_starts_its_servers_and_stops_them() -> None:
    provider = ProcessProvider("echo")

    async def play() -> list[int]:
        async with GenericEnvClient.from_provider(provider) as env:
            await env.reset()
            return pids_of(provider)

    assert not any(map(is_alive, asyncio.run(play())))
    env = asyncio.run(reset_once(provider))  # and again, by hand
    assert provider.replicas() == []
    assert env.base_url.startswith("http://127.0.0.1:")


async def reset_once(provider: ProcessProvider) -> GenericEnvClient:
    env = await asyncio.create_task(GenericEnvClient.from_provider(provider))
    await env.reset()
    await env.close()
    await env.close()
    return env


def test_the_plain_client_of_a_launch_is_that_of_its_class() -> None:
    class Speaker(GenericEnvClient):
        def __init__(self, base_url: str) -> None:
            super().__init__(base_url)

        async def say(self, word: str) -> str:
            return str((await self.step({"message": word})).observation["echoed_message"])

    with Speaker.from_provider(ProcessProvider("echo")).sync() as env:
        env.reset()
        assert env.say("hello") == "hello"
    with MCPToolClient.from_provider(ProcessProvider("tests.support.tools:TidyShed")).sync() as env:
        assert "add" in [tool.name for tool in env.list_tools()]


def test_a_start_that_nobody_waits_for_any_longer_is_undone() -> None:
    begun, stopped = threading.Event(), threading.Event()

    class Told(ProcessProvider):
        def _place(self, name: str) -> None:
            super()._place(name)
            begun.set()

        def stop(self) -> None:
            super().stop()
            stopped.set()

    provider = Told("echo")

    async def play() -> None:
        launch = GenericEnvClient.from_provider(provider)
        waiting = asyncio.ensure_future(launch.__aenter__())
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(stopped.wait, 60)

    asyncio.run(play())
    assert stopped.is_set()
    assert provider.replicas() == []


def test_a_dead_server_is_replaced_by_one_of_another_name() -> None:
    with ProcessProvider("echo") as provider:
        (first,) = provider.replicas()
        os.kill(pids_of(provider)[0], signal.SIGKILL)

        def replaced() -> bool:
            provider.tend()
            return [replica.name for replica in provider.replicas()] not in ([], [first.name])

        eventually(replaced, within=30)
        provider.wait_ready()
        with GenericEnvClient(provider.base_url).sync() as env:
            env.reset()


def test_an_unknown_kind_or_option_says_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match="there are process, uv, docker"):
        make_provider("cloud", "echo")
    with pytest.raises(ConfigurationError, match="colour"):
        make_provider("process", "echo", colour="red")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment's folder, in a git repository."""
    folder = tmp_path_factory.mktemp("projects")
    run = [sys.executable, "-m", "envhive", "init", "my-game"]
    subprocess.run(run, cwd=folder, check=True, capture_output=True)
    made = folder / "my-game"
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "A game"]):
        subprocess.run(["git", "-c", "user.name=T", "-c", "user.email=t@example.org", *words], cwd=made, check=True)
    return made


def play_a_step(provider: UVProvider) -> None:
    with GenericEnvClient.from_provider(provider).sync() as env:
        env.reset()


@pytest.mark.skipif(not find_uv(), reason="uv is not installed")
def test_a_git_repository_runs_in_an_environment_of_its_own_made_by_uv(project: Path) -> None:
    said: list[str] = []
    play_a_step(UVProvider(f"file://{project}@main", progress=said.append))
    assert any("fetching" in sentence for sentence in said)
    assert any("with uv" in sentence for sentence in said)


@pytest.mark.skipif(not find_uv(), reason="uv is not installed")
def test_a_space_is_fetched_installed_and_served(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a hub that is a folder: git takes its address like any other."""
    space = tmp_path / "spaces" / "owner" / "my-game"
    subprocess.run(["git", "clone", "-q", str(project), str(space)], check=True)
    monkeypatch.setenv("HF_ENDPOINT", f"file://{tmp_path}")
    with GenericEnvClient.from_env("owner/my-game", use_docker=False, max_sessions=2).sync() as env:
        env.reset()
    with pytest.raises(ConfigurationError, match="OWNER/NAME"):
        GenericEnvClient.from_hub("my-game")


@pytest.mark.skipif(not find_uv(), reason="uv is not installed")
def test_a_provider_with_openenvs_constructor_starts_a_folder(project: Path) -> None:
    with OpenEnvUVProvider(str(project), env_vars={"MAX_CONCURRENT_ENVS": "3"}) as provider:
        provider.wait_for_ready(timeout_s=5)
        assert json.loads(ask(provider.base_url, "GET", "/health")[1])["max_sessions"] == 3


def test_a_folder_runs_in_an_environment_of_its_own_made_by_pip_where_there_is_no_uv(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_COMPILE", "1")  # which would be most of the time that it takes
    play_a_step(UVProvider(project, uv=""))


def test_a_project_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a folder nor"):
        UVProvider(tmp_path / "nowhere")
    with pytest.raises(ProviderError, match=r"does not exist|not appear to be a git repository"):
        UVProvider(f"file://{tmp_path}/nowhere").start()
