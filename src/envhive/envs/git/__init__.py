"""An environment with a git repository to work on."""

from envhive.envs.git.environment import GitEnvironment
from envhive.envs.git.models import GitAction, GitObservation, GitState

__all__ = ["GitAction", "GitEnvironment", "GitObservation", "GitState"]
