"""What goes into the browsergym environment and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation, State


class BrowserAction(Action):
    action: str = Field(
        max_length=20_000, description="A call of BrowserGym's, such as click('12')", examples=["scroll(0, 100)"]
    )


class BrowserObservation(Observation):
    goal: str = Field(default="", description="What is to be done")
    url: str = Field(default="", description="Address of the page in front")
    title: str = Field(default="", description="Its title")
    page: str = Field(default="", description="Its accessibility tree; the number before an element is for actions")
    focused: str = Field(default="", description="Number of the element that has the focus")
    error: str = Field(default="", description="Why the last action failed; empty if it did not")
    messages: list[str] = Field(default_factory=list, description="The chat so far, each with its role before it")
    screenshot: str = Field(default="", description="The page as a PNG in base64, with the setting `screenshot`")


class BrowserState(State):
    goal: str = Field(default="", description="What is to be done")
    url: str = Field(default="", description="Address of the page in front")
