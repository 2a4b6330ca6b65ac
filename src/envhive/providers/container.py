"""Servers in containers: what their providers have in common, and the three calls that code for OpenEnv makes."""

from __future__ import annotations

import getpass
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import Provider, ServerSpec

RUN_LABEL: Final = "envhive.run"
"""On all that a provider starts: its run id."""
OWNER_LABEL: Final = "envhive.owner"
REPLICA_LABEL: Final = "envhive.replica"


class ContainerProvider(ABC):
    """Starts and stops one container: OpenEnv's interface, for providers of one's own."""

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start it, and give the address of its server."""

    @abstractmethod
    def stop_container(self) -> None:
        """Stop it, and leave nothing."""

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until its server answers; raises `TimeoutError` if it does not."""

    def close(self) -> None:  # noqa: B027  # most hold nothing else
        """Let go of what else is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop_container()
        self.close()


class ContainerCalls(Provider, ContainerProvider):
    """A provider that can also be used by OpenEnv's three calls. It may be made without an image then."""

    @abstractmethod
    def _take(self, port: int | None, options: Mapping[str, Any]) -> None:
        """What `start_container` was given, beside the image and its variables."""

    def start_container(
        self, image: str, port: int | None = None, env_vars: dict[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start it, and give its address, without waiting until it answers."""
        if self._started:
            raise ProviderError("This provider has started a container already.")
        self.spec = replace(self.spec, image=image, environment={**self.spec.environment, **(env_vars or {})})
        self._take(port, kwargs)
        self._started = True
        try:
            self._scale(self.count)
            return self._first_address()
        except BaseException:  # Ctrl-C too: what is half started is stopped
            self.stop()
            raise

    def _first_address(self) -> str:
        return self.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        try:
            self.wait_ready(timeout_s)
        except ProviderError as error:
            raise TimeoutError(str(error)) from error

    def stop_container(self) -> None:
        self.stop()

    def __enter__(self) -> Self:
        if self.spec.image is not None and not self._started:
            self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def image_of(spec: ServerSpec) -> str:
    if spec.image is None:
        raise ConfigurationError("Say which image to run.")
    return spec.image


def command_of(spec: ServerSpec) -> list[str] | None:
    """What the container runs; None leaves that to the image."""
    if spec.target is None and not spec.settings and not spec.options:
        return None
    return ["envhive", "serve", *spec.arguments()]


def variables_of(spec: ServerSpec, container_port: int) -> dict[str, str]:
    """What its server is told. One that is not EnvHive's makes of it what it can."""
    return {"HOST": "0.0.0.0", "PORT": str(container_port), **spec.variables()}


def labels_of(run_id: str) -> dict[str, str]:
    """So that it can be found again, and people can see whose it is."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        user = str(os.getuid())
    return {RUN_LABEL: run_id, OWNER_LABEL: f"{user}@{socket.gethostname()}:{os.getpid()}"}
