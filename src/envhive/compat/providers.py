"""Names for where OpenEnv starts its servers, so that clients that mention them can be imported.

The two interfaces are real. The providers cannot be used: EnvHive starts no containers yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn


class ContainerProvider(ABC):
    """Starts and stops one container."""

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start it, and give the address of its server."""

    @abstractmethod
    def stop_container(self) -> None: ...

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None: ...


class RuntimeProvider(ABC):
    """Starts and stops one server without a container."""

    @abstractmethod
    def start(self, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any) -> str: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None: ...


class _Unavailable:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"EnvHive has no {name} yet. Start the server by itself (docker run, envhive serve) and give its address: "
        f"EnvClient(base_url=...)."
    )


class LocalDockerProvider(_Unavailable):
    """Not available yet."""


class DockerSwarmProvider(_Unavailable):
    """Not available yet."""


class KubernetesProvider(_Unavailable):
    """Not available yet."""


class UVProvider(_Unavailable):
    """Not available yet."""
