"""What goes into an OpenSpiel game and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation, State


class OpenSpielAction(Action):
    action_id: int = Field(ge=0, description="One of the observation's `legal_actions`", examples=[0])


class OpenSpielObservation(Observation):
    legal_actions: list[int] = Field(default_factory=list, description="What may be done now; empty at the end")
    action_meanings: list[str] = Field(default_factory=list, description="What each of them does, in the same order")
    current_player_id: int = Field(default=0, description="Whose turn it is; at the end, whose it was last")
    text: str = Field(default="", description="What that player knows, for people and language models")
    info_state: list[float] = Field(default_factory=list, description="What that player knows, as numbers")
    opponent_actions: list[int] = Field(default_factory=list, description="What the others have done since")
    rewards: list[float] = Field(default_factory=list, description="Each player's reward since the last observation")
    truncated: bool = Field(default=False, description="Whether `max_moves` ended the episode")


class OpenSpielState(State):
    game: str = Field(default="", description="The game, with its parameters")
    player: int | None = Field(default=None, description="The agent's seat; None: all of them")
    history: list[int] = Field(default_factory=list, description="All moves so far, those of chance among them")
    returns: list[float] = Field(default_factory=list, description="Each player's sum of rewards")
