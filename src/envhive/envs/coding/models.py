"""What goes into the coding environment and what comes out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from envhive.types import Action, Observation, State

Namespace = Literal["fresh", "persistent"]
Limit = Literal["", "time", "memory", "processes"]


class CodingAction(Action):
    code: str = Field(description="Python to run", examples=["print('hello')"])
    tests: list[str] | None = Field(
        default=None, max_length=1000, description="Tests to run after it; none: those that reset was given"
    )


class TestOutcome(BaseModel):
    """What became of one test."""

    __test__ = False  # for pytest, which takes the name for a test

    test: str = Field(description="The test's code")
    passed: bool = Field(description="Whether it ran to its end")
    message: str = Field(default="", description="What it raised")


class CodingObservation(Observation):
    stdout: str = Field(default="", description="What the code printed")
    stderr: str = Field(default="", description="What it printed to stderr, a traceback among it")
    exit_code: int = Field(default=0, description="0 if all went well, 1 after an exception, -9 if it was killed")
    limit: Limit = Field(default="", description="The limit that the code met")
    truncated: bool = Field(default=False, description="Whether it printed more than is kept")
    namespace_lost: bool = Field(default=False, description="Whether the variables of earlier steps are gone")
    tests: list[TestOutcome] = Field(default_factory=list, description="What became of each test")


class CodingState(State):
    namespace: Namespace = Field(default="fresh", description="Whether variables are kept from step to step")
    sandboxed: bool = Field(default=False, description="Whether bubblewrap keeps the code from network and files")
    last_exit_code: int = Field(default=0, description="Exit code of the last step")
