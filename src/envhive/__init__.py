"""EnvHive serves reinforcement-learning environments to training runs.

The public names are imported when they are first used, so that `import envhive` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from envhive.checks import check_environment as check_environment
    from envhive.client.client import EnvClient as EnvClient
    from envhive.client.client import GenericEnvClient as GenericEnvClient
    from envhive.client.mcp import MCPToolClient as MCPToolClient
    from envhive.client.sync import SyncEnvClient as SyncEnvClient
    from envhive.environment import Environment as Environment
    from envhive.environment import Transform as Transform
    from envhive.errors import ConcurrencyConfigurationError as ConcurrencyConfigurationError
    from envhive.errors import EnvHiveError as EnvHiveError
    from envhive.errors import EnvironmentFactoryError as EnvironmentFactoryError
    from envhive.errors import SessionCapacityError as SessionCapacityError
    from envhive.errors import SessionNotFoundError as SessionNotFoundError
    from envhive.fleet.fleet import Fleet as Fleet
    from envhive.mcp_environment import MCPEnvironment as MCPEnvironment
    from envhive.providers.docker import LocalDockerProvider as LocalDockerProvider
    from envhive.providers.kubernetes import KubernetesProvider as KubernetesProvider
    from envhive.providers.process import ProcessProvider as ProcessProvider
    from envhive.providers.ray import RayProvider as RayProvider
    from envhive.providers.slurm import SlurmProvider as SlurmProvider
    from envhive.providers.swarm import DockerSwarmProvider as DockerSwarmProvider
    from envhive.providers.uv import UVProvider as UVProvider
    from envhive.server.app import HTTPEnvServer as HTTPEnvServer
    from envhive.server.app import create_app as create_app
    from envhive.server.app import create_fastapi_app as create_fastapi_app
    from envhive.tools import tool as tool
    from envhive.types import Action as Action
    from envhive.types import ConcurrencyConfig as ConcurrencyConfig
    from envhive.types import EnvironmentMetadata as EnvironmentMetadata
    from envhive.types import Observation as Observation
    from envhive.types import ServerCapacityStatus as ServerCapacityStatus
    from envhive.types import ServerMode as ServerMode
    from envhive.types import SessionInfo as SessionInfo
    from envhive.types import State as State
    from envhive.types import StepResult as StepResult

_HOMES = {
    "envhive.checks": ("check_environment",),
    "envhive.client.client": ("EnvClient", "GenericEnvClient"),
    "envhive.client.mcp": ("MCPToolClient",),
    "envhive.client.sync": ("SyncEnvClient",),
    "envhive.environment": ("Environment", "Transform"),
    "envhive.errors": (
        "ConcurrencyConfigurationError",
        "EnvHiveError",
        "EnvironmentFactoryError",
        "SessionCapacityError",
        "SessionNotFoundError",
    ),
    "envhive.fleet.fleet": ("Fleet",),
    "envhive.mcp_environment": ("MCPEnvironment",),
    "envhive.providers.docker": ("LocalDockerProvider",),
    "envhive.providers.kubernetes": ("KubernetesProvider",),
    "envhive.providers.process": ("ProcessProvider",),
    "envhive.providers.ray": ("RayProvider",),
    "envhive.providers.slurm": ("SlurmProvider",),
    "envhive.providers.swarm": ("DockerSwarmProvider",),
    "envhive.providers.uv": ("UVProvider",),
    "envhive.server.app": ("HTTPEnvServer", "create_app", "create_fastapi_app"),
    "envhive.tools": ("tool",),
    "envhive.types": (
        "Action",
        "ConcurrencyConfig",
        "EnvironmentMetadata",
        "Observation",
        "ServerCapacityStatus",
        "ServerMode",
        "SessionInfo",
        "State",
        "StepResult",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'envhive' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
