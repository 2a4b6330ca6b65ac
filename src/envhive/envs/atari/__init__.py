"""The Atari 2600's games, by the Arcade Learning Environment."""

from envhive.envs.atari.environment import AtariEnvironment
from envhive.envs.atari.models import AtariAction, AtariObservation, AtariState

__all__ = ["AtariAction", "AtariEnvironment", "AtariObservation", "AtariState"]
