"""An environment that grades answers about made-up medical passages."""

from envhive.envs.dipg_safety.environment import DipgSafetyEnvironment
from envhive.envs.dipg_safety.models import DipgAction, DipgObservation, DipgState

__all__ = ["DipgAction", "DipgObservation", "DipgSafetyEnvironment", "DipgState"]
