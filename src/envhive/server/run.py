"""Running an app with uvicorn, on the fast lane, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Final

import uvicorn

from envhive.errors import ConfigurationError
from envhive.server import descriptors, forks
from envhive.server.config import ServerConfig
from envhive.server.crew import current_crew
from envhive.server.gate import Gate
from envhive.server.hive import Hive
from envhive.server.intake import Intake
from envhive.server.leaving import FORCED_EXIT

logger: Final = logging.getLogger("envhive.server")

_BACKLOG: Final = 4096
_INSISTED_S: Final = 2.0
"""How long an app may take to shut down when a second signal says that it is to be at once."""
_YOUNG_OBJECTS: Final = 20_000
"""Objects made before Python looks for cycles among them; its default of 700 is for smaller programs."""


class _ImpatientExecutor(ThreadPoolExecutor):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


class Moments:
    """What else is to happen, and when, in the life of a server. Does nothing unless overridden."""

    async def before_listening(self, server: uvicorn.Server) -> None:
        """The app has started up; nobody can connect yet."""

    def ready(self) -> None:
        """Connections are welcome."""

    def draining(self) -> None:
        """Sessions may finish, and newcomers are to go elsewhere."""

    def stopping(self) -> None:
        """No more connections are accepted."""


class Server(uvicorn.Server):
    """uvicorn's server, except that SIGTERM and SIGINT end it with exit code 0, and that it tells its moments."""

    def __init__(
        self, config: uvicorn.Config, moments: Moments, grace_s: float, listeners: list[socket.socket]
    ) -> None:
        super().__init__(config)
        self._moments = moments
        self._grace_s = grace_s
        self._listeners = listeners
        self._drained_by: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        # A step may wait in `asyncio.to_thread`; that must not keep the process from ending.
        self._loop.set_default_executor(_ImpatientExecutor())
        start_app = self.lifespan.startup

        async def start_app_and_wait() -> None:
            await start_app()
            await self._moments.before_listening(self)

        # uvicorn starts the app's lifespan and then listens; this puts the moment in between.
        self.lifespan.startup = start_app_and_wait
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what is there now stays: it need not be looked through for cycles again and again
            self._moments.ready()

    async def on_tick(self, counter: int) -> bool:
        if self._drained_by is not None and not self.should_exit:
            over = time.monotonic() >= self._drained_by
            self.should_exit = over or not any(hive.active_sessions for hive in Hive.all)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._moments.stopping()
        if not self.force_exit:
            # After draining the grace has been used up, or nobody needs it.
            Hive.closing_at = self._drained_by or time.monotonic() + self._grace_s
            if self._drained_by is not None:
                # Or uvicorn would wait for the connections of what is left, for as long again.
                await asyncio.gather(*(hive.end_sessions() for hive in list(Hive.all)))
        await super().shutdown(sockets)
        # Those that no lifespan ends: of apps that are mounted, or whose lifespan has made them.
        await asyncio.gather(*(hive.shutdown() for hive in list(Hive.all) if hive.sessions and not self.force_exit))
        if self.force_exit:
            # uvicorn leaves the app where it is then, to be cancelled, which would be logged as if it had failed.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.lifespan.shutdown(), _INSISTED_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with forks.serving(self._listeners, before):
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM asks to let sessions finish, SIGINT to let steps finish; a second signal insists."""
        if self.should_exit or self._drained_by is not None:
            self.force_exit = True
            Hive.closing_at = 0.0
        if sig == signal.SIGTERM and not self.force_exit:
            self._drained_by = time.monotonic() + self._grace_s
            if self._loop is not None:  # soon, and not in the midst of whatever this signal has interrupted
                self._loop.call_soon_threadsafe(self._drain)
        else:
            self.should_exit = True
            running = sum(session.is_busy for hive in Hive.all for session in hive.sessions.values())
            if running and not self.force_exit:
                logger.info("Stopping: %d running request(s) may finish; a second signal does not wait", running)

    def _drain(self) -> None:
        self._moments.draining()
        for hive in Hive.all:
            hive.drain()


def run_app(app: Any, config: ServerConfig, listeners: list[socket.socket], moments: Moments) -> int:
    """Serve `app` on listening sockets until a signal says stop. Returns the exit code."""
    descriptors.raise_limit()
    crew = current_crew()
    if crew is None or crew.index == 0:
        sessions = sum(hive.limit.sessions for hive in Hive.all)
        descriptors.warn_if_too_few(math.ceil(sessions / (1 if crew is None else crew.ledger.workers)))
    Hive.closing_at = None
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
    server = Server(
        uvicorn.Config(
            Gate(app, config) if config.tokens else app,  # an app that is none of ours asks for tokens, too
            host=config.host,
            port=config.port,
            **Intake(config).protocols,
            ws_max_size=config.max_message_size,
            ws_ping_interval=config.ping_interval,
            ws_ping_timeout=config.ping_timeout,
            ws_per_message_deflate=False,
            log_config=None,
            access_log=config.log_level == "debug",
            timeout_graceful_shutdown=math.ceil(config.grace_period) or 1,
            lifespan="on",
            server_header=False,
            backlog=_BACKLOG,
        ),
        moments,
        config.grace_period,
        listeners,
    )
    try:
        server.run(sockets=listeners)
    finally:
        for listener in listeners:
            listener.close()
    return FORCED_EXIT if server.force_exit or not server.started else 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `ConfigurationError` with a sentence instead of an errno."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or asyncio would set no TCP_NODELAY
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        way_out = " Another port may be free: --port, or PORT." if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"Cannot listen on {host}:{port}: {error.strerror or error}.{way_out}") from None
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
