"""A way back that leads elsewhere is no way back: no step is ever taken in another session than its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from envhive import GenericEnvClient
from envhive.errors import ConnectionLostError, EnvHiveError
from tests.support.envs import async_counting
from tests.support.servers import eventually, serving

OBSERVATION = {"observation": {"total": 1}, "reward": 1.0, "done": False}
HELLO = {"type": "hello", "session_id": "s", "resume_token": "t", "lease_s": 30, "resumed": False, "limits": {}}


@contextmanager
def server_of(*visits: Callable[[ServerConnection], None], layers: tuple[int, ...]) -> Iterator[str]:
    """A server that treats its first connection as the first of `visits` says, and so on."""
    arrived = iter(range(len(visits)))
    chosen = iter(layers)

    def handle(connection: ServerConnection) -> None:
        try:
            visits[next(arrived)](connection)
        except (ConnectionClosed, OSError):
            pass

    def select(connection: ServerConnection, offered: Any) -> Any:
        return "envhive.v1" if next(chosen) == 2 else None

    with serve(handle, "127.0.0.1", 0, select_subprotocol=select) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join(10)


def greet_answer_a_reset_and_hang_up_on_a_step(connection: ServerConnection) -> None:
    connection.send(json.dumps(HELLO))
    reset = json.loads(connection.recv())
    connection.send(json.dumps({"type": "observation", "data": OBSERVATION, "id": reset["id"]}))
    connection.recv()
    connection.socket.close()


async def lose_a_step(url: str) -> None:
    async with GenericEnvClient(url) as client:
        await client.reset()
        with pytest.raises(ConnectionLostError):
            await client.step({"by": 1})


def test_a_server_that_does_not_know_the_session_does_not_get_the_step() -> None:
    heard: list[Any] = []

    def plain(connection: ServerConnection) -> None:
        for frame in connection:
            heard.append(json.loads(frame)["type"])
            connection.send(json.dumps({"type": "observation", "data": OBSERVATION}))

    with server_of(greet_answer_a_reset_and_hang_up_on_a_step, plain, layers=(2, 1)) as url:
        asyncio.run(lose_a_step(url))
    assert "step" not in heard


def test_another_session_than_the_one_asked_for_does_not_get_the_step() -> None:
    heard: list[Any] = []

    def another(connection: ServerConnection) -> None:
        heard.append(json.loads(connection.recv())["type"])
        connection.send(json.dumps({**HELLO, "session_id": "another"}))
        for frame in connection:
            heard.append(json.loads(frame)["type"])

    with server_of(greet_answer_a_reset_and_hang_up_on_a_step, another, layers=(2, 2)) as url:
        asyncio.run(lose_a_step(url))
    assert heard[0] == "resume"
    assert "step" not in heard


def test_a_client_that_is_closed_while_it_looks_for_the_way_back_stays_closed() -> None:
    looking = threading.Event()

    def silent(connection: ServerConnection) -> None:
        looking.set()
        connection.recv()
        connection.recv()  # for ever: no hello comes

    async def go(url: str) -> None:
        client = GenericEnvClient(url)
        await client.reset()
        with pytest.raises((EnvHiveError, TimeoutError)):
            await asyncio.wait_for(client.step({"by": 1}), 0.01)
        resetting = asyncio.create_task(client.reset())
        assert await asyncio.to_thread(looking.wait, 10)
        await client.close()
        with pytest.raises(EnvHiveError):
            await asyncio.wait_for(resetting, 15)
        assert client._transport is None

    def hang_up_at_once(connection: ServerConnection) -> None:
        connection.send(json.dumps(HELLO))
        reset = json.loads(connection.recv())
        connection.send(json.dumps({"type": "observation", "data": OBSERVATION, "id": reset["id"]}))
        connection.recv()

    with server_of(hang_up_at_once, silent, silent, layers=(2, 2, 2)) as url:
        asyncio.run(go(url))


def test_a_step_of_a_lost_session_is_not_taken_in_the_next_one() -> None:
    env = async_counting()

    async def go(server: Any) -> None:
        client = GenericEnvClient(server.url)
        await client.reset(seed=100)
        hive = server.server.hive
        running = asyncio.create_task(client.step({"by": 1, "seconds": 60}))
        await asyncio.to_thread(eventually, lambda: [s.busy_with for s in hive.sessions.values()] == ["step"])
        waiting = asyncio.create_task(client.step({"by": 7}))
        await asyncio.sleep(0)
        (session,) = hive.sessions.values()
        hive._runners.loop.call_soon_threadsafe(session.end)

        async def begin_anew() -> None:
            with pytest.raises(EnvHiveError):
                await running
            assert (await client.reset(seed=200)).observation["total"] == 200

        await begin_anew()
        with pytest.raises(EnvHiveError):
            await asyncio.wait_for(waiting, 10)
        assert (await client.state())["step_count"] == 0
        await client.close()

    with serving(env, "fast") as server:
        asyncio.run(go(server))
