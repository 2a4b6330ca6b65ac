"""Atari games: one emulator a session."""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar, Final, Literal, get_args

from envhive.envs.atari.models import AtariAction, AtariObservation, AtariState
from envhive.envs.encoding import ArrayData, ImageData
from envhive.envs.episode import Episode
from envhive.envs.trying import TriedEnvironment

Frame = Literal["png", "array", "ram"]

_FRAMES_OF_AN_EPISODE: Final = 108_000
"""Half an hour of the console's time, as is usual."""
_one_loads: Final = threading.Lock()
"""Loading a game holds the interpreter's lock for a tenth of a second: when 64 sessions come at once, those that wait
here leave the turns in between to the server."""


class AtariEnvironment(TriedEnvironment[AtariAction, AtariObservation, AtariState]):
    """An Atari 2600 game, with the rules that experiments agree on: sticky actions, four frames a step.

    The emulator itself is without chance. What the seed decides is which actions stick, and how many idle frames
    come first.

    Args:
        game: Its name, such as pong or space_invaders; `reset` may choose another.
        frame: What an observation shows: the screen as a PNG or as an array, or the console's memory.
        grayscale: Whether the screen is without colour.
        frameskip: Frames for which an action is held.
        sticky: The chance that a frame goes on with the action before, rather than with the one that is asked for.
        noop_max: The most idle frames before the first observation.
        full_action_space: All 18 actions, rather than those that do something in this game.
        max_frames: Frames after which an episode is cut off.
        mode: The game's mode, as its switch selects it; None: the first.
        difficulty: The game's difficulty, as its switch selects it; None: the first.

    Example:
        >>> env = AtariEnvironment("pong", frame="ram")
        >>> env.reset(seed=1).action_meanings
        ['NOOP', 'FIRE', 'RIGHT', 'LEFT', 'RIGHTFIRE', 'LEFTFIRE']
        >>> env.step(AtariAction(action_id=2)).reward
        0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(
        self,
        game: str = "pong",
        frame: Frame = "png",
        grayscale: bool = False,
        frameskip: int = 4,
        sticky: float = 0.25,
        noop_max: int = 0,
        full_action_space: bool = False,
        max_frames: int = _FRAMES_OF_AN_EPISODE,
        mode: int | None = None,
        difficulty: int | None = None,
    ) -> None:
        super().__init__()
        if frame not in get_args(Frame):
            raise ValueError(f"frame must be one of {', '.join(get_args(Frame))}, not {frame!r}")
        if not 0 <= sticky <= 1:
            raise ValueError(f"sticky is a chance between 0 and 1, not {sticky}")
        if frameskip < 1 or noop_max < 0 or max_frames < 1:
            raise ValueError("frameskip and max_frames must be at least 1, noop_max at least 0")
        self._frame, self._grayscale = frame, grayscale
        self._frameskip, self._sticky, self._noop_max = frameskip, sticky, noop_max
        self._full_action_space, self._max_frames = full_action_space, max_frames
        self._mode, self._difficulty = mode, difficulty
        self._random = random.Random()
        self._episode = Episode()
        self._score = 0.0
        self._load(game)

    def _load(self, game: str) -> None:
        # A console of its own for each game: loading takes a tenth of a second, and no game is to inherit anything.
        from ale_py import ALEInterface, LoggerMode, roms

        rom = roms.get_rom_path(game) if game in roms.get_all_rom_ids() else None
        if rom is None:
            raise ValueError(f"There is no Atari game {game!r}; there are {', '.join(roms.get_all_rom_ids())}")
        ALEInterface.setLoggerMode(LoggerMode.Error)
        ale = ALEInterface()
        ale.setInt("random_seed", 0)
        ale.setFloat("repeat_action_probability", 0.0)  # actions stick by the session's own generator
        with _one_loads:
            ale.loadROM(rom)
        if self._mode is not None:
            ale.setMode(_one_of("mode", self._mode, ale.getAvailableModes()))
        if self._difficulty is not None:
            ale.setDifficulty(_one_of("difficulty", self._difficulty, ale.getAvailableDifficulties()))
        self._ale, self._game = ale, game
        self._actions = ale.getLegalActionSet() if self._full_action_space else ale.getMinimalActionSet()
        self._meanings = [action.name for action in self._actions]
        self._held = self._actions[0]

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, game: str | None = None, **kwargs: Any
    ) -> AtariObservation:
        """Begin an episode, of another game if one is named."""
        self._episode.end()
        if game is not None and game != self._game:
            self._load(game)
        self._random.seed(seed)
        self._ale.reset_game()
        self._held, self._score = self._actions[0], 0.0
        for _ in range(self._random.randint(0, self._noop_max) if self._noop_max else 0):
            self._ale.act(self._held)
        self._episode.begin(episode_id)
        return self._observe()

    def step(self, action: AtariAction, timeout_s: float | None = None, **kwargs: Any) -> AtariObservation:
        self._episode.require_running()
        if action.action_id >= len(self._actions):
            meanings = ", ".join(f"{at} {name}" for at, name in enumerate(self._meanings))
            raise ValueError(f"There is no action {action.action_id} in {self._game}; there are {meanings}")
        wanted, reward = self._actions[action.action_id], 0
        for _ in range(self._frameskip):
            if self._random.random() >= self._sticky:
                self._held = wanted
            reward += self._ale.act(self._held)
            if self._ale.game_over():
                break
        over = bool(self._ale.game_over())
        truncated = not over and self._ale.getEpisodeFrameNumber() >= self._max_frames
        self._score += reward
        self._episode.advance(done=over or truncated)
        return self._observe(reward=float(reward), done=over or truncated, truncated=truncated)

    def _observe(self, **outcome: Any) -> AtariObservation:
        return AtariObservation(
            legal_actions=list(range(len(self._actions))),
            action_meanings=self._meanings,
            lives=self._ale.lives(),
            frame_number=self._ale.getEpisodeFrameNumber(),
            **self._seen(),
            **outcome,
        )

    def _seen(self) -> dict[str, Any]:
        if self._frame == "ram":
            return {"ram": self._ale.getRAM().tolist()}
        screen = self._ale.getScreenGrayscale() if self._grayscale else self._ale.getScreenRGB()
        return {"image": ImageData.of(screen)} if self._frame == "png" else {"screen": ArrayData.of(screen)}

    @property
    def state(self) -> AtariState:
        return AtariState(
            episode_id=self._episode.id,
            step_count=self._episode.steps,
            game=self._game,
            score=self._score,
            lives=self._ale.lives(),
            frame_number=self._ale.getEpisodeFrameNumber(),
        )


def _one_of(name: str, value: int, available: list[int]) -> int:
    if value not in available:
        raise ValueError(f"{name} must be one of {', '.join(map(str, available))}, not {value}")
    return value
