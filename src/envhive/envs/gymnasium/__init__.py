"""Any environment that is registered with Gymnasium."""

from envhive.envs.gymnasium.environment import GymnasiumEnvironment
from envhive.envs.gymnasium.models import GymnasiumAction, GymnasiumObservation, GymnasiumState

__all__ = ["GymnasiumAction", "GymnasiumEnvironment", "GymnasiumObservation", "GymnasiumState"]
