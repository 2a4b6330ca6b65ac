"""What goes into the echo environment and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation


class EchoAction(Action):
    message: str = Field(min_length=1, description="What to say")


class EchoObservation(Observation):
    echoed_message: str = Field(default="", description="What was said")
    message_length: int = Field(default=0, ge=0, description="How many characters it has")
