"""What goes into a Gymnasium environment and what comes out.

The types here fit any environment. `GymnasiumEnvironment.for_settings` derives from them models whose `value` has the
type of one environment's spaces.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from envhive.envs.encoding import ImageData
from envhive.types import Action, Observation, State


class GymnasiumAction(Action):
    value: Any = Field(description="An element of the action space", examples=[0])


class GymnasiumObservation(Observation):
    value: Any = Field(default=None, description="An element of the observation space")
    terminated: bool = Field(default=False, description="Whether the task itself has ended")
    truncated: bool = Field(default=False, description="Whether a limit, such as of time, has ended the episode")
    image: ImageData | None = Field(default=None, description="A picture of it, where `render` is set")
    text: str | None = Field(default=None, description="A drawing in characters, where `render` is set and that is all")
    info: dict[str, Any] = Field(default_factory=dict, description="What else the environment tells")


class GymnasiumState(State):
    env_id: str = Field(default="", description="The environment's id at Gymnasium")
    action_space: dict[str, Any] = Field(default_factory=dict, description="What actions there are")
    observation_space: dict[str, Any] = Field(default_factory=dict, description="What observations there are")
