"""What goes into the benchmark environment and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation


class BenchmarkAction(Action):
    wait_seconds: float = Field(default=0.0, ge=0, description="How long the step sleeps")


class BenchmarkObservation(Observation):
    pid: int = Field(default=0, description="Process that ran the step")
    waited_seconds: float = Field(default=0.0, ge=0, description="How long the step slept")
