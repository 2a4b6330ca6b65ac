"""Servers that are started for a client, and stopped with it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from envhive.errors import ConfigurationError
from envhive.fleet.fleet import Fleet
from envhive.providers.base import Provider

if TYPE_CHECKING:
    from envhive.client.client import EnvClient
    from envhive.client.sync import SyncEnvClient

ClientT = TypeVar("ClientT", bound="EnvClient[Any, Any, Any]")

_HUB: Final = "https://huggingface.co"
_SPACE_IMAGE: Final = "registry.hf.space/{}:latest"


class Servers(Protocol):
    """What can be started and stopped: a provider, a fleet, or a container provider of OpenEnv's kind."""

    def start(self) -> str:
        """Start, wait until healthy, and return the address; raises, with nothing left behind, if that fails."""

    def stop(self) -> None:
        """Stop everything. May be called twice."""

    @property
    def token(self) -> str | None:
        """What the servers ask of clients."""


class Launch(Coroutine[Any, Any, ClientT]):
    """A client whose servers are still to be started. Nothing happens before one of these:

        env = await launch                      then, at the end: await env.close()
        async with launch as env: ...
        with launch.sync() as env: ...          for plain code

    When the client is closed, its servers are stopped.
    """

    def __init__(self, make: Callable[[str, str | None], ClientT], servers: Servers) -> None:
        self._make = make
        self._servers = servers
        self._client: ClientT | None = None
        self._beginning: Coroutine[Any, Any, ClientT] | None = None

    def __await__(self) -> Generator[Any, None, ClientT]:
        return self._begin().__await__()

    # What `asyncio.run` and `create_task` want of a coroutine.

    def send(self, value: Any) -> Any:
        if self._beginning is None:
            self._beginning = self._begin()
        return self._beginning.send(value)

    def throw(self, *failure: Any) -> Any:
        if self._beginning is None:
            self._beginning = self._begin()
        return self._beginning.throw(*failure)

    def close(self) -> None:
        if self._beginning is not None:
            self._beginning.close()

    async def __aenter__(self) -> ClientT:
        return await self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    def sync(self) -> SyncEnvClient[Any, Any, Any]:
        """Start the servers and connect, for code without `await`."""
        from envhive.client.sync import run_in_background

        url = self._servers.start()  # on this thread, so that Ctrl-C reaches it
        try:
            return run_in_background(self._connect(url)).sync()
        except BaseException:  # Ctrl-C too: nobody would stop them
            self._servers.stop()
            raise

    async def _begin(self) -> ClientT:
        if self._client is not None:
            raise ConfigurationError("This launch has been used already: make another for more servers.")
        starting = asyncio.get_running_loop().run_in_executor(None, self._servers.start)
        try:
            url = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._stop_what_nobody_wants)
            raise
        try:
            return await self._connect(url)
        except BaseException:  # being cancelled too: nobody would stop them
            await asyncio.shield(asyncio.to_thread(self._servers.stop))
            raise

    async def _connect(self, url: str) -> ClientT:
        client = self._make(url, self._servers.token)
        await client.connect()
        client._servers = self._servers
        self._client = client
        return client

    def _stop_what_nobody_wants(self, started: asyncio.Future[str]) -> None:
        if not started.cancelled() and started.exception() is None:
            started.get_loop().run_in_executor(None, self._servers.stop)


def servers_of(provider: Provider | Fleet | Servers) -> Servers:
    """The servers of a provider, with a fleet's proxy before them if there are several."""
    if isinstance(provider, Provider):
        if provider.progress is None:
            provider.progress = tell
        return Fleet(provider) if provider.count > 1 else provider
    return provider


def servers_of_image(image: str, provider: Any, options: dict[str, Any]) -> Servers:
    """Containers of an image: of a provider of OpenEnv's kind if one is given, else of Docker on this machine."""
    if provider is None:
        from envhive.providers.docker import LocalDockerProvider

        return servers_of(LocalDockerProvider(image, **options))
    if not hasattr(provider, "start_container"):
        raise ConfigurationError("The provider of an image must have start_container, as OpenEnv's have.")
    return _Container(provider, image, options)


def servers_of_space(repo_id: str, provider: Any, options: dict[str, Any]) -> Servers:
    """The environment in a Hugging Face Space: its image in Docker, or its files in a virtual environment."""
    if repo_id.count("/") != 1 or repo_id.startswith("/") or repo_id.endswith("/"):
        raise ConfigurationError(f"{repo_id!r} is no name of a Space: it is OWNER/NAME.")
    if provider == "uv":
        from envhive.providers.uv import UVProvider

        hub = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
        return servers_of(UVProvider(f"{hub}/spaces/{repo_id}", **options))
    image = _SPACE_IMAGE.format(repo_id.replace("/", "-").replace("_", "-").lower())
    return servers_of_image(image, None if provider == "docker" else provider, options)


class _Container:
    """A container provider with the methods of OpenEnv's, as servers."""

    token = None

    def __init__(self, provider: Any, image: str, options: dict[str, Any]) -> None:
        self._provider = provider
        self._image = image
        self._options = options

    def start(self) -> str:
        try:
            url = str(self._provider.start_container(self._image, **self._options))
            self._provider.wait_for_ready(url)
        except BaseException:  # Ctrl-C too: what is half started is stopped
            self.stop()
            raise
        return url

    def stop(self) -> None:
        self._provider.stop_container()


def tell(sentence: str) -> None:
    """Say what is being waited for, to a person who watches."""
    if sys.stderr.isatty():
        print(f"envhive: {sentence}", file=sys.stderr, flush=True)
