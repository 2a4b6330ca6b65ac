"""What holds for every provider that places servers on a cluster. Each one's tests are a subclass of these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.errors import ProviderError, SessionError, TransportError
from envhive.fleet.fleet import Fleet
from envhive.providers.base import Provider, Replica
from tests.support.servers import eventually

TARGET = "tests.support.wild:Wild"
START_S = 90.0

_SCRIPT = """
import sys, time
{start}
provider.start()
print(provider.run_id, flush=True)
sys.stdin.read()
"""


def processes_of(run_id: str) -> list[int]:
    """Whatever runs on this machine with the run's id on its command line: servers, guards, sweeps."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if run_id.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


class Player:
    """A client, and the process of the server that has its session."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.client = stack.enter_context(GenericEnvClient(url, message_timeout_s=30).sync())
        self.pid: int = self.client.reset().observation["pid"]

    def plays(self) -> bool:
        result = self.client.step({"do": "add"})
        return bool(result.observation["pid"] == self.pid)


def players_on_each(fleet: Fleet, stack: ExitStack) -> list[Player]:
    """One player on every replica, as soon as the proxy leads to them all."""
    found: dict[int, Player] = {}

    def on_each() -> bool:
        player = Player(fleet.url, stack)
        if found.setdefault(player.pid, player) is not player:
            player.client.close()
        return len(found) == fleet.provider.count

    eventually(on_each, within=30)
    return list(found.values())


def healthy(fleet: Fleet) -> list[str]:
    return [member.name for member in fleet.members() if member.status == "ok"]


@contextmanager
def going_on(job: Callable[[], None]) -> Iterator[threading.Thread]:
    """Do something on a thread; it has ended well when the block has."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except BaseException as error:  # raised below, where the test sees it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(START_S)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


class Engine(ABC):
    """An engine with two free nodes or more, as these tests need it."""

    starting: str
    """Python that makes a `provider` of two replicas, in a process of its own."""

    @abstractmethod
    def provider(self, target: str, **options: Any) -> Provider:
        """A provider, not yet started."""

    @abstractmethod
    def has(self, run_id: str) -> list[str]:
        """The jobs or actors of a run that there still are."""

    @abstractmethod
    def node_of(self, replica: Replica) -> str:
        """The node that a replica is on."""

    def has_nothing(self, run_id: str) -> bool:
        return not self.has(run_id) and not processes_of(run_id)

    @contextmanager
    def starter(self, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """A program that has started two replicas, and would stop them if it were not killed."""
        script = _SCRIPT.format(start=self.starting.format(options=options))
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process, process.stdout.readline().strip()
            finally:
                process.kill()


class ProviderContract:
    """The tests. `engine` is a fixture of the module that has the subclass."""

    @pytest.fixture(scope="class")
    @classmethod
    def fleet(cls, engine: Engine) -> Iterator[Fleet]:
        """Two replicas behind Envoy. The tests that use it go through its life, in the order in which they stand."""
        with Fleet(engine.provider(TARGET, replicas=2)) as fleet:
            yield fleet

    def test_a_target_that_is_not_there_is_an_error_with_the_servers_own_words(self, engine: Engine) -> None:
        provider = engine.provider("no_such_module:Env")
        with pytest.raises(ProviderError, match="There is no module 'no_such_module'"):
            provider.start()
        eventually(lambda: engine.has_nothing(provider.run_id), within=30)

    def test_replicas_answer_from_different_nodes_and_leaving_leaves_nothing(self, engine: Engine) -> None:
        said: list[str] = []
        provider = engine.provider(TARGET, replicas=2, token="open-sesame", progress=said.append)
        with provider:
            first, second = provider.replicas()
            assert engine.node_of(first) != engine.node_of(second)
            for replica in (first, second):
                with GenericEnvClient(replica.url, token="open-sesame").sync() as env:
                    env.reset()
                    assert env.step({"do": "add", "by": 3}).observation["total"] == 3
            assert provider.logs(200).count("EnvHive serves") == 2
            assert engine.has(provider.run_id)
            assert processes_of(provider.run_id)
        assert any("of 2 replicas healthy" in sentence for sentence in said)
        eventually(lambda: engine.has_nothing(provider.run_id), within=15)

    def test_a_starter_that_is_killed_leaves_nothing(self, engine: Engine) -> None:
        with engine.starter() as (process, run_id):
            assert len(engine.has(run_id)) == 2
            process.kill()
            eventually(lambda: engine.has_nothing(run_id), within=60)

    # A fleet's life.

    def test_sessions_spread_over_the_replicas(self, fleet: Fleet) -> None:
        with ExitStack() as stack:
            assert all(player.plays() for player in players_on_each(fleet, stack))

    def test_a_killed_replicas_client_fails_typed_while_others_go_on(self, fleet: Fleet) -> None:
        before = healthy(fleet)
        with ExitStack() as stack:
            victim, other = players_on_each(fleet, stack)
            os.kill(victim.pid, signal.SIGKILL)
            with pytest.raises((SessionError, TransportError)):
                victim.plays()
            assert other.plays()
            eventually(lambda: len(healthy(fleet)) == 2, within=START_S)
            assert other.plays()
            assert len({*healthy(fleet), *before}) == 3  # the new one has a new name
            victim.pid = victim.client.reset().observation["pid"]
            assert victim.plays()

    def test_scaling_down_lets_sessions_finish(self, fleet: Fleet) -> None:
        with ExitStack() as stack:
            players = players_on_each(fleet, stack)
            with going_on(lambda: fleet.scale(1)) as scaling:
                eventually(lambda: "draining" in {member.status for member in fleet.members()}, within=START_S)
                assert all(player.plays() for player in players)
                assert scaling.is_alive()
                sessions = {member.status: member for member in fleet.members()}
                assert sessions["draining"].sessions == 1
                for player in players:
                    player.client.close()
        assert len(fleet.members()) == 1

    def test_a_restart_lets_sessions_finish(self, fleet: Fleet) -> None:
        with ExitStack() as stack:
            (old,) = players_on_each(fleet, stack)
            with going_on(fleet.restart):
                eventually(lambda: "draining" in {member.status for member in fleet.members()}, within=START_S)
                assert old.plays()
                old.client.close()
            (new,) = players_on_each(fleet, stack)
            assert new.pid != old.pid
        assert len(fleet.members()) == 1

    def test_scaling_up_waits_for_the_new_ones(self, fleet: Fleet) -> None:
        fleet.scale(2)
        assert len(healthy(fleet)) == 2
        with ExitStack() as stack:
            assert all(player.plays() for player in players_on_each(fleet, stack))
