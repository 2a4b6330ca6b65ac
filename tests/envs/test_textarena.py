"""TextArena's games."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import pytest

pytest.importorskip("textarena", reason="pip install 'envhive[textarena]'")

import nltk

from envhive.envs.textarena import TextArenaAction, TextArenaEnvironment, TextArenaObservation, arena

WORDS = [word for word in arena.common_nouns() if len(word) == 5]
VARIED = [
    *("2048-v0", "Blackjack-v0", "GuessTheNumber-v0", "Hangman-v0", "Mastermind-v0", "Minesweeper-v0-small"),
    *("SpellingBee-v0", "WordSearch-v0", "ConnectFour-v0", "KuhnPoker-v0", "LiarsDice-v0", "WordChains-v0"),
]


def say(env: TextArenaEnvironment, message: str) -> TextArenaObservation:
    return env.step(TextArenaAction(message=message))


def marks(guess: str, secret: str) -> str:
    left = [theirs for ours, theirs in zip(guess, secret, strict=True) if ours != theirs]
    found = ""
    for ours, theirs in zip(guess, secret, strict=True):
        found += "G" if ours == theirs else "Y" if ours in left else "X"
        if found[-1] == "Y":
            left.remove(ours)
    return found


def test_a_solver_finds_the_words() -> None:
    env = TextArenaEnvironment()
    for seed in range(4):
        seen, fitting = env.reset(seed=seed), WORDS
        while not seen.done:
            guess = fitting[0]
            seen = say(env, f"[{guess}]")
            if found := re.findall(r"Feedback:\n[A-Z ]+\n([GYX ]+)\n", seen.new_text):
                fitting = [word for word in fitting if marks(guess, word) == found[0].replace(" ", "")]
        assert seen.reward == 1.0
        assert "Congratulations" in seen.reason


def test_a_random_player_plays_wordle_to_the_end() -> None:
    env, chance = TextArenaEnvironment(), random.Random(1)
    for seed in range(3):
        seen = env.reset(seed=seed)
        while not seen.done:
            assert seen.reward in (None, 0.0)
            seen = say(env, f"[{chance.choice(WORDS)}]")
        assert isinstance(seen.reward, float)
        assert seen.rewards == {0: seen.reward}


def test_an_invalid_move_is_told_and_a_second_ends_the_game() -> None:
    env = TextArenaEnvironment()
    env.reset(seed=1)
    first = say(env, "[xxxxx]")
    assert (first.done, first.invalid_move) == (False, True)
    assert "not an English word" in first.new_text
    assert not say(env, "[crane]").invalid_move
    say(env, "[xxxxx]")
    last = say(env, "[yyyyy]")
    assert (last.done, last.invalid_move) == (True, True)
    with pytest.raises(RuntimeError, match="has ended"):
        say(env, "[crane]")


def test_an_invalid_move_is_a_number_of_reward_also_where_textarena_confuses_it_with_its_reason() -> None:
    env = TextArenaEnvironment("Countdown-v0")
    env.reset(seed=1)
    say(env, "[nonsense]")
    last = say(env, "[nonsense]")
    assert last.done
    assert isinstance(last.reward, float)
    assert "Invalid action format" in last.reason


def test_the_agent_speaks_for_both_players() -> None:
    env = TextArenaEnvironment("TicTacToe-v0")
    assert env.reset(seed=1).current_player_id == 0
    assert env.state.num_players == 2
    players = [say(env, f"[{cell}]").current_player_id for cell in (0, 3, 1, 4)]
    assert players == [1, 0, 1, 0]
    last = say(env, "[2]")
    assert (last.done, last.reward, last.rewards) == (True, 1.0, {0: 1.0, 1: -1.0})


def test_a_new_episode_remembers_nothing_of_the_old() -> None:
    env = TextArenaEnvironment()
    first = env.reset(seed=1).prompt
    say(env, "[crane]")
    assert env.reset(seed=1).prompt == first
    assert "crane" not in first
    assert env.reset(seed=1, game="GuessTheNumber-v0").prompt != first


def record(game: str, seed: int) -> list[str]:
    env = TextArenaEnvironment(game)
    seen, told, chance = env.reset(seed=seed), [], random.Random(seed)
    told.append(seen.prompt)
    while not seen.done and len(told) < 6:
        seen = say(env, f"[{chance.randrange(20)}]")
        told.append(seen.new_text)
    return told


@pytest.mark.parametrize("game", VARIED)
def test_seeds_hold_while_others_draw(game: str) -> None:
    alone, beside = [record(game, seed) for seed in range(6)], dict[int, Any]()
    threads = [
        threading.Thread(target=lambda seed=seed: beside.update({seed: record(game, seed)})) for seed in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [beside[seed] for seed in range(6)] == alone


def test_python_own_generator_is_left_alone() -> None:
    random.seed(5)
    expected = random.Random(5).random()
    record("2048-v0", 1)
    assert random.random() == expected


def test_nothing_is_downloaded_and_nltk_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr(nltk, "download", refuse)
    for game in ("Codenames-v0", "DontSayIt-v0", "LetterAuction-v0", "Hangman-v0", "WordLadder-v0"):
        assert TextArenaEnvironment(game).reset(seed=1).prompt
    assert nltk.download is refuse
    assert nltk.pos_tag.__module__.startswith("nltk")


def test_a_game_that_cannot_be_played_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ValueError, match="TwentyQuestions-v0 cannot be played here: OpenRouter API key"):
        TextArenaEnvironment("TwentyQuestions-v0")
    with pytest.raises(ValueError, match="no game 'Gossip-v0'"):
        TextArenaEnvironment("Gossip-v0")
    with pytest.raises(ValueError, match="cannot be played"):
        TextArenaEnvironment("ScorableGames-v0")
