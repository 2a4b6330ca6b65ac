"""The questions of Reasoning Gym."""

from envhive.envs.reasoning_gym.environment import ReasoningGymEnvironment
from envhive.envs.reasoning_gym.models import ReasoningGymAction, ReasoningGymObservation, ReasoningGymState

__all__ = ["ReasoningGymAction", "ReasoningGymEnvironment", "ReasoningGymObservation", "ReasoningGymState"]
