from __future__ import annotations

from enum import Enum
from typing import List, Literal, Optional

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, field_validator


class Direction(str, Enum):
    LEFT = "left"
    RIGHT = "right"


class MazeAction(Action):
    direction: Direction
    steps: int = 1
    why: Optional[str] = None

    @field_validator("steps")
    @classmethod
    def not_too_far(cls, value: int) -> int:
        if not 1 <= value <= 3:
            raise ValueError("from one to three steps")
        return value


class MazeObservation(Observation):
    position: int
    walls: List[int] = Field(default_factory=list)
    kind: Literal["corridor", "exit"] = "corridor"


class MazeState(State):
    position: int = 0
    visited: List[int] = Field(default_factory=list)
