"""What OpenEnv's clients say when a server refuses: some projects look for the code in the text."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
import websockets

from envhive.compat.clients import GenericEnvClient, MCPToolClient
from envhive.errors import ConnectError, ConnectionLostError, RequestTimeoutError, SessionCapacityError, SessionError
from tests.client.peers import Peer, close_frame, peer_server
from tests.support.envs import counting
from tests.support.servers import serving


def test_a_full_server_is_told_by_its_code() -> None:
    with serving(counting(), "fast", max_concurrent_envs=1) as server, GenericEnvClient(server.url).sync() as first:
        first.reset()
        for _ in range(2):
            with pytest.raises(SessionCapacityError) as caught, GenericEnvClient(server.url).sync() as second:
                second.reset()
            assert str(caught.value).startswith("Server error: Server at capacity: 1 of 1")
            assert str(caught.value).endswith("(code: CAPACITY_REACHED)")


def test_an_error_of_the_clients_own_is_not_told_as_the_servers() -> None:
    async def scenario(url: str) -> None:
        client = GenericEnvClient(url)
        await client.reset()
        with pytest.raises(SessionError, match=r"^This client belongs to another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(use(client)))
        await client.close()

    async def use(client: GenericEnvClient) -> None:
        await client.step({"by": 1})

    with serving(counting(), "fast") as server:
        asyncio.run(scenario(server.url))


def test_messages_can_be_sent_as_they_are() -> None:
    async def scenario(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            stepped = await client._send_and_receive({"type": "step", "data": {"by": 3}})
            assert (stepped["type"], stepped["data"]["observation"]["total"]) == ("observation", 3)
            assert (await client._send_and_receive({"type": "state"}))["data"]["step_count"] == 1
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            answer = await client._send_and_receive({"type": "mcp", "data": call})
            assert (answer["type"], answer["data"]["id"]) == ("mcp", 1)

    with serving(counting(), "fast") as server:
        asyncio.run(scenario(server.url))


@pytest.mark.parametrize("client_cls", [GenericEnvClient, MCPToolClient])
@pytest.mark.parametrize("code", [None, 1001, 1011])
def test_a_lost_connection_is_what_loops_that_try_again_look_for(
    client_cls: type[GenericEnvClient], code: int | None
) -> None:
    def leave(peer: Peer) -> None:
        peer.receive()
        if code is not None:
            peer.send_bytes(close_frame(code, "gone"))

    with peer_server(leave) as server, client_cls(server.url).sync() as client:
        with pytest.raises(websockets.exceptions.ConnectionClosed) as caught:
            client.state()
        for lost in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
            assert type(lost).__name__ == "ConnectionClosedError"
            assert isinstance(lost, ConnectionLostError)
            assert isinstance(lost, ConnectionError)
            assert (lost.rcvd and lost.rcvd.code, lost.sent) == (code, None)
            assert (lost.code, lost.reason) == ((1006, "") if code is None else (code, "gone"))
            assert ("was lost" if code is None else f"({code}: gone)") in str(lost)


def test_a_time_out_that_is_set_afterwards_holds() -> None:
    with peer_server(Peer.ignore_everything) as server, GenericEnvClient(server.url).sync() as client:
        client._async._message_timeout = 0.05
        with pytest.raises(RequestTimeoutError, match=r"within 0\.05 s"):
            client.reset()
    with peer_server(Peer.wait_until_gone, shake_hands=False) as silent:
        client = GenericEnvClient(silent.url).sync()
        client._async._connect_timeout = 0.05
        with pytest.raises(ConnectError, match=r"within 0\.05 s"):
            client.reset()
