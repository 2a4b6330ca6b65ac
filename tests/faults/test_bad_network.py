"""Packets are lost, late, or never come: steps are run once, and whoever is gone gives the place back.

The network is real: two hosts in namespaces of their own, and TCP between them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode
from websockets.protocol import Event

from envhive import GenericEnvClient
from tests.support.belongings import Tally, nothing_left_behind
from tests.support.networks import Cable, Host, two_hosts
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
PING: Final = ("--ping-interval", "0.3", "--ping-timeout", "0.9")


@contextmanager
def far_away(tmp_path: Path, *options: str, **quality: Any) -> Iterator[tuple[ServerProcess, str, Host, Cable]]:
    """A server at the other end of a bad cable, its address there, the host to call it from, and the cable."""
    with two_hosts(**quality) as (there, here, cable):
        served = envhive_serve(
            "tests.support.wild:Wild", *options, host="0.0.0.0", namespace=there.name, cwd=ROOT, log=tmp_path / "log"
        )
        with served as server:
            yield server, f"{there.address}:{server.port}", here, cable


def are_alone(sessions: list[dict[str, Any]]) -> bool:
    """Whether there are sessions, and all of them without a client."""
    return {each["doing"].rpartition(" ")[2] for each in sessions} == {"client"}


async def step_and_count(url: str, steps: int, tally: Tally) -> None:
    """Step an environment that counts, and see that it counts exactly the steps that were taken."""
    patience = {"message_timeout_s": 60, "websocket_ping_interval_s": 0.5, "websocket_ping_timeout_s": 0.5}
    async with GenericEnvClient(url, **patience) as client:  # type: ignore[arg-type]
        await client.reset(seed=0)
        for number in range(1, steps + 1):
            assert (await client.step({"do": "add", "by": 1})).observation["total"] == number
            tally.answered()


def test_over_a_network_that_loses_and_delays_and_is_cut_every_step_runs_exactly_once(tmp_path: Path) -> None:
    with far_away(tmp_path, *PING, "--lease", "20", loss=0.05, delay_s=(0.01, 0.03)) as (server, address, here, cable):

        async def scenario(tally: Tally) -> None:
            clients = [asyncio.ensure_future(step_and_count(f"http://{address}", 30, tally)) for _ in range(8)]
            while tally.counts["answered"] < 60:
                await asyncio.sleep(0.02)
            cable.is_cut = True
            # The server has given up on all connections, and so have the clients, which wait for less long.
            await asyncio.to_thread(eventually, lambda: are_alone(server.sessions()))
            cable.is_cut = False
            await asyncio.gather(*clients)

        with nothing_left_behind(server, "5 % loss, 20 ms delay, and a cut: resuming clients") as tally:
            here.run(lambda: asyncio.run(scenario(tally)))
        assert tally.counts == {"answered": 8 * 30}
        assert cable.lost > 20


class Pinged(ClientConnection):
    """Counts the pings that it answers."""

    pings = 0

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame) and event.opcode is Opcode.PING:
            self.pings += 1
        super().process_event(event)


async def opened(address: str) -> Pinged:
    patience = {"ping_interval": None, "open_timeout": 60, "close_timeout": 60}
    ws = await connect(f"ws://{address}/ws", proxy=None, create_connection=Pinged, **patience)  # type: ignore[arg-type]
    assert isinstance(ws, Pinged)
    await ws.send('{"type":"reset"}')
    await ws.recv()
    return ws


def test_plain_clients_get_every_reply_once_and_in_order_over_a_network_that_loses_and_delays(tmp_path: Path) -> None:
    async def play(address: str, tally: Tally) -> None:
        ws = await opened(address)
        for number in range(1, 31):
            await ws.send('{"type":"step","data":{"do":"add","by":1}}')
            reply = json.loads(await ws.recv())
            assert reply["data"]["observation"]["total"] == number
            tally.answered()
        await ws.close()

    async def scenario(address: str, tally: Tally) -> None:
        await asyncio.gather(*(play(address, tally) for _ in range(8)))

    patience = ("--ping-interval", "2", "--ping-timeout", "10")  # so that none that is there is cut off
    with far_away(tmp_path, *patience, loss=0.05, delay_s=(0.01, 0.03)) as (server, address, here, cable):
        with nothing_left_behind(server, "5 % loss, 20 ms delay: plain clients") as tally:
            here.run(lambda: asyncio.run(scenario(address, tally)))
        assert tally.counts == {"answered": 8 * 30}
        assert cable.lost > 10


@pytest.mark.parametrize("workers", ["1", "2"])
def test_peers_that_vanish_without_a_word_give_their_places_back(workers: str, tmp_path: Path) -> None:
    options = (*PING, "--lease", "0.5", "--workers", workers, "--max-sessions", "12")
    with far_away(tmp_path, *options) as (server, address, here, cable):

        async def vanish(tally: Tally) -> None:
            plain = [await opened(address) for _ in range(8)]
            resuming = [GenericEnvClient(f"http://{address}") for _ in range(4)]
            for client in resuming:
                await client.reset()
                tally.answered()
            tally.answered(len(plain))
            assert (await asyncio.to_thread(server.health))["active_sessions"] == 12
            # Silent, but there: a second ping is for those who have answered the first.
            await asyncio.to_thread(eventually, lambda: all(ws.pings > 1 for ws in plain))
            assert (await asyncio.to_thread(server.health))["active_sessions"] == 12
            cable.is_cut = True
            for ws in plain:
                ws.transport.abort()
            for client in resuming:
                assert client._transport is not None
                client._transport.abort()

        with nothing_left_behind(server, f"12 half-open connections, {workers} worker(s)") as tally:
            here.run(lambda: asyncio.run(vanish(tally)))
            began = time.monotonic()
        assert time.monotonic() - began < 15
