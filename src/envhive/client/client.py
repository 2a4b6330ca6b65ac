"""The client: `reset`, `step` and `state` of an environment somewhere else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import random
import time
import typing
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar

from pydantic import BaseModel, ValidationError

from envhive.client.options import TransportOptions, websocket_url
from envhive.client.transport import Transport
from envhive.errors import (
    BadReplyError,
    ConnectError,
    ConnectionLostError,
    EnvHiveError,
    RequestTimeoutError,
    SessionError,
    SessionExpiredError,
    SessionNotFoundError,
)
from envhive.types import StepResult
from envhive.wire.codec import model_of, validation_failure

if TYPE_CHECKING:
    from envhive.client.launch import Launch, Servers
    from envhive.client.sync import SyncEnvClient
    from envhive.fleet.fleet import Fleet
    from envhive.providers.base import Provider

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")


_MODES: Final = ("simulation", "production")
_ANSWERING_S: Final = 5.0
"""How much longer than a step may take its reply is waited for: the server says when time is up."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_REFUSED_S: Final = 5.0
"""How long to try while connections are refused, which mostly means that the server has ended."""


class _Home:
    """The event loop, and the process, that a client's connection lives in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self.connecting = asyncio.Lock()
        self.asking = asyncio.Lock()

    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop() and not self.is_of_a_parent()

    def is_of_a_parent(self) -> bool:
        return self._pid != os.getpid()

    def is_alive(self) -> bool:
        """Whether it still runs, elsewhere. A forked child has only the picture of its parent's loop."""
        return self._loop.is_running() and not self.is_of_a_parent()


def _model_or_none(argument: Any) -> type[Any] | None:
    return argument if inspect.isclass(argument) and issubclass(argument, BaseModel) else None


