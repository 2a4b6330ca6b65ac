"""OpenSpiel's games: the agent has a seat, chance and the opponents play the rest."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Final, Literal, get_args

from envhive.envs.episode import Episode
from envhive.envs.openspiel.models import OpenSpielAction, OpenSpielObservation, OpenSpielState
from envhive.envs.trying import TriedEnvironment

Opponent = Literal["random", "first", "last", "self"]

_LARGEST_INFO_STATE: Final = 4096
"""Longer ones (of Go, say) are left out unless they are asked for: their zeros take more time than the game."""
_MOVES_OF_AN_EPISODE: Final = 10_000
_WITHOUT_ACTION_IDS: Final = {"crossword"}
"""Games whose moves are structures, and have no numbers."""


class OpenSpielEnvironment(TriedEnvironment[OpenSpielAction, OpenSpielObservation, OpenSpielState]):
    """A game of OpenSpiel, of perfect or imperfect information, played in turns.

    Games in which all move at once are played in turns that hide what the others chose.

    Args:
        game: Its name, perhaps with parameters: tic_tac_toe, or hex(board_size=5); `reset` may choose another.
        opponent: Who plays the other seats: `random` moves, the `first` or `last` of the legal moves, or `self`, where
            the agent plays them all.
        player: The agent's seat.
        info_state: Whether observations have `info_state`; None: where it has at most 4,096 numbers.
        max_moves: Moves, of all players, after which an episode is cut off: some games may go on for ever.

    Example:
        >>> env = OpenSpielEnvironment("tic_tac_toe", opponent="first")
        >>> env.reset(seed=1).legal_actions
        [0, 1, 2, 3, 4, 5, 6, 7, 8]
        >>> env.step(OpenSpielAction(action_id=4)).opponent_actions
        [0]
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(
        self,
        game: str = "catch",
        opponent: Opponent = "random",
        player: int = 0,
        info_state: bool | None = None,
        max_moves: int = _MOVES_OF_AN_EPISODE,
    ) -> None:
        super().__init__()
        if opponent not in get_args(Opponent):
            raise ValueError(f"opponent must be one of {', '.join(get_args(Opponent))}, not {opponent!r}")
        self._opponent, self._player = opponent, player
        self._wants_info_state, self._max_moves = info_state, max_moves
        self._random = random.Random()
        self._episode = Episode()
        self._load(game)

    def _load(self, name: str) -> None:
        game = _load_game(name)
        if not 0 <= self._player < game.num_players():
            raise ValueError(f"{name} has players 0 to {game.num_players() - 1}, and so no player {self._player}")
        self._game, self._name = game, name
        self._tensor = _tensor_of(game)
        is_short = self._tensor[1] <= _LARGEST_INFO_STATE
        self._shows_info_state = is_short if self._wants_info_state is None else self._wants_info_state
        self._position: Any = None
        self._mover = self._player

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, game: str | None = None, **kwargs: Any
    ) -> OpenSpielObservation:
        """Begin an episode, of another game if one is named."""
        self._episode.end()
        if game is not None and game != self._name:
            self._load(game)
        self._random.seed(seed)
        self._position = self._game.new_initial_state()
        self._told = [0.0] * self._game.num_players()
        self._moves = 0
        others = self._play_others()
        self._episode.begin(episode_id)
        if self._position.is_terminal():  # chance and the others have left nothing to do
            self._episode.end()
        return self._observe(others, first=True)

    def step(self, action: OpenSpielAction, timeout_s: float | None = None, **kwargs: Any) -> OpenSpielObservation:
        self._episode.require_running()
        legal = self._position.legal_actions()
        if action.action_id not in legal:
            raise ValueError(f"{action.action_id} is no legal action here; these are: {', '.join(map(str, legal))}")
        self._move(action.action_id)
        others = self._play_others()
        observation = self._observe(others, first=False)
        self._episode.advance(done=observation.done)
        return observation

    def _play_others(self) -> list[int]:
        """Play on until it is the agent's turn, or the end; what the other players did."""
        done: list[int] = []
        while not self._position.is_terminal() and self._moves < self._max_moves:
            if self._position.is_chance_node():
                outcomes, chances = zip(*self._position.chance_outcomes(), strict=True)
                self._position.apply_action(self._random.choices(outcomes, chances)[0])
            elif self._opponent == "self" or self._position.current_player() == self._player:
                break
            else:
                done.append(self._choose(self._position.legal_actions()))
                self._move(done[-1])
        return done

    def _choose(self, legal: list[int]) -> int:
        if self._opponent == "random":
            return self._random.choice(legal)
        return legal[0] if self._opponent == "first" else legal[-1]

    def _move(self, action: int) -> None:
        self._position.apply_action(action)
        self._moves += 1

    def _observe(self, others: list[int], *, first: bool) -> OpenSpielObservation:
        position = self._position
        over = position.is_terminal()
        truncated = not over and self._moves >= self._max_moves
        rewarded = self._mover
        if not over and not truncated:
            self._mover = position.current_player()
        elif self._opponent != "self":
            self._mover = self._player
        if self._opponent != "self":
            rewarded = self._player
        rewards = self._rewards()
        legal = [] if over or truncated else position.legal_actions()
        return OpenSpielObservation(
            legal_actions=legal,
            action_meanings=[position.action_to_string(self._mover, action) for action in legal],
            current_player_id=self._mover,
            text=_text_of(self._game, position, self._mover),
            info_state=self._numbers_of(position) if self._shows_info_state else [],
            opponent_actions=others,
            rewards=rewards,
            reward=None if first else rewards[rewarded],
            done=over or truncated,
            truncated=truncated,
        )

    def _rewards(self) -> list[float]:
        """What each player got since the last observation, in which there may have been several moves."""
        returns = list(self._position.returns())
        rewards = [now - before for now, before in zip(returns, self._told, strict=True)]
        self._told = returns
        return rewards

    def _numbers_of(self, position: Any) -> list[float]:
        kind, _ = self._tensor
        if not kind:
            return []
        return list(getattr(position, kind)(self._mover))

    @property
    def state(self) -> OpenSpielState:
        return OpenSpielState(
            episode_id=self._episode.id,
            step_count=self._episode.steps,
            game=str(self._game),
            player=None if self._opponent == "self" else self._player,
            history=[] if self._position is None else list(self._position.history()),
            returns=[] if self._position is None else list(self._position.returns()),
        )


