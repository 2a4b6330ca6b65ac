"""What OpenEnv's clients have had over time, on EnvHive's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

from envhive.client.client import EnvClient
from envhive.types import StepResult

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
T = TypeVar("T")


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


class HTTPEnvClient(Generic[ActT, ObsT]):
    """The client of OpenEnv's first releases: plain calls, no `await`. Here it keeps one session over a WebSocket.

    Typed clients define `_step_payload`, `_parse_result` and `_parse_state`.
    """

    def __init__(
        self,
        base_url: str,
        request_timeout_s: float = 15.0,
        default_headers: dict[str, str] | None = None,
        provider: Any = None,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._provider = provider
        self._client = _Speaking(
            self, base_url, message_timeout_s=request_timeout_s, headers=dict(default_headers or {})
        ).sync()

    def reset(self, **kwargs: Any) -> StepResult[ObsT]:
        return self._client.reset(**kwargs)

    def step(self, action: ActT) -> StepResult[ObsT]:
        return self._client.step(action)

    def state(self) -> Any:
        return self._client.state()

    def close(self) -> None:
        self._client.close()
        if self._provider is not None:
            self._provider.stop_container()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _step_payload(self, action: Any) -> Any:
        return action.model_dump() if hasattr(action, "model_dump") else action

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        return StepResult(payload.get("observation"), payload.get("reward"), bool(payload.get("done")))

    def _parse_state(self, payload: dict[str, Any]) -> Any:
        return payload


class _Speaking(EnvClient[Any, Any, Any]):
    """Speaks for an `HTTPEnvClient`, in that one's words."""

    def __init__(self, owner: HTTPEnvClient[Any, Any], base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self._owner = owner

    def _step_payload(self, action: Any) -> Any:
        return self._owner._step_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        return self._owner._parse_result(payload)

    def _parse_state(self, payload: dict[str, Any]) -> Any:
        return self._owner._parse_state(payload)


def run_async_safely(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from plain code; on another thread where an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
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
