from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class ParrotAction(Action):
    phrase: str = Field(..., description="What to repeat")
    times: int = Field(default=1, ge=1, le=9)


class ParrotObservation(Observation):
    heard: str = Field(default="", description="What the parrot says")
    letters: int = 0
