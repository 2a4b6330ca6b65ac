"""OpenEnv's page by name, for modules that import it at their top. There is none to draw: see `envhive play`."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from envhive.errors import ConfigurationError
from envhive.types import EnvironmentMetadata

OPENENV_GRADIO_CSS: Final = ""
OPENENV_GRADIO_THEME: Final = None
"""What Gradio takes for its own."""


def build_gradio_app(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConfigurationError(
        "build_gradio_app draws OpenEnv's page, which EnvHive does not have: pip install openenv beside EnvHive, "
        "or step the environment by hand with `envhive play`."
    )


def get_gradio_display_title(metadata: EnvironmentMetadata | None, fallback: str = "OpenEnv Environment") -> str:
    """What a page has as its title."""
    return f"OpenEnv Agentic Environment: {fallback if metadata is None else metadata.name}"
