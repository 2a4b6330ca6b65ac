"""TextArena's games: Wordle and many others that are played in words."""

from envhive.envs.textarena.environment import TextArenaEnvironment
from envhive.envs.textarena.models import TextArenaAction, TextArenaObservation, TextArenaState

__all__ = ["TextArenaAction", "TextArenaEnvironment", "TextArenaObservation", "TextArenaState"]
