"""What goes into the git environment and what comes out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envhive.types import Action, Observation, State

Argument = Annotated[str, Field(max_length=10_000)]


class GitAction(Action):
    do: Literal["git", "write_file", "read_file", "reset_to"] = Field(default="git", description="What to do")
    arguments: list[Argument] = Field(
        default_factory=list,
        max_length=100,
        description="For `git`: the command and its arguments",
        examples=[["status"]],
    )
    path: str = Field(
        default="", max_length=1000, description="For `write_file` and `read_file`: a file of the work tree"
    )
    content: str = Field(default="", max_length=1_000_000, description="For `write_file`: what is to be in it")
    commit: str = Field(default="", max_length=200, description="For `reset_to`: the commit, branch or tag")


class GitObservation(Observation):
    task: str = Field(default="", description="What is to be done; after reset alone")
    output: str = Field(default="", description="What git printed, or the file's content, or why it was refused")
    exit_code: int = Field(default=0, description="git's exit code; 128 for what is refused")
    truncated: bool = Field(default=False, description="Whether there was more than is kept")
    head: str = Field(default="", description="The commit that the work tree stands on")


class GitState(State):
    task: str = Field(default="", description="What is to be done")
    head: str = Field(default="", description="The commit that the work tree stands on")
