"""Talking to Docker's daemon: finding it, images, and what it complains of."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from envhive.errors import MissingPackageError, ProviderError
from envhive.providers.base import Progress

Pull = Literal["missing", "always", "never"]

_KNOCK_S: Final = 10.0
_MB: Final = 1e6
_TOLD_EVERY: Final = 10.0
"""Percent of a download."""


def connect(docker_host: str | None = None) -> Any:
    """A client of the daemon that `DOCKER_HOST` names, or else the one that the `docker` command uses here."""
    try:
        import docker
        from docker.context import ContextAPI
    except ImportError:
        raise MissingPackageError.of("Docker's client", "docker") from None
    where = docker_host or os.environ.get("DOCKER_HOST")
    try:
        if where is None and (context := ContextAPI.get_current_context()) is not None:
            where = context.Host
        if where is not None and where.startswith("unix://"):
            _knock(where.removeprefix("unix://"))
        client = docker.from_env(environment={**os.environ, **at_host(where)})
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise ProviderError(
            f"Docker's daemon does not answer at {where or 'its usual place'} ({explain(error)}). Start Docker "
            f"Desktop, or: sudo systemctl start docker. If it runs elsewhere, DOCKER_HOST says where. If it is not "
            f"yours to use: sudo usermod -aG docker $USER, and log in again."
        ) from error
    return client


def _knock(path: str) -> None:
    """Raise if nobody listens there: Docker's client says less of it, and leaves its own socket open."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_KNOCK_S)
        probe.connect(path)


def at_host(docker_host: str | None) -> dict[str, str]:
    """How Docker's clients are told where the daemon is."""
    return {} if docker_host is None else {"DOCKER_HOST": docker_host}


@contextmanager
def talking() -> Iterator[None]:
    """What Docker refuses, and a daemon that is gone, become a `ProviderError`."""
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:  # what requests raises is an OSError, too
        raise ProviderError(f"Docker: {explain(error)}.") from error


def explain(error: BaseException) -> str:
    """What Docker says, without where it was said."""
    said = getattr(error, "explanation", None) or getattr(error, "strerror", None) or error
    return str(said).strip().rstrip(".")


def require_image(client: Any, image: str, pull: Pull, progress: Progress) -> None:
    """Have an image here, pulling it if need be."""
    from docker.errors import DockerException, ImageNotFound

    with talking():
        try:
            client.images.get(image)
        except ImageNotFound:
            if pull == "never":
                raise ProviderError(f"There is no image {image} here: docker pull {image}, or build it.") from None
        else:
            if pull != "always":
                return
    progress(f"pulling {image}")
    try:
        for sentence in _pulling(client, image):
            progress(sentence)
    except (DockerException, OSError) as error:
        raise ProviderError(
            f"There is no image {image} here, and it could not be pulled: {explain(error)}. Build it (docker build "
            f"--tag {image} ..., or envhive build), or log in to its registry (docker login)."
        ) from error


def _pulling(client: Any, image: str) -> Iterator[str]:
    """Pull an image, and tell how far it is."""
    from docker.errors import APIError
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(image)
    layers: dict[str, tuple[int, int]] = {}
    told = 0.0
    for event in client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
        if "error" in event:
            raise APIError(event["error"], explanation=event["error"])
        detail = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and detail.get("total"):
            layers[event["id"]] = (detail["current"], detail["total"])
            have, total = (sum(numbers) for numbers in zip(*layers.values(), strict=True))
            if abs(100 * have / total - told) >= _TOLD_EVERY:
                told = 100 * have / total
                yield f"pulling {image}: {have / _MB:.0f} of {total / _MB:.0f} MB"
