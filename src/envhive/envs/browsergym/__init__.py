"""An environment with a web browser in it, by BrowserGym."""

from envhive.envs.browsergym.environment import BrowserGymEnvironment
from envhive.envs.browsergym.models import BrowserAction, BrowserObservation, BrowserState

__all__ = ["BrowserAction", "BrowserGymEnvironment", "BrowserObservation", "BrowserState"]
