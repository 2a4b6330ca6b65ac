"""What goes into an Atari game and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.envs.encoding import ArrayData, ImageData
from envhive.types import Action, Observation, State


class AtariAction(Action):
    action_id: int = Field(ge=0, description="A place in the observation's `action_meanings`", examples=[0])


class AtariObservation(Observation):
    image: ImageData | None = Field(default=None, description="The screen, where `frame` is png")
    screen: ArrayData | None = Field(default=None, description="The screen, where `frame` is array")
    ram: list[int] | None = Field(default=None, description="The console's 128 bytes of memory, where `frame` is ram")
    legal_actions: list[int] = Field(default_factory=list, description="The action_ids there are")
    action_meanings: list[str] = Field(default_factory=list, description="What each action_id does")
    lives: int = Field(default=0, description="Lives left; 0 also in games without lives")
    frame_number: int = Field(default=0, description="Frames since the episode began")
    truncated: bool = Field(default=False, description="Whether `max_frames` ended the episode")


class AtariState(State):
    game: str = Field(default="", description="The game")
    score: float = Field(default=0.0, description="The sum of the episode's rewards")
    lives: int = Field(default=0, description="Lives left")
    frame_number: int = Field(default=0, description="Frames since the episode began")
