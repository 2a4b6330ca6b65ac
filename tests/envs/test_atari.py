"""Atari games."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("ale_py", reason="pip install 'envhive[atari]'")
pytest.importorskip("PIL", reason="pip install 'envhive[atari]'")

from envhive import check_environment
from envhive.envs.atari import AtariAction, AtariEnvironment, AtariObservation

BALL, PADDLE = 54, 51


def follow_the_ball(seen: AtariObservation) -> int:
    assert seen.ram is not None
    ahead = seen.ram[BALL] - seen.ram[PADDLE]
    move = "NOOP" if seen.ram[BALL] == 0 or abs(ahead) < 4 else "LEFT" if ahead > 0 else "RIGHT"
    return seen.action_meanings.index(move)


def score_of(decide: Any, steps: int = 10_000, **settings: Any) -> float:
    env = AtariEnvironment("pong", frame="ram", **settings)
    seen = env.reset(seed=1)
    while not seen.done and env.state.step_count < steps:
        seen = env.step(AtariAction(action_id=decide(seen)))
    assert seen.done or steps < 10_000
    return env.state.score


def test_a_random_player_loses_pong_to_the_end_and_one_that_follows_the_ball_does_better() -> None:
    chance = random.Random(1)
    assert score_of(lambda seen: chance.choice(seen.legal_actions)) <= -18
    assert score_of(follow_the_ball, steps=800) >= -6


def test_frames_as_arrays_keep_the_contract() -> None:
    def made() -> AtariEnvironment:
        return AtariEnvironment("breakout", frame="array")

    assert check_environment(made).findings == []


@pytest.mark.parametrize(("grayscale", "shape"), [(False, (210, 160, 3)), (True, (210, 160))])
def test_the_png_and_the_array_show_the_same(grayscale: bool, shape: tuple[int, ...]) -> None:
    drawn, listed = (AtariEnvironment("breakout", frame, grayscale).reset(seed=1) for frame in ("png", "array"))
    assert drawn.image is not None
    assert listed.screen is not None
    pixels = listed.screen.to_numpy()
    assert pixels.shape == shape
    assert (drawn.image.to_numpy() == pixels).all()
    assert len(set(pixels.reshape(-1).tolist())) > 2


def test_reset_chooses_another_game() -> None:
    env = AtariEnvironment("pong", frame="ram")
    assert env.reset(seed=1).lives == 0
    assert env.reset(seed=1, game="breakout").lives == 5
    assert env.state.game == "breakout"
    with pytest.raises(ValueError, match="no Atari game 'chess'"):
        env.reset(game="chess")
    assert env.reset(seed=1).lives == 5


def test_without_sticky_actions_or_idle_frames_the_seed_changes_nothing() -> None:
    def rams(seed: int, **settings: Any) -> list[Any]:
        env = AtariEnvironment("breakout", frame="ram", **settings)
        first = env.reset(seed=seed).ram
        return [first] + [env.step(AtariAction(action_id=at % 4)).ram for at in range(20)]

    assert rams(1, sticky=0) == rams(2, sticky=0)
    assert rams(1, sticky=0.5) != rams(2, sticky=0.5)
    assert rams(1, sticky=0, noop_max=30) != rams(2, sticky=0, noop_max=30)


def test_an_episode_is_cut_off_at_its_most_frames() -> None:
    env = AtariEnvironment("pong", frame="ram", max_frames=8)
    env.reset(seed=1)
    first, second = (env.step(AtariAction(action_id=0)) for _ in range(2))
    assert (first.done, second.done, second.truncated, second.frame_number) == (False, True, True, 8)
    with pytest.raises(RuntimeError, match="has ended"):
        env.step(AtariAction(action_id=0))


def test_an_action_that_is_none_is_refused_and_the_episode_goes_on() -> None:
    env = AtariEnvironment("breakout", frame="ram")
    env.reset(seed=1)
    with pytest.raises(ValueError, match="no action 4 in breakout; there are 0 NOOP, 1 FIRE"):
        env.step(AtariAction(action_id=4))
    assert not env.step(AtariAction(action_id=1)).done
    assert len(AtariEnvironment("breakout", "ram", full_action_space=True).reset().legal_actions) == 18


@pytest.mark.parametrize(
    "wrong", [{"frame": "gif"}, {"sticky": 2}, {"frameskip": 0}, {"mode": 99}, {"difficulty": 99}], ids=str
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AtariEnvironment(**wrong)
