"""What goes into a question of Reasoning Gym and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation, State


class ReasoningGymAction(Action):
    answer: str = Field(description="The answer to the question, and nothing else", examples=["42"])


class ReasoningGymObservation(Observation):
    question: str = Field(default="", description="The question")
    dataset: str = Field(default="", description="The data set that it is from")
    score: float | None = Field(default=None, description="After the answer: from 0 to 1, the same as the reward")
    correct_answer: str | None = Field(default=None, description="After the answer: one that is right, if one is known")


class ReasoningGymState(State):
    dataset: str = Field(default="", description="The data set that the question is from")
    answered: bool = Field(default=False, description="Whether it was answered")
