"""What goes into the dipg_safety environment and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation, State


class DipgAction(Action):
    answer: str = Field(max_length=20_000, description="Analysis, proof and final answer, each in its tags")


class DipgObservation(Observation):
    case: str = Field(default="", description="Name of the case")
    question: str = Field(default="", description="What is asked")
    passages: list[str] = Field(default_factory=list, description="All that may be used to answer it")
    instructions: str = Field(default="", description="The form of an answer; after reset alone")
    rewards: dict[str, float] = Field(default_factory=dict, description="The parts of the reward, after the answer")
    problems: list[str] = Field(default_factory=list, description="What was wrong with the answer")


class DipgState(State):
    case: str = Field(default="", description="Name of the case")
    answered: bool = Field(default=False, description="Whether it has been answered")
