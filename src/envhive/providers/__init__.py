"""Where servers run: one module a provider, imported when its name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from envhive.errors import ConfigurationError

if TYPE_CHECKING:
    from envhive.providers.base import Provider as Provider
    from envhive.providers.base import Replica as Replica
    from envhive.providers.base import ServerSpec as ServerSpec
    from envhive.providers.container import ContainerProvider as ContainerProvider
    from envhive.providers.docker import LocalDockerProvider as LocalDockerProvider
    from envhive.providers.kubernetes import KubernetesProvider as KubernetesProvider
    from envhive.providers.process import ProcessProvider as ProcessProvider
    from envhive.providers.ray import RayProvider as RayProvider
    from envhive.providers.slurm import SlurmProvider as SlurmProvider
    from envhive.providers.swarm import DockerSwarmProvider as DockerSwarmProvider
    from envhive.providers.uv import UVProvider as UVProvider

_HOME_OF: Final = {
    "Provider": "base",
    "Replica": "base",
    "ServerSpec": "base",
    "ContainerProvider": "container",
    "DockerSwarmProvider": "swarm",
    "KubernetesProvider": "kubernetes",
    "LocalDockerProvider": "docker",
    "ProcessProvider": "process",
    "RayProvider": "ray",
    "SlurmProvider": "slurm",
    "UVProvider": "uv",
}

PROVIDERS: Final = {
    "process": ("process", "ProcessProvider"),
    "uv": ("uv", "UVProvider"),
    "docker": ("docker", "LocalDockerProvider"),
    "swarm": ("swarm", "DockerSwarmProvider"),
    "kubernetes": ("kubernetes", "KubernetesProvider"),
    "ray": ("ray", "RayProvider"),
    "slurm": ("slurm", "SlurmProvider"),
}
"""The module and class of each kind."""


def make_provider(kind: str, what: str, **options: Any) -> Provider:
    """A provider by its kind's name: `what` is the target, folder or image that it runs."""
    if kind not in PROVIDERS:
        raise ConfigurationError(f"There is no provider {kind!r}; there are {', '.join(PROVIDERS)}.")
    module, name = PROVIDERS[kind]
    provider = getattr(import_module(f"envhive.providers.{module}"), name)
    try:
        made: Provider = provider(what, **options)
    except TypeError as error:
        raise ConfigurationError(f"{name} does not take these options: {error}.") from error
    return made


__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'envhive.providers' has no attribute {name!r}")
    value = getattr(import_module(f"envhive.providers.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
