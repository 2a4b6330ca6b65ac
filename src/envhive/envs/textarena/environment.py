"""TextArena's games: the agent speaks for whoever's turn it is."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Self

from envhive.environment import Environment
from envhive.envs.episode import Episode
from envhive.envs.randomness import Generators, drawing_from
from envhive.envs.textarena.models import TextArenaAction, TextArenaObservation, TextArenaState


class TextArenaEnvironment(Environment[TextArenaAction, TextArenaObservation, TextArenaState]):
    """A game of TextArena, by its id; in games of several players, the agent speaks for each of them in turn.

    Args:
        game: Its id, such as Wordle-v0 or TicTacToe-v0; `reset` may choose another.
        num_players: How many play; None: as few as the game takes.

    Example:
        >>> env = TextArenaEnvironment("GuessTheNumber-v0")
        >>> "between 1 and 20" in env.reset(seed=1).prompt
        True
        >>> env.step(TextArenaAction(message="[21]")).invalid_move
        True
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self, game: str = "Wordle-v0", num_players: int | None = None) -> None:
        super().__init__()
        from envhive.envs.textarena import arena  # loads TextArena, which the models alone do not need

        self._arena = arena
        self._game, self._given_players = game, num_players
        self._players = self._players_of(game)
        self._episode = Episode()
        self._generators = Generators(0)
        self._env: Any = None
        self._read: dict[int, str] = {}

    @classmethod
    def for_settings(cls, **settings: Any) -> type[Self]:
        """The class itself, once a game was begun with these settings."""
        env = cls(**settings)
        env.reset(seed=0)
        env.close()
        return cls

    def _players_of(self, game: str) -> int:
        return self._arena.fewest_players(game) if self._given_players is None else self._given_players

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, game: str | None = None, **kwargs: Any
    ) -> TextArenaObservation:
        """Begin an episode, of another game if one is named."""
        self._episode.end()
        if game is not None and game != self._game:
            self._players = self._players_of(game)
            self._game = game
        seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self._generators, self._read = Generators(seed), {}
        with drawing_from(self._generators):
            self._env = self._arena.make(self._game)  # a new one: old ones remember what they said
            self._env.reset(num_players=self._players, seed=seed)
            player, prompt = self._env.get_observation()
        self._episode.begin(episode_id)
        return TextArenaObservation(prompt=prompt, new_text=self._news(player, prompt), current_player_id=player)

    def step(self, action: TextArenaAction, timeout_s: float | None = None, **kwargs: Any) -> TextArenaObservation:
        self._episode.require_running()
        speaker = self._env.state.current_player_id
        with drawing_from(self._generators):
            done, _ = self._env.step(action=action.message)
            player, prompt = self._env.get_observation()
        self._episode.advance(done=bool(done))
        rewards, told = self._outcome(speaker) if done else ({}, {})
        return TextArenaObservation(
            prompt=prompt,
            new_text=self._news(player, prompt),
            current_player_id=player,
            rewards=rewards,
            reward=rewards.get(speaker, 0.0),
            done=bool(done),
            invalid_move=bool(told.get("invalid_move") or getattr(self._env.state, "error_count", 0)),
            reason=str(told.get("reason") or ""),
        )

    def _outcome(self, speaker: int) -> tuple[dict[int, float], dict[str, Any]]:
        rewards, infos = self._env.close()
        return {int(player): float(reward) for player, reward in (rewards or {}).items()}, infos.get(speaker, {})

    def _news(self, player: int, prompt: str) -> str:
        """What of a player's prompt was not in the one before."""
        before = self._read.get(player, "")
        self._read[player] = prompt
        return prompt.removeprefix(before)

    @property
    def state(self) -> TextArenaState:
        return TextArenaState(
            episode_id=self._episode.id,
            step_count=self._episode.steps,
            game=self._game,
            num_players=self._players,
            turn=0 if self._env is None else self._env.state.turn,
        )