class EnvClient(Generic[ActT, ObsT, StateT]):
    """One session with an environment server. Asynchronous; `.sync()` gives the same for plain code.

    It connects by itself when it is first used. Calls from several tasks queue up, and each gets its own
    reply. When the connection is lost, an EnvHive server keeps the session for a while, and the client comes
    back to it by itself: a step whose reply was lost is not run again. If there is no way back (or the server is
    another one), `step` and `state` say so, and `reset` opens a new session.

    A typed client needs no code beyond its types:

        class Echo(EnvClient[EchoAction, EchoObservation, State]): ...

    or override `_step_payload`, `_parse_result` and `_parse_state`.

    Args:
        base_url: Where the server is: http, https, ws or wss.
        connect_timeout_s: How long connecting may take.
        message_timeout_s: How long a reply may take; None: for ever.
        max_message_size_mb: Largest reply accepted.
        websocket_ping_interval_s: Silence after which the server is asked whether it is there; None: never.
        websocket_ping_timeout_s: How long it may take to answer that; at most the interval.
        headers: Sent with the upgrade, for proxies.
        mode: `simulation` or `production`, for code that says so: what is offered, the server's mode decides.
        token: Sent to the server as a bearer token; `ENVHIVE_TOKEN` when not given.
        resume: Whether to come back to the session after a lost connection.
        action_cls, observation_cls, state_cls: The types to use, where the class does not name them.
    """

    action_cls: type[Any] | None = None
    observation_cls: type[Any] | None = None
    state_cls: type[Any] | None = None
    _parameters: ClassVar[tuple[Any, ...]] = ()
    """What a derived class puts for the three type parameters: types, or still variables."""

    def __init__(
        self,
        base_url: str,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = 60.0,
        max_message_size_mb: float = 100.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        headers: dict[str, str] | None = None,
        *,
        mode: str | None = None,
        token: str | None = None,
        resume: bool = True,
        action_cls: type[Any] | None = None,
        observation_cls: type[Any] | None = None,
        state_cls: type[Any] | None = None,
    ) -> None:
        if mode is not None and mode.lower() not in _MODES:
            raise ValueError(f"mode must be {' or '.join(_MODES)}, not {mode!r}")
        self._base_url = base_url.rstrip("/")
        self._url = websocket_url(base_url)
        self._options = TransportOptions(
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            ping_interval_s=websocket_ping_interval_s,
            ping_timeout_s=websocket_ping_timeout_s,
            headers=dict(headers or {}),
        ).with_token(token)
        declared = [_model_or_none(parameter) for parameter in self._parameters] or [None, None, None]
        self.action_cls = action_cls or self.action_cls or declared[0]
        self.observation_cls = observation_cls or self.observation_cls or declared[1]
        self.state_cls = state_cls or self.state_cls or declared[2]
        self._transport: Transport | None = None
        self._home: _Home | None = None
        self._closings = 0
        self._resumes = resume
        self._requests = 0
        self._servers: Servers | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            if inspect.isclass(origin) and issubclass(origin, EnvClient):
                variables: tuple[Any, ...] = getattr(origin, "__parameters__", ())
                given = dict(zip(variables, typing.get_args(base), strict=False))
                cls._parameters = tuple(
                    given.get(parameter, parameter) for parameter in origin._parameters or variables
                )

    @property
    def base_url(self) -> str:
        return self._base_url

    # Servers that are started for the client, and stopped with it.

    @classmethod
    def from_provider(cls, provider: Provider | Fleet, **client_options: Any) -> Launch[Self]:
        """Start the provider's servers, and connect to them; several replicas get a proxy before them.

        Example:
            with GenericEnvClient.from_provider(ProcessProvider("echo", replicas=2)).sync() as env:
                env.reset()

        `await` works as well, and `async with`. Closing the client stops the servers. `client_options` are those of
        the client's constructor.
        """
        from envhive.client.launch import Launch, servers_of

        return Launch(cls._maker(client_options), servers_of(provider))

    @classmethod
    def from_docker_image(cls, image: str, provider: Any = None, **options: Any) -> Launch[Self]:
        """The same with containers of an image: on this machine's Docker, or on another provider of containers.

        `options` are those of `LocalDockerProvider`, or of the given provider's `start_container`.
        """
        from envhive.client.launch import Launch, servers_of_image

        return Launch(cls._maker({}), servers_of_image(image, provider, options))

    @classmethod
    def from_hub(cls, repo_id: str, *, provider: Any = "docker", **options: Any) -> Launch[Self]:
        """The same with the environment of a Hugging Face Space, OWNER/NAME.

        Args:
            repo_id: The Space.
            provider: `docker` runs its image, `uv` installs its files; or a provider of containers.
            **options: Those of the provider, such as `replicas`.
        """
        from envhive.client.launch import Launch, servers_of_space

        return Launch(cls._maker({}), servers_of_space(repo_id, provider, options))

    @classmethod
    def from_env(cls, repo_id: str, *, use_docker: bool = True, provider: Any = None, **options: Any) -> Launch[Self]:
        """`from_hub` by OpenEnv's name and arguments."""
        return cls.from_hub(repo_id, provider=provider or ("docker" if use_docker else "uv"), **options)

    @classmethod
    def _maker(cls, options: dict[str, Any]) -> Callable[[str, str | None], Self]:
        def make(url: str, token: str | None) -> Any:
            given = options if token is None else {"token": token, **options}  # a derived class may not take one
            return cls(base_url=url, **given)

        return make

    # The environment.

    async def reset(self, *, timeout_s: float | None = None, **kwargs: Any) -> StepResult[ObsT]:
        """Begin an episode. Keywords (`seed`, `episode_id`, the environment's own) go to its `reset`.

        It may take `timeout_s`, as in `step`. After a lost connection this opens a new session, with a new environment;
        so it does when it has waited in vain behind a request that took too long itself.
        """
        before, closings = self._transport, self._closings
        transport = await self._connected(may_reconnect=True)
        if timeout_s is not None and transport.lease is None:
            kwargs["timeout_s"] = timeout_s  # the server keeps no limits; its environment may
        hangs = transport.hangs
        try:
            data = await self._request(transport, "reset", kwargs, timeout_s)
        except RequestTimeoutError:
            if not hangs or self._transport is not transport or closings != self._closings:
                raise
            self._transport = None
            transport.leave()
            transport = await self._connected(may_reconnect=True)
            data = await self._request(transport, "reset", kwargs, timeout_s)
        except (ConnectionLostError, SessionExpiredError, SessionNotFoundError):
            if transport is not before or closings != self._closings:
                raise
            # An old connection turned out to be dead, and its session with it: begin anew.
            transport = await self._connected(may_reconnect=True)
            data = await self._request(transport, "reset", kwargs, timeout_s)
        return self._parse_result(_as_dict(data))

    async def step(self, action: ActT, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Do `action`. It may take `timeout_s`, or as long as the client waits by default.

        An EnvHive server keeps that time limit, and stops what takes longer.
        """
        payload = self._step_payload(action)
        return self._parse_result(_as_dict(await self._request(await self._connected(), "step", payload, timeout_s)))

    async def state(self) -> StateT:
        """Where the environment stands."""
        return self._parse_state(_as_dict(await self._request(await self._connected(), "state")))

    async def _request(self, transport: Transport, kind: str, data: Any = None, timeout_s: float | None = None) -> Any:
        """Ask once, over as many connections as it takes."""
        assert self._home is not None
        if timeout_s is not None and not timeout_s > 0:  # also true for nan; the step would run, and nobody hear of it
            raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
        timeout = self._options.message_timeout_s if timeout_s is None else timeout_s
        if transport.lease is None:
            return await transport.request(kind, data, timeout)
        if timeout_s is not None:
            timeout = timeout_s + _ANSWERING_S
        async with self._home.asking:  # one at a time, so that at most one reply can be lost
            transport = self._same_session(transport) or transport  # another task may have come back meanwhile
            self._requests += 1
            number = self._requests
            began, pause = time.monotonic(), 0.0
            while True:
                try:
                    return await transport.request(kind, data, timeout, number=number, timeout_s=timeout_s)
                except ConnectionLostError:
                    if timeout is not None and time.monotonic() - began + pause > timeout:
                        raise  # each connection is lost in turn, perhaps because of the very reply
                    await asyncio.sleep(pause)
                    pause = min(2 * pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                    async with self._home.connecting:
                        resumed = await self._resume(transport)
                    if resumed is None:
                        raise
                    transport = resumed

    async def _resume(self, lost: Transport) -> Transport | None:
        """A new connection to the session of a lost one; None if there is no way back."""
        if not self._resumes or lost.given_up or lost.lease is None or not lost.lease.seconds:
            return None
        closings, began, pause = self._closings, lost.lost_at or time.monotonic(), _FIRST_PAUSE_S
        while self._closings == closings:
            if self._transport is not lost:
                return self._same_session(lost)  # another task was here first
            patience = lost.lease.seconds
            try:
                fresh = await Transport.connect(self._url, self._options, lost.lease)
            except ConnectError as error:
                if isinstance(error.__cause__, ConnectionRefusedError):
                    patience = min(patience, _REFUSED_S)  # nobody is there, so who could have the session?
            except EnvHiveError:
                break
            else:
                if self._closings == closings and fresh.resumed:
                    self._transport = fresh
                    return fresh
                await fresh.close()  # nobody wants it any longer, or it is another server's, with another session
                break
            left = patience - (time.monotonic() - began)
            if not lost.was_cut or left <= 0:
                break
            await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        lost.given_up = True
        return None

    async def _connect_anew(self, lost: Transport | None) -> Transport:
        """A connection for a new session. A server that has said goodbye may be on its way back: it is waited for."""
        closings, began, pause = self._closings, time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                return await Transport.connect(self._url, self._options)
            except ConnectError as error:
                left = _REFUSED_S - (time.monotonic() - began)
                refused = isinstance(error.__cause__, ConnectionRefusedError)
                if lost is None or lost.was_cut or not refused or left <= 0 or self._closings != closings:
                    raise  # after a cut the way back has been tried for as long already
            await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _same_session(self, lost: Transport) -> Transport | None:
        """The connection that the client has now, if it leads to the session of a lost one."""
        now = self._transport
        same = now is not None and now.lease is not None and lost.lease is not None
        return now if same and now.lease.session_id == lost.lease.session_id else None  # type: ignore[union-attr]

    # The connection.

    async def connect(self) -> Self:
        """Connect now rather than on first use."""
        await self._connected(may_reconnect=True)
        return self

    async def close(self) -> None:
        """End the session, and stop the servers that were started for it. May be called twice."""
        self._closings += 1
        transport, self._transport = self._transport, None
        servers, self._servers = self._servers, None
        try:
            if transport is not None and self._home is not None:
                await self._part_from(transport, self._home)
        finally:
            if servers is not None:
                await asyncio.shield(asyncio.to_thread(servers.stop))

    async def _part_from(self, transport: Transport, home: _Home) -> None:
        if home.is_here():
            await transport.close()
        elif transport.lease is not None and self._resumes and not home.is_alive() and not home.is_of_a_parent():
            # Its event loop has ended: without a word the session would wait for us.
            with contextlib.suppress(EnvHiveError):
                await (await Transport.connect(self._url, self._options, transport.lease)).close()

    async def disconnect(self) -> None:
        """The same as `close`."""
        await self.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is asynchronous: use `async with`, or `with client.sync() as env`.")

    def __exit__(self, *exc_info: object) -> None: ...

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """The same client for code without `await`."""
        from envhive.client.sync import SyncEnvClient

        return SyncEnvClient(self)

    async def _connected(self, *, may_reconnect: bool = False) -> Transport:
        home = self._home
        if home is None or not home.is_here():
            if home is not None and self._transport is not None:
                if home.is_alive():
                    raise SessionError(
                        "This client belongs to another event loop. Make one client for each loop; to use one session "
                        "from several, call client.sync() there, in asyncio.to_thread."
                    )
                self._transport = self._transport.left_behind(forked=home.is_of_a_parent())
            self._home = home = _Home()
        async with home.connecting:
            transport = self._transport
            if transport is not None and not may_reconnect:
                return transport  # open, or knowing why it is not
            closings = self._closings
            if closings and not may_reconnect:  # a session of its own would be another environment, never reset
                raise ConnectionLostError("The client was closed. reset() or connect() opens a new session.")
            if transport is not None and not transport.is_open and (resumed := await self._resume(transport)):
                return resumed  # also for a reset: a new session would need a second place
            if transport is None or not transport.is_open:
                if closings != self._closings:
                    raise ConnectionLostError("The client was closed while it was connecting")
                fresh = await self._connect_anew(transport)
                if closings != self._closings:
                    fresh.abort()
                    raise ConnectionLostError("The client was closed while it was connecting")
                if transport is not None:
                    transport.abort()
                self._transport = transport = fresh
            return transport

    # What typed clients may override.

    def _step_payload(self, action: ActT) -> Any:
        """The JSON object to send for an action."""
        if isinstance(action, dict) and self.action_cls is not None:
            try:
                return _dumped(self.action_cls.model_validate(action))
            except ValidationError as error:
                raise validation_failure(error) from error
        if isinstance(action, BaseModel):
            return _dumped(action)
        return action if isinstance(action, dict) or not hasattr(action, "__dict__") else vars(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """The result in a reply's data."""
        observation: Any = payload.get("observation", {})
        if self.observation_cls is not None:
            fields = self.observation_cls.model_fields
            beside = {name: payload[name] for name in ("reward", "done") if name in fields and name in payload}
            whole = {**observation, **beside} if isinstance(observation, dict) else observation
            observation = _as_model(self.observation_cls, whole)
        return StepResult(
            observation=observation,
            reward=payload.get("reward"),
            done=bool(payload.get("done", False)),
            metadata=payload.get("metadata"),
        )

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """The state in a reply's data."""
        parsed: Any = payload if self.state_cls is None else _as_model(self.state_cls, payload)
        return parsed  # type: ignore[no-any-return]


class GenericEnvClient(EnvClient[Any, dict[str, Any], dict[str, Any]]):
    """A client for any environment, in plain dicts: nothing of the environment needs to be installed."""


def _dumped(action: BaseModel) -> dict[str, Any]:
    return action.model_dump(by_alias=_goes_by_aliases(type(action)))


@functools.cache
def _goes_by_aliases(cls: type[BaseModel]) -> bool:
    """Whether the server reads a model's fields by other names than theirs, under which they are also written."""
    fields = cls.model_fields.values()
    return any(field.validation_alias is not None for field in fields) and all(
        field.validation_alias == field.serialization_alias for field in fields
    )


def _as_model(cls: type[Any], data: Any) -> Any:
    try:
        return model_of(cls, data)
    except ValidationError as error:
        raise BadReplyError(f"What the server sent is no {cls.__name__}: {error}") from error


def _as_dict(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise BadReplyError(f"The server's reply has no data: {data!r:.100}")
    return data
