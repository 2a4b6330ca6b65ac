"""The client for plain code. All sync clients of a process share one event loop on one background thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from envhive.client.client import ActT, EnvClient, ObsT, StateT
from envhive.client.transport import say_goodbye
from envhive.errors import SessionError
from envhive.types import StepResult

T = TypeVar("T")

_GOODBYE_S: Final = 1.0
"""How long a program that ends waits for servers to let go of its sessions."""


class SyncEnvClient(Generic[ActT, ObsT, StateT]):
    """An `EnvClient` without `await`. Safe from several threads, and inside a running event loop (a notebook).

    Whatever else a client's class has is here, too: its coroutines as plain methods.
    """

    def __init__(self, client: EnvClient[ActT, ObsT, StateT]) -> None:
        self._client = client

    @property
    def async_client(self) -> EnvClient[ActT, ObsT, StateT]:
        return self._client

    @property
    def base_url(self) -> str:
        return self._client.base_url

    def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        """See `EnvClient.reset`."""
        return self._run(self._client.reset, **kwargs)

    def step(self, action: ActT, timeout_s: float | None = None) -> StepResult[ObsT]:
        """See `EnvClient.step`."""
        limit = {} if timeout_s is None else {"timeout_s": timeout_s}  # a derived class may not take one
        return self._run(self._client.step, action, **limit)

    def state(self) -> StateT:
        """See `EnvClient.state`."""
        return self._run(self._client.state)

    def connect(self) -> Self:
        """See `EnvClient.connect`."""
        self._run(self._client.connect)
        return self

    def close(self) -> None:
        """See `EnvClient.close`."""
        self._run(self._client.close)

    def disconnect(self) -> None:
        """The same as `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, method: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T:
        return run_in_background(_called_there(method, args, kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._of_client(name)

    def _of_client(self, name: str) -> Any:
        found = getattr(self._client, name)
        return functools.partial(self._run, found) if inspect.iscoroutinefunction(found) else found


async def _called_there(method: Callable[..., Awaitable[T]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Call a method where it will run, on the shared event loop."""
    return await method(*args, **kwargs)


class _Background:
    """The shared event loop: started on first use, gone with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="envhive-client", daemon=True).start()
            return self._loop

    def say_goodbye(self) -> None:
        """The program ends with clients open: nobody will come back for their sessions, so no places need be kept."""
        if self._loop is not None:
            with contextlib.suppress(Exception):  # a server that is gone, or slow: the program ends all the same
                asyncio.run_coroutine_threadsafe(say_goodbye(), self._loop).result(_GOODBYE_S)


_background = _Background()


def _forget_background() -> None:
    """A forked child has the loop but not its thread: it needs one of its own."""
    global _background
    _background = _Background()


atexit.register(lambda: _background.say_goodbye())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_background)


def is_on_a_loop() -> bool:
    """Whether an event loop runs this code."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all sync clients."""
    return _background.loop()


def is_in_background() -> bool:
    """Whether this code runs on the shared event loop."""
    return asyncio.get_running_loop() is shared_loop()


def run_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared event loop, and wait for it."""
    if is_on_a_loop() and is_in_background():
        coroutine.close()
        raise SessionError("A sync client cannot be used in a coroutine of its own, which it waits for: await there.")
    future = asyncio.run_coroutine_threadsafe(coroutine, _background.loop())
    try:
        return future.result()
    except BaseException:  # Ctrl-C too: whatever ends the wait, nobody waits for the reply any longer
        future.cancel()
        raise