def games() -> list[str]:
    """The games that can be played in turns without further parameters."""
    import pyspiel

    _register_python_games()
    turns = (pyspiel.GameType.Dynamics.SEQUENTIAL, pyspiel.GameType.Dynamics.SIMULTANEOUS)
    found = [each for each in pyspiel.registered_games() if each.dynamics in turns and each.default_loadable]
    return [each.short_name for each in found if each.short_name not in _WITHOUT_ACTION_IDS]


def _register_python_games() -> None:
    """Those that are written in Python register themselves; loading them takes half a second."""
    import open_spiel.python.games  # noqa: F401


def _load_game(name: str) -> Any:
    import pyspiel

    kind = name.split("(", 1)[0]
    if kind not in pyspiel.registered_names():
        _register_python_games()
    if kind not in (known := pyspiel.registered_names()):
        raise ValueError(f"OpenSpiel has no game {name!r}; it has {', '.join(known)}")
    if kind in _WITHOUT_ACTION_IDS:
        raise ValueError(f"the moves of {name!r} have no numbers, so it cannot be played here")
    try:
        game = pyspiel.load_game(name)
        if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
            game = pyspiel.convert_to_turn_based(game)
    except (pyspiel.SpielError, IndexError) as error:  # an IndexError where nfg_game is not told its file
        raise ValueError(f"OpenSpiel cannot load {name!r}: {error}") from None
    if game.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ValueError(f"{name!r} is a mean field game, which has no turns")
    return game


def _tensor_of(game: Any) -> tuple[str, int]:
    """How what a player knows is had as numbers, and how many they are."""
    about = game.get_type()
    if about.provides_information_state_tensor:
        return "information_state_tensor", game.information_state_tensor_size()
    if about.provides_observation_tensor:
        return "observation_tensor", game.observation_tensor_size()
    return "", 0


def _text_of(game: Any, position: Any, player: int) -> str:
    """What a player may know, in words; the whole position only in games that hide nothing."""
    import pyspiel

    about = game.get_type()
    if about.information == pyspiel.GameType.Information.PERFECT_INFORMATION:
        return str(position)
    if about.provides_information_state_string:
        return str(position.information_state_string(player))
    return str(position.observation_string(player)) if about.provides_observation_string else ""
