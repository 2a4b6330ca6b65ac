"""The client of OpenEnv's first releases, for plain code."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from envhive.client import client as native
from envhive.types import StepResult

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")


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


class _Speaking(native.EnvClient[Any, Any, Any]):
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
