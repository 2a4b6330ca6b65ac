"""What is to be measured, from what a person typed."""

from __future__ import annotations

import json

import pytest

from envhive.bench.plan import (
    FULL_SESSIONS,
    FULL_WAITS,
    ComparePlan,
    StormPlan,
    parse_action,
    parse_counts,
    parse_waits,
    wait_action,
)
from envhive.errors import ConfigurationError


def test_a_grid_goes_from_small_to_large_and_repeats_each_cell() -> None:
    plan = StormPlan(sessions=(128, 32), waits=(1.0, 5.0), repetitions=2)
    cells = [(cell.wait_s, cell.sessions, cell.repetition) for cell in plan.cells()]
    assert cells[:4] == [(1.0, 32, 1), (1.0, 32, 2), (1.0, 128, 1), (1.0, 128, 2)]
    assert len(cells) == len(plan) == 8


def test_the_full_grid_is_the_scaling_tests() -> None:
    plan = StormPlan(sessions=FULL_SESSIONS, waits=FULL_WAITS)
    assert len(plan) == 7 * 3 * 3
    assert max(plan.sessions) == 16384


def test_a_step_waits_unless_another_action_is_given() -> None:
    assert json.loads(StormPlan().action_for(5.0)) == {"wait_seconds": 5.0}
    assert StormPlan(action='{"message": "x"}').action_for(5.0) == '{"message": "x"}'
    assert json.loads(wait_action(1e-7)) == {"wait_seconds": 1e-7}


def test_lists_of_numbers_may_have_spaces_and_repeat_themselves() -> None:
    assert parse_counts(" 32,128 ,32,") == (32, 128)
    assert parse_waits("0, 0.5,10") == (0.0, 0.5, 10.0)


@pytest.mark.parametrize("text", ["", ",", "0", "-3", "1.5", "many", "32,x", "2000000"])
def test_what_is_no_number_of_sessions_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_counts(text)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "soon", "1e9"])
def test_what_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_waits(text)


@pytest.mark.parametrize(("text", "said"), [("{", "not JSON"), ("[1]", "must be a JSON object"), ("3", "must be")])
def test_an_action_is_a_json_object(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_action(text)
    assert parse_action('{"a": 1}') == '{"a": 1}'
    assert parse_action(None) is None


def test_one_session_is_always_compared_and_only_once() -> None:
    assert ComparePlan(sessions=(64, 1)).counts == (1, 64)
