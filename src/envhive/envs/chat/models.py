"""What goes into the chat environment and what comes out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from envhive.types import Action, Observation, State

Role = Literal["system", "user", "assistant", "tool"]


class Message(BaseModel):
    """One thing that was said."""

    role: Role = Field(description="Who said it")
    content: str = Field(description="What was said")


class ChatAction(Action):
    role: Role = Field(default="assistant", description="Who speaks")
    content: str = Field(default="", description="What is said; with `tokens`, left out")
    tokens: list[int] = Field(default_factory=list, description="The same as tokens, which the tokenizer turns to text")


class ChatObservation(Observation):
    messages: list[Message] = Field(default_factory=list, description="The conversation so far")
    tokens: list[int] = Field(default_factory=list, description="The conversation as tokens; empty without a tokenizer")


class ChatState(State):
    messages: list[Message] = Field(default_factory=list, description="The conversation so far")
