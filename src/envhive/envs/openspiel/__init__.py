"""The turn games of OpenSpiel."""

from envhive.envs.openspiel.environment import OpenSpielEnvironment
from envhive.envs.openspiel.models import OpenSpielAction, OpenSpielObservation, OpenSpielState

__all__ = ["OpenSpielAction", "OpenSpielEnvironment", "OpenSpielObservation", "OpenSpielState"]
