"""What an environment says of itself, with the README that is shipped with it."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from envhive.environment import Environment
from envhive.inspection import factory_name
from envhive.types import EnvironmentMetadata


def load_environment_metadata(env: Any, env_name: str | None = None) -> EnvironmentMetadata:
    """Of an instance, what it says itself. Of a class or factory, which is not called, its name and its README."""
    if isinstance(env, Environment):
        return env.get_metadata()
    name = factory_name(env) if inspect.isclass(env) or env_name is None else env_name
    return EnvironmentMetadata(
        name=env_name or name,
        description=f"{name} environment",
        version="1.0.0",
        readme_content=_readme(env_name),
    )


def _readme(env_name: str | None) -> str | None:
    """From where `ENV_README_PATH` says, a checkout of OpenEnv's repository, or where its images have it."""
    named = os.environ.get("ENV_README_PATH")
    places = [named] if named else []
    places += [f"envs/{env_name}/README.md"] if env_name else []
    for place in (*places, "/app/env/README.md", "/app/README.md"):
        try:
            return Path(place).read_text(encoding="utf-8") or None
        except (OSError, UnicodeDecodeError):
            continue
    return None
