"""Making TextArena's games so that many can be played at once, and without a download.

Some things that its modules take from elsewhere are replaced in them, and nowhere else:

* `random` and `numpy`, by the session's own generators: TextArena seeds and draws from the global ones;
* NLTK's word lists and its tagger, which TextArena downloads while it is imported, by the dictionaries that come with
  TextArena and the list of common nouns beside this file;
* `print`, by nothing: some games talk to the terminal;
* `set` in Word Chains, which draws from one, by sets with an order.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from envhive.envs.ordering import sort_sets
from envhive.envs.randomness import Generators, draw_from_sessions, drawing_from

_MOST_PLAYERS: Final = 15
_preparing: Final = threading.RLock()
_prepared: set[str] = set()


def games() -> list[str]:
    """The ids of all games; some need Python 3.12 or a language model to play with."""
    import textarena.envs.registration

    return sorted(textarena.envs.registration.ENV_REGISTRY)


def make(game: str) -> Any:
    """A game, set up as its id says. What it draws comes from `envhive.envs.randomness.drawing_from`."""
    import textarena

    _prepare(game)
    try:
        return textarena.make(game)
    except (ImportError, OSError, ValueError) as error:  # a game that lacks a package, a file, or a model's key
        raise ValueError(f"{game} cannot be played here: {error}") from error


@functools.cache
def fewest_players(game: str) -> int:
    """The least number of players that a game takes, found by trying."""
    problem: Exception | None = None
    with drawing_from(Generators(0)):
        for number in range(1, _MOST_PLAYERS + 1):
            env = make(game)
            try:
                env.reset(num_players=number, seed=0)
                return number
            except (AssertionError, LookupError, TypeError, ValueError) as error:  # how they refuse a number
                problem = error
            except OSError as error:  # its files are not in the package
                raise ValueError(f"{game} cannot be played here: {error}") from error
    raise ValueError(f"{game} takes no number of players up to {_MOST_PLAYERS}: {problem}")


def _prepare(game: str) -> None:
    """Load a game's modules and replace what is to be replaced, once."""
    import textarena.envs.registration

    with _preparing:
        if game in _prepared:
            return
        registry = textarena.envs.registration.ENV_REGISTRY
        if game not in registry:
            raise ValueError(f"TextArena has no game {game!r}; it has {', '.join(sorted(registry))}")
        _mend_invalid_moves()
        with _without_downloads(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes in some games' pictures, the first time they are compiled
            try:
                module = importlib.import_module(registry[game].entry_point.split(":")[0])
            except (ImportError, SyntaxError) as error:  # some are written for Python 3.12
                raise ValueError(f"{game} cannot be played here: {type(error).__name__}: {error}") from error
        if module.__name__.endswith(".WordChains.env"):
            sort_sets(module)
        draw_from_sessions("textarena")
        for name, module in list(sys.modules.items()):
            if name.startswith("textarena.envs."):
                _replace_words(module)
        _prepared.add(game)


@contextmanager
def _without_downloads() -> Iterator[None]:
    """While a game is imported, NLTK itself is replaced: some ask it at once."""
    import nltk

    before = nltk.download, nltk.corpus.words, nltk.pos_tag
    nltk.download, nltk.corpus.words, nltk.pos_tag = _nltk.download, _words, _pos_tag
    try:
        _replace_words(importlib.import_module("textarena.envs.utils.word_lists"))
        yield
    finally:
        nltk.download, nltk.corpus.words, nltk.pos_tag = before


@functools.cache
def _mend_invalid_moves() -> None:
    """Countdown and others give the reward of an invalid move where its reason belongs, and the other way round."""
    from textarena import SinglePlayerState

    set_invalid_move = SinglePlayerState.set_invalid_move

    def mended(self: Any, reason: Any = None, reward: Any = -1.0) -> None:
        if isinstance(reward, str):
            reason, reward = reward, reason
        set_invalid_move(self, reason=reason, reward=reward)

    SinglePlayerState.set_invalid_move = mended


def _replace_words(module: ModuleType) -> None:
    ours = {"nltk": _nltk, "words": _words, "pos_tag": _pos_tag, "EnglishDictionary": _dictionary}
    if module.__name__.endswith(".word_lists"):
        del ours["EnglishDictionary"]  # where it is defined
    for name in ours.keys() & vars(module).keys():
        setattr(module, name, ours[name])
    vars(module)["print"] = _silence


def _silence(*args: Any, **kwargs: Any) -> None:
    """Says nothing."""


class _Words:
    """Stands in for NLTK's corpus of words."""

    def words(self, fileids: str = "en") -> list[str]:
        return list(common_nouns() if fileids == "en-basic" else _all_words())


def _pos_tag(tokens: list[str]) -> list[tuple[str, str]]:
    """Stands in for NLTK's tagger, of which the games only ask whether a word is a noun."""
    return [(token, "NN") for token in tokens]


_words = _Words()
_nltk = SimpleNamespace(download=lambda *args, **kwargs: True, corpus=SimpleNamespace(words=_words), pos_tag=_pos_tag)


@functools.cache
def common_nouns() -> tuple[str, ...]:
    text = files(__package__).joinpath("words.txt").read_text(encoding="utf-8")
    return tuple(sorted(set(text.split())))


@functools.cache
def _all_words() -> tuple[str, ...]:
    return tuple(sorted(_dictionary().get_all_words()))


def _dictionary(**options: Any) -> Any:
    """Stands in for TextArena's dictionary: one for all games, as it takes a second or two to load, and 30 MB.

    The games all ask for the same one: without names, and with NLTK's words.
    """
    with _preparing:  # one thread makes it, the others wait
        return _load_dictionary()


@functools.cache
def _load_dictionary() -> Any:
    from textarena.envs.utils.word_lists import EnglishDictionary

    dictionary = EnglishDictionary(keep_proper_nouns=False, include_nltk=False)
    dictionary.nltk_words = dictionary.nltk_basic_words = set(common_nouns())
    return dictionary
