"""An environment that says back what it is told."""

from envhive.envs.echo.environment import EchoEnvironment
from envhive.envs.echo.models import EchoAction, EchoObservation

__all__ = ["EchoAction", "EchoEnvironment", "EchoObservation"]
