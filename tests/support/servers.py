"""Servers for tests: the real ones, on a thread of the test's own process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, Literal

import uvicorn.server
from websockets.sync.client import ClientConnection, connect

from envhive import HTTPEnvServer, create_app
from envhive.server.config import ServerConfig, forced
from envhive.server.intake import Intake
from envhive.server.run import bind
from tests.support.envs import Move, Seen, counting

Lane = Literal["fast", "asgi"]

LOOK_S: Final = 0.01
"""Between two looks of uvicorn's at whether it is to stop, and whether it can. A tenth of a second, which is what it
takes, is lost several times over for each of the hundreds of servers here."""
uvicorn.server.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": lambda _: asyncio.sleep(LOOK_S)})  # type: ignore[attr-defined]


class Running:
    """A server that is up."""

    def __init__(self, app: Any, port: int, uvicorn_server: uvicorn.Server, stop: Callable[[], None]) -> None:
        self.app = app
        self.port = port
        self.stop = stop
        self._uvicorn = uvicorn_server

    @property
    def connections(self) -> int:
        """How many there are, of whatever kind."""
        return len(self._uvicorn.server_state.connections)

    def stop_soon(self) -> None:
        self._uvicorn.should_exit = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def server(self) -> HTTPEnvServer:
        found: HTTPEnvServer = self.app.state.envhive
        return found

    def connect(self, path: str = "/ws", **options: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)

    def wait_until_empty(self) -> None:
        eventually(lambda: self.server.active_sessions == 0)


@contextmanager
def running(app: Any, lane: Lane, **options: Any) -> Iterator[Running]:
    """Serve an app until the block ends."""
    listener = bind("127.0.0.1", 0)
    settings = {
        **(Intake(ServerConfig()).protocols if lane == "fast" else {"ws": "websockets-sansio"}),
        "log_config": None,
        "timeout_graceful_shutdown": 10,
        **options,
    }
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the server did not stop"

    try:
        eventually(lambda: server.started)
        yield Running(app, listener.getsockname()[1], server, stop)
    finally:
        stop()
        listener.close()


@contextmanager
def serving(env: Any, lane: Lane, *, config: dict[str, Any] | None = None, **app_options: Any) -> Iterator[Running]:
    """Serve an environment until the block ends."""
    config = config or {}
    with forced(**config):
        app = create_app(
            env, app_options.pop("action_cls", Move), app_options.pop("observation_cls", Seen), **app_options
        )
    ws_options = {"ws_max_size": config["max_message_size"]} if "max_message_size" in config else {}
    with running(app, lane, **ws_options) as server:
        yield server


@contextmanager
def serving_one(lane: Lane, **config: Any) -> Iterator[tuple[Running, ClientConnection]]:
    """A server with one place, and who has it."""
    with serving(counting(), lane, config=config, max_concurrent_envs=1) as server, server.connect() as first:
        reset(first)
        yield server, first


def eventually(
    condition: Callable[[], Any], within: float = 10.0, instead: Callable[[], Any] = lambda: "nothing is known"
) -> None:
    """Wait until something is so, and fail with what is so `instead` if it does not become so."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"it did not become so in time: {instead()}"
        time.sleep(0.005)


def ask(ws: ClientConnection, message: Any) -> dict[str, Any]:
    """Send a message (a dict, or a frame as it is) and return the reply."""
    ws.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
    return receive(ws)


def receive(ws: ClientConnection) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(ws.recv(timeout=10))
    return reply


def reset(ws: ClientConnection, **keywords: Any) -> dict[str, Any]:
    return ask(ws, {"type": "reset", "data": keywords})


def step(ws: ClientConnection, **action: Any) -> dict[str, Any]:
    return ask(ws, {"type": "step", "data": action})
