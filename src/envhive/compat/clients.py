"""What OpenEnv's clients have had over time, on EnvHive's."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import re
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Generic, Self, TypeVar

from envhive.client import client as native
from envhive.client import mcp, sync
from envhive.client.launch import servers_of
from envhive.client.options import websocket_url
from envhive.client.sync import is_in_background, is_on_a_loop, run_in_background, shared_loop
from envhive.client.transport import Transport
from envhive.compat.closed import ConnectionClosedError
from envhive.errors import (
    ConfigurationError,
    ConnectionLostError,
    EnvironmentFailureError,
    RequestError,
    SessionError,
)
from envhive.fleet.fleet import Fleet
from envhive.providers.base import Provider
from envhive.types import Observation, State, StepResult

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
T = TypeVar("T")
_NOWHERE: Final = "http://not-started-yet"
_SAID: Final = "Server error: "


class EnvClient(native.EnvClient[ActT, ObsT, StateT]):
    """OpenEnv's client: in plain code its methods return results, and where an event loop runs they are awaited.

    A `provider` without a `base_url` is started with the first connection, and stopped when the client is closed.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 60.0,
        max_message_size_mb: float = 100.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        if base_url is None and provider is None:
            raise ValueError("EnvClient requires either base_url or provider.")
        super().__init__(
            base_url or _NOWHERE,
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            websocket_ping_interval_s=websocket_ping_interval_s,
            websocket_ping_timeout_s=websocket_ping_timeout_s,
            mode=mode,
            headers=headers,
            **options,
        )
        self._starts_provider = base_url is None
        if base_url is None:
            self._base_url = ""
        self._provider = provider
        self._is_plain: bool | None = None
        """Whether it is used by plain code; None before its first use."""
        self._children: list[EnvClient[Any, Any, Any]] = []

    @property
    def base_url(self) -> Any:
        """The server's address; None until a provider is started."""
        return self._base_url or None

    # What scripts reach for by OpenEnv's names.

    @property
    def _message_timeout(self) -> float | None:
        return self._options.message_timeout_s

    @_message_timeout.setter
    def _message_timeout(self, seconds: float | None) -> None:
        self._options = replace(self._options, message_timeout_s=seconds)

    @property
    def _connect_timeout(self) -> float:
        return self._options.connect_timeout_s

    @_connect_timeout.setter
    def _connect_timeout(self, seconds: float) -> None:
        self._options = replace(self._options, connect_timeout_s=seconds)

    @property
    def _ws_url(self) -> str | None:
        return self._url if self._base_url else None

    @property
    def _ws(self) -> Transport | None:
        """The connection, if there is one. Some set its `ping_interval` to None, which changes nothing here."""
        return self._transport

    @property
    def _provider(self) -> Any:
        return self._servers if self._provided is None else self._provided.provider

    @_provider.setter
    def _provider(self, provider: Any) -> None:
        self._provided = None if provider is None else _Provided(provider)
        if not self._starts_provider:
            self._servers = self._provided

    async def _ensure_connected(self) -> None:
        await super().connect()

    # Each of them for both kinds of code.

    def connect(self) -> Any:
        return self._either(super().connect)

    def reset(self, **kwargs: Any) -> Any:
        return self._either(functools.partial(super().reset, **kwargs))

    def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return self._either(functools.partial(super().step, action, timeout_s))

    def state(self) -> Any:
        return self._either(super().state)

    def close(self) -> Any:
        return self._either(self._close)

    def disconnect(self) -> Any:
        return self.close()

    async def _close(self) -> None:
        children, self._children = self._children, []
        for child in children:
            await native.EnvClient.close(child)
        await super().close()
        if self._starts_provider:
            self._base_url = ""

    def _either(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        if not is_on_a_loop():
            self._is_plain = True
            return run_in_background(call())
        if is_in_background() or self._is_plain is False:
            return call()
        return run_in_background(call()) if self._is_plain else _Pending(self, call)

    async def __aenter__(self) -> Self:
        self._is_plain = False
        await super().connect()
        return self

    def __enter__(self) -> Self:  # type: ignore[override]
        self._is_plain = True
        run_in_background(super().connect())
        return self

    def __exit__(self, *exc_info: object) -> None:
        run_in_background(self._close())

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        return SyncEnvClient(self)

    async def new_session(self) -> Self:
        """Another client of the same server, with a session of its own. It is closed with this one."""
        if not self._base_url:
            await super().connect()
        child = copy.copy(self)
        child._transport, child._home, child._servers = None, None, None
        child._provided, child._starts_provider, child._children = None, False, []
        await native.EnvClient.connect(child)
        self._children.append(child)
        return child

    async def _request(self, transport: Transport, kind: str, data: Any = None, timeout_s: float | None = None) -> Any:
        with _in_openenvs_words():
            return await super()._request(transport, kind, data, timeout_s)

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message of OpenEnv's wire, and its reply: what some tool clients are written with."""
        kind = message["type"]
        data = await self._request(await self._connected(), kind, message.get("data"))
        return {"type": kind if kind in ("state", "mcp") else "observation", "data": data}

    async def _connected(self, *, may_reconnect: bool = False) -> Transport:
        if not self._base_url and self._provided is not None:
            self._servers = self._provided
            url = await asyncio.to_thread(self._provided.start)
            self._base_url, self._url = url.rstrip("/"), websocket_url(url)
        with _in_openenvs_words():
            return await super()._connected(may_reconnect=may_reconnect)


@contextlib.contextmanager
def _in_openenvs_words() -> Iterator[None]:
    """A server's errors read as they do with OpenEnv's client: some look for the code in them."""
    try:
        yield
    except (RequestError, EnvironmentFailureError, SessionError) as error:
        if error.is_from_server and not error.message.startswith(_SAID):
            code = "" if "(code: " in error.message else f" (code: {error.code})"
            error.message = f"{_SAID}{error.message or error}{code}"
        raise
    except ConnectionLostError as lost:
        if isinstance(lost, ConnectionClosedError):
            raise
        raise ConnectionClosedError.of(lost) from lost


class _Pending(Generic[T]):
    """A call where an event loop runs, of a client that has not been used yet: to await, or to look at (a notebook)."""

    def __init__(self, client: EnvClient[Any, Any, Any], call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._client = client
        self._call = call
        self._results: list[T] = []

    def __await__(self) -> Generator[Any, Any, T]:
        self._client._is_plain = False
        return self._call().__await__()

    def __getattr__(self, name: str) -> Any:
        if not self._results:
            self._client._is_plain = True
            self._results.append(run_in_background(self._call()))
        return getattr(self._results[0], name)


class _Provided:
    """A provider of OpenEnv's kind or of EnvHive's, as servers of a client."""

    token = None

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self._servers: Any = servers_of(provider) if isinstance(provider, (Provider, Fleet)) else provider
        self._lock = threading.Lock()
        self._url: str | None = None

    def start(self) -> str:
        with self._lock:
            if self._url is None:
                try:
                    self._url = self._start()
                except BaseException:  # Ctrl-C too: what is half started is stopped
                    self._stop()
                    raise
            return self._url

    def stop(self) -> None:
        with self._lock:
            self._url = None
            self._stop()

    def _start(self) -> str:
        provider = self._servers
        if isinstance(provider, (Provider, Fleet)):
            url = provider.start()
        elif hasattr(provider, "start_container"):
            url = str(provider.start_container())
            provider.wait_for_ready(url)
        elif hasattr(provider, "start"):
            url = str(provider.start())
            provider.wait_for_ready()
        else:
            name = type(provider).__name__
            raise ConfigurationError(f"{name} is no provider: it has neither start nor start_container.")
        return url

    def _stop(self) -> None:
        stop = getattr(self._servers, "stop_container", None) or getattr(self._servers, "stop", None)
        if stop is not None:
            stop()


class SyncEnvClient(sync.SyncEnvClient[ActT, ObsT, StateT]):
    """The client for plain code, by OpenEnv's calls."""

    def step(self, action: ActT, timeout_s: float | None = None, **kwargs: Any) -> StepResult[ObsT]:
        return super().step(action, timeout_s)

    @property
    def _async(self) -> native.EnvClient[ActT, ObsT, StateT]:
        return self._client

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Shared by all sync clients of the process: it is not for one of them to stop."""
        return shared_loop()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_client":  # the latter while it is copied, or unpickled
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._of_client(name)

    def new_session(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        client = self.async_client
        if not isinstance(client, EnvClient):
            raise ConfigurationError("new_session is a method of clients that derive from OpenEnv's EnvClient.")
        return SyncEnvClient(self._run(client.new_session))


class GenericEnvClient(EnvClient[Any, dict[str, Any], dict[str, Any]]):
    """A client for any environment, in plain dicts."""


class MCPToolClient(EnvClient[Any, Observation, State], mcp.MCPToolClient):  # type: ignore[misc]
    """One session with an environment that offers tools."""


class GenericAction(dict[str, Any]):
    """An action of any fields.

    Example:
        >>> GenericAction(move=3)
        GenericAction(move=3)
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)

    def __repr__(self) -> str:
        return f"GenericAction({', '.join(f'{name}={value!r}' for name, value in self.items())})"


def run_async_safely(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from plain code; on another thread where an event loop runs in this one."""
    if not is_on_a_loop():
        return asyncio.run(coro)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coro).result()


def convert_to_ws_url(url: str) -> str:
    """An address with the scheme of WebSockets.

    Example:
        >>> convert_to_ws_url("https://example.org/")
        'wss://example.org'
    """
    scheme, separator, rest = url.rstrip("/").partition("://")
    if not separator:
        return f"ws://{scheme}"
    return f"{ {'http': 'ws', 'https': 'wss'}.get(scheme, scheme) }://{rest}"


def hf_space_subdomain(repo_id: str) -> str:
    """What a Space is called in the addresses of Hugging Face.

    Example:
        >>> hf_space_subdomain("Someone/word_game")
        'someone-word-game'
    """
    return re.sub(r"[^a-z0-9]", "-", repo_id.lower())
