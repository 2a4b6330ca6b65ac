"""OpenSpiel's games."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspiel", reason="pip install 'envhive[openspiel]'")

import pyspiel

from envhive import check_environment
from envhive.envs.openspiel import OpenSpielAction, OpenSpielEnvironment, OpenSpielObservation
from envhive.envs.openspiel.environment import Opponent, games

MEAN_FIELD = pyspiel.GameType.Dynamics.MEAN_FIELD
WITH_PARAMETERS = [
    "add_noise(epsilon=1.0,seed=1,game=kuhn_poker())",
    "cached_tree(game=tic_tac_toe())",
    "coop_to_1p(game=tiny_hanabi())",
    "misere(game=tic_tac_toe())",
    "normal_form_extensive_game(game=kuhn_poker())",
    "repeated_game(stage_game=matrix_pd(),num_repetitions=3)",
    "repeated_poker(max_num_hands=2,reset_stacks=True,rotate_dealer=True,universal_poker_game_string=universal_poker())",
    "restricted_nash_response(game=kuhn_poker())",
    "start_at(history=0;1,game=kuhn_poker())",
    "turn_based_simultaneous_game(game=goofspiel())",
    "zerosum(game=tic_tac_toe())",
]
"""Games that are made of others: each must be told of which."""
WITHOUT_NUMBERS, FROM_FILES = {"crossword"}, {"efg_game", "nfg_game"}


def do(env: OpenSpielEnvironment, action: int) -> OpenSpielObservation:
    return env.step(OpenSpielAction(action_id=action))


def test_every_registered_game_is_played_or_refused_for_a_reason() -> None:
    as_they_are = set(games())  # which also registers those that are written in Python
    about = {each.short_name: each for each in pyspiel.registered_games()}
    refused = {name for name in about if about[name].dynamics == MEAN_FIELD} | WITHOUT_NUMBERS | FROM_FILES
    assert about.keys() == as_they_are | {name.partition("(")[0] for name in WITH_PARAMETERS} | refused
    assert len(as_they_are) > 100
    for name in refused:
        with pytest.raises(ValueError, match=r"no turns|no numbers|cannot load"):
            OpenSpielEnvironment(name)


@pytest.mark.parametrize("opponent", ["random", "first"])
def test_every_game_can_be_played_at_random(opponent: Opponent) -> None:
    chance, ended = random.Random(1), 0
    for name in games() + WITH_PARAMETERS:
        env = OpenSpielEnvironment(name, opponent, max_moves=40)
        seen = env.reset(seed=1)
        while not seen.done:
            assert len(seen.action_meanings) == len(seen.legal_actions) > 0, name
            seen = do(env, chance.choice(seen.legal_actions))
        assert seen.legal_actions == [], name
        assert OpenSpielObservation.model_validate_json(seen.model_dump_json()) == seen, name
        ended += not seen.truncated
    assert ended > 50


def test_a_scripted_player_wins_tic_tac_toe_against_the_first_legal_move() -> None:
    env = OpenSpielEnvironment("tic_tac_toe", opponent="first")
    env.reset()
    assert [do(env, cell).opponent_actions for cell in (2, 4)] == [[0], [1]]
    last = do(env, 6)
    assert (last.reward, last.done, last.rewards, last.opponent_actions) == (1.0, True, [1.0, -1.0], [])
    assert env.state.history == [2, 0, 4, 1, 6]


def test_from_the_second_seat_the_opponent_begins_and_may_win() -> None:
    env = OpenSpielEnvironment("tic_tac_toe", opponent="first", player=1)
    seen = env.reset()
    assert (seen.opponent_actions, seen.current_player_id, seen.reward) == ([0], 1, None)
    assert do(env, 8).opponent_actions == [1]
    last = do(env, 7)
    assert (last.reward, last.done) == (-1.0, True)
    assert last.opponent_actions == [2]


def test_the_agent_may_play_all_seats_and_draw_with_itself() -> None:
    env = OpenSpielEnvironment("tic_tac_toe", opponent="self")
    env.reset()
    seen = [do(env, cell) for cell in (4, 0, 2, 6, 3, 5, 1, 7, 8)]
    assert [each.current_player_id for each in seen[:4]] == [1, 0, 1, 0]
    assert (seen[-1].reward, seen[-1].done) == (0.0, True)
    env.reset()
    last = [do(env, cell) for cell in (0, 3, 1, 4, 8, 5)][-1]
    assert (last.reward, last.rewards) == (1.0, [-1.0, 1.0])  # the reward is the second player's, who moved


def test_imperfect_information_stays_hidden() -> None:
    env = OpenSpielEnvironment("kuhn_poker", opponent="self")
    deals = {(env.reset(seed=seed).text, *env.state.history[:2]) for seed in range(40)}
    mine = {(text, own) for text, own, _ in deals}
    assert len(deals) == 6
    assert len(mine) == 3  # what is shown tells the own card and not the other's


def test_moves_made_at_once_do_not_show() -> None:
    env = OpenSpielEnvironment("matrix_pd", opponent="self")
    env.reset()
    second = do(env, 0)
    assert (second.current_player_id, second.done) == (1, False)
    other = OpenSpielEnvironment("matrix_pd", opponent="self")
    other.reset()
    assert do(other, 1).info_state == second.info_state
    assert do(env, 1).rewards == [0.0, 10.0]


def test_rewards_on_the_way_add_up_to_the_returns() -> None:
    env, chance = OpenSpielEnvironment("coin_game", opponent="random"), random.Random(1)
    seen, total = env.reset(seed=1), Counter[int]()
    while not seen.done:
        seen = do(env, chance.choice(seen.legal_actions))
        total.update(dict(enumerate(seen.rewards)))
    assert [total[player] for player in range(len(seen.rewards))] == pytest.approx(env.state.returns)


@pytest.mark.parametrize("name", ["backgammon", "leduc_poker", "hex(board_size=5)", "python_tic_tac_toe"])
def test_other_games_keep_the_contract(name: str) -> None:
    def made() -> OpenSpielEnvironment:
        return OpenSpielEnvironment(name, opponent="first")

    env = made()
    seen = env.reset(seed=42)
    actions = []
    for _ in range(3):
        actions.append(OpenSpielAction(action_id=seen.legal_actions[-1]))
        seen = env.step(actions[-1])
        if seen.done:
            break
    assert check_environment(made, actions).findings == []


def test_reset_chooses_another_game() -> None:
    env = OpenSpielEnvironment("tic_tac_toe")
    assert len(env.reset(game="connect_four").legal_actions) == 7
    with pytest.raises(ValueError, match="no game 'football'"):
        env.reset(game="football")


def test_an_illegal_move_is_refused_and_the_game_goes_on() -> None:
    env = OpenSpielEnvironment("tic_tac_toe", opponent="first")
    env.reset()
    do(env, 4)
    with pytest.raises(ValueError, match="4 is no legal action here; these are: 1, 2, 3"):
        do(env, 4)
    assert do(env, 8).opponent_actions == [1]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"game": "misere"}, "cannot load"),
        ({"game": "hex(board_size=)"}, "cannot load|board_size"),
        ({"game": "crossword"}, "no numbers"),
        ({"game": "mfg_crowd_modelling"}, "mean field"),
        ({"player": 5}, "no player 5"),
        ({"opponent": "strong"}, "opponent must be one of"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        OpenSpielEnvironment(**settings)
