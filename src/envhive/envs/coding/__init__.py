"""An environment that runs Python in a sandbox and rewards it by tests."""

from envhive.envs.coding.environment import CodingEnvironment
from envhive.envs.coding.models import CodingAction, CodingObservation, CodingState, TestOutcome

__all__ = ["CodingAction", "CodingEnvironment", "CodingObservation", "CodingState", "TestOutcome"]
