"""The values that authors, servers and clients exchange."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envhive import (
    Action,
    ConcurrencyConfig,
    EnvironmentMetadata,
    Observation,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
    State,
    StepResult,
)
from envhive.types import HealthStatus


class Move(Action):
    by: int = 1


# Actions, observations, states.


def test_an_action_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="speed"):
        Move.model_validate({"by": 2, "speed": 3})


def test_an_action_may_carry_metadata() -> None:
    assert Move.model_validate({"by": 2, "metadata": {"run": 7}}).metadata == {"run": 7}


def test_an_observation_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="score"):
        Observation.model_validate({"score": 1})


def test_an_observation_is_neither_the_end_nor_rewarded_unless_it_says_so() -> None:
    observation = Observation()
    assert observation.done is False
    assert observation.reward is None
    assert observation.metadata == {}


@pytest.mark.parametrize("reward", [True, False, 0, 3, -1.5, 0.0, None])
def test_a_reward_keeps_its_type(reward: Any) -> None:
    kept = Observation(reward=reward).reward
    assert kept == reward
    assert type(kept) is type(reward)


@pytest.mark.parametrize("reward", ["high", [1.0], {"r": 1.0}])
def test_a_reward_that_is_no_number_is_refused(reward: Any) -> None:
    with pytest.raises(ValidationError, match="reward"):
        Observation(reward=reward)


def test_metadata_is_not_shared_between_observations() -> None:
    Observation().metadata["seen"] = True
    assert Observation().metadata == {}


def test_a_state_may_have_any_further_field() -> None:
    state = State.model_validate({"episode_id": "e1", "board": [1, 2]})
    assert state.model_dump() == {"episode_id": "e1", "step_count": 0, "board": [1, 2]}


def test_a_state_never_counts_below_zero() -> None:
    state = State()
    with pytest.raises(ValidationError, match="step_count"):
        state.step_count = -1
    assert state.step_count == 0


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [(Move(), "by", "far"), (Observation(), "done", "perhaps"), (State(), "episode_id", 5)],
    ids=["action", "observation", "state"],
)
def test_a_wrong_value_is_refused_on_assignment_too(model: Any, field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        setattr(model, field, value)


def test_a_step_result_without_a_reward_has_none_rather_than_zero() -> None:
    result = StepResult(observation={"x": 1})
    assert result.reward is None
    assert result.done is False
    assert result.metadata is None


# Servers.


@given(st.integers(min_value=1, max_value=10_000), st.data())
def test_used_and_free_slots_add_up_to_the_limit(limit: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(min_value=0, max_value=limit))
    status = ServerCapacityStatus.from_counts(active, limit)
    assert status.active_sessions + status.available_slots == status.max_sessions == limit
    assert status.is_at_capacity == (active == limit)


def test_more_sessions_than_the_limit_cannot_be_reported() -> None:
    with pytest.raises(ValidationError, match="9 active sessions exceed the limit of 8"):
        ServerCapacityStatus.from_counts(9, 8)


@pytest.mark.parametrize(("active", "limit"), [(-1, 8), (0, 0)])
def test_impossible_counts_are_refused(active: int, limit: int) -> None:
    with pytest.raises(ValidationError):
        ServerCapacityStatus(active_sessions=active, max_sessions=limit)


def test_one_session_that_never_expires_is_the_default_concurrency() -> None:
    config = ConcurrencyConfig()
    assert (config.max_concurrent_envs, config.session_timeout) == (1, None)


@pytest.mark.parametrize(
    "settings",
    [{"max_concurrent_envs": 0}, {"max_concurrent_envs": -3}, {"session_timeout": 0}, {"max_sessions": 4}],
    ids=str,
)
def test_a_concurrency_config_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        ConcurrencyConfig(**settings)


def test_metadata_of_an_environment_needs_a_name_and_a_description() -> None:
    with pytest.raises(ValidationError, match="description"):
        EnvironmentMetadata.model_validate({"name": "echo"})
    metadata = EnvironmentMetadata(name="echo", description="Says back what it is told")
    assert metadata.model_dump(exclude_none=True) == {"name": "echo", "description": "Says back what it is told"}


def test_a_session_has_taken_no_step_at_first() -> None:
    info = SessionInfo(session_id="s", created_at=1.0, last_activity_at=2.0, environment_type="EchoEnvironment")
    assert info.step_count == 0


@pytest.mark.parametrize(
    ("member", "text"),
    [
        (ServerMode.SIMULATION, "simulation"),
        (ServerMode.PRODUCTION, "production"),
        (HealthStatus.HEALTHY, "healthy"),
        (HealthStatus.DEGRADED, "degraded"),
        (HealthStatus.UNHEALTHY, "unhealthy"),
    ],
)
def test_modes_and_health_are_plain_words_on_the_wire(member: ServerMode | HealthStatus, text: str) -> None:
    assert member == text
    assert f"{member}" == text
