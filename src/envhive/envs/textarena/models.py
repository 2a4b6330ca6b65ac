"""What goes into a TextArena game and what comes out."""

from __future__ import annotations

from pydantic import Field

from envhive.types import Action, Observation, State


class TextArenaAction(Action):
    message: str = Field(min_length=1, description="What the player whose turn it is says", examples=["[crane]"])


class TextArenaObservation(Observation):
    prompt: str = Field(default="", description="All that the player whose turn it is was told so far")
    new_text: str = Field(default="", description="The part of it that is new since that player's last turn")
    current_player_id: int = Field(default=0, description="Whose turn it is; at the end, whose it was last")
    rewards: dict[int, float] = Field(default_factory=dict, description="At the end, the reward of each player")
    invalid_move: bool = Field(default=False, description="Whether the last message broke the game's rules")
    reason: str = Field(default="", description="At the end, why it ended so")


class TextArenaState(State):
    game: str = Field(default="", description="The game's id at TextArena")
    num_players: int = Field(default=1, description="How many play")
    turn: int = Field(default=0, description="Turns so far, as the game counts them")
