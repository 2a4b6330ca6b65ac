"""Running an app with uvicorn, on the fast lane, from start to a clean end."""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import uvicorn

from envhive.errors import ConfigurationError
from envhive.server.config import ServerConfig
from envhive.server.fast_lane import FastLaneProtocol

logger: Final = logging.getLogger("envhive.server")

_BACKLOG: Final = 4096
_FORCED_EXIT: Final = 1


class Server(uvicorn.Server):
    """uvicorn's server, except that SIGTERM and SIGINT end it with exit code 0, and that it says when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks to finish; a second one insists."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


def run_server(app: Any, config: ServerConfig, on_ready: Callable[[], None] = lambda: None) -> int:
    """Serve `app` until a signal says stop. Returns the exit code."""
    raise_file_limit()
    listener = bind(config.host, config.port)
    server = Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            ws=FastLaneProtocol,
            ws_max_size=config.max_message_size,
            ws_ping_interval=config.ping_interval,
            ws_ping_timeout=config.ping_timeout,
            ws_per_message_deflate=False,
            log_config=None,
            access_log=config.log_level == "debug",
            timeout_graceful_shutdown=int(config.grace_period) or 1,
            lifespan="on",
            server_header=False,
        ),
        on_ready,
    )
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    return _FORCED_EXIT if server.force_exit or not server.started else 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `ConfigurationError` with a sentence instead of an errno."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def raise_file_limit() -> None:
    """A session is a file descriptor: allow as many as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
