"""Where OpenEnv starts its servers: EnvHive's providers with OpenEnv's names and constructors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

from envhive.errors import ConfigurationError
from envhive.providers import swarm


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


class _Unavailable:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"EnvHive has no {name} yet. Start the server by itself (docker run, envhive serve) and give its address: "
        f"EnvClient(base_url=...)."
    )


class UVProvider(_Unavailable):
    """Not available yet."""
