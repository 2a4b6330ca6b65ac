"""Where OpenEnv starts its servers: EnvHive's providers with OpenEnv's names and constructors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Self

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers import swarm, uv

_USUAL_APP: Final = "server.app:app"


class RuntimeProvider(ABC):
    """Starts and stops one server without a container."""

    @abstractmethod
    def start(self, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any) -> str: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None: ...


class DockerSwarmProvider(swarm.DockerSwarmProvider):
    """Makes this Docker a swarm if it is none, as OpenEnv's does."""

    def __init__(self, *, auto_init_swarm: bool = True, overlay_network: str | None = None) -> None:
        if overlay_network is not None:
            raise ConfigurationError("EnvHive publishes tasks on their nodes, and uses no overlay network.")
        super().__init__(init_swarm=auto_init_swarm)


class UVProvider(RuntimeProvider):
    """A project in a virtual environment of its own, by OpenEnv's constructor and calls.

    `app`, if it is not the usual one, says what to serve: EnvHive serves it, whatever server it was written for.
    """

    def __init__(
        self,
        project_path: str,
        app: str = _USUAL_APP,
        host: str = "0.0.0.0",
        reload: bool = False,
        env_vars: dict[str, str] | None = None,
        context_timeout_s: float = 60.0,
    ) -> None:
        self._project = project_path
        self._target = None if app == _USUAL_APP else app
        self._host = host
        self._variables = dict(env_vars or {})
        self._timeout_s = context_timeout_s
        self._provider: uv.UVProvider | None = None

    def start(
        self, port: int | None = None, env_vars: dict[str, str] | None = None, workers: int = 1, **kwargs: Any
    ) -> str:
        if self._provider is not None:
            raise ProviderError("This provider has been started already.")
        provider = uv.UVProvider(
            self._project,
            target=self._target,
            host=self._host,
            workers=workers,
            environment={**self._variables, **(env_vars or {})},
            start_timeout_s=self._timeout_s,
            options=() if port is None else ("--port", str(port)),
        )
        url = provider.start()
        self._provider = provider
        return url

    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """It is ready as soon as it is started."""
        if self._provider is None:
            raise ProviderError("This provider has not been started.")

    def stop(self) -> None:
        provider, self._provider = self._provider, None
        if provider is not None:
            provider.stop()

    @property
    def base_url(self) -> str:
        if self._provider is None:
            raise ProviderError("This provider has not been started.")
        return self._provider.base_url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
