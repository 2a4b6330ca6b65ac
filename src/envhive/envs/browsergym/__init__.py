"""An environment with a web browser in it, by BrowserGym.

Clients need its models alone, so BrowserGym is loaded when the environment itself is asked for.
"""

from typing import TYPE_CHECKING, Any

from envhive.envs.browsergym.models import BrowserAction, BrowserObservation, BrowserState

if TYPE_CHECKING:
    from envhive.envs.browsergym.environment import BrowserGymEnvironment

__all__ = ["BrowserAction", "BrowserGymEnvironment", "BrowserObservation", "BrowserState"]


def __getattr__(name: str) -> Any:
    if name == "BrowserGymEnvironment":
        from envhive.envs.browsergym.environment import BrowserGymEnvironment

        return BrowserGymEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
