"""What a server is told, and who wins when it is told twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envhive import ConcurrencyConfig, ServerMode, create_app
from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation
from envhive.errors import ConfigurationError
from envhive.server.config import ServerConfig, as_mode, config_for_app, forced

GOOD_VALUES: list[tuple[str, str, str, Any]] = [
    ("HOST", "0.0.0.0", "host", "0.0.0.0"),
    ("PORT", "9000", "port", 9000),
    ("PORT", "65535", "port", 65535),
    ("WORKERS", "4", "workers", 4),
    ("ENVHIVE_REQUIRE_RESET", "1", "require_reset", True),
    ("MAX_CONCURRENT_ENVS", "256", "max_sessions", 256),
    ("MAX_CONCURRENT_ENVS", " 256 ", "max_sessions", 256),
    ("SESSION_TIMEOUT", "1.5", "session_timeout", 1.5),
    ("OPENENV_MODE", "production", "mode", ServerMode.PRODUCTION),
    ("ENVHIVE_MODE", "PRODUCTION", "mode", ServerMode.PRODUCTION),
    ("ENVHIVE_LOG_LEVEL", "Debug", "log_level", "debug"),
    ("ENVHIVE_LOG_FORMAT", "JSON", "log_format", "json"),
    ("ENVHIVE_PING_INTERVAL", "5", "ping_interval", 5.0),
    ("ENVHIVE_PING_TIMEOUT", "0.5", "ping_timeout", 0.5),
    ("ENVHIVE_MAX_MESSAGE_SIZE", "1024", "max_message_size", 1024),
    ("ENVHIVE_GRACE_PERIOD", "2", "grace_period", 2.0),
    ("ENVHIVE_THREAD_STACK_SIZE", "65536", "thread_stack_size", 65536),
    ("ENVHIVE_ISOLATION", "Process", "isolation", "process"),
    ("ENVHIVE_MEMORY_LIMIT", "512", "memory_limit", 512),
]
VARIABLES = sorted({variable for variable, *_ in GOOD_VALUES})

NO_INTEGERS = ["0", "-1", "many", "2.5", "1e3", "0x10", "4\n5", "4;"]
NO_SECONDS = ["0", "-2", "soon", "nan", "inf", "1,5"]
BAD_VALUES = [
    *((variable, value) for variable in ("MAX_CONCURRENT_ENVS", "WORKERS") for value in NO_INTEGERS),
    *(("PORT", value) for value in NO_INTEGERS if value != "0"),
    *((variable, "-1") for variable in ("ENVHIVE_MAX_MESSAGE_SIZE", "ENVHIVE_THREAD_STACK_SIZE")),
    *(("SESSION_TIMEOUT", value) for value in NO_SECONDS),
    *((f"ENVHIVE_{name}", "soon") for name in ("PING_INTERVAL", "PING_TIMEOUT", "GRACE_PERIOD")),
    ("PORT", "65536"),
    ("OPENENV_MODE", "party"),
    ("ENVHIVE_MODE", "party"),
    ("ENVHIVE_LOG_LEVEL", "loud"),
    ("ENVHIVE_LOG_FORMAT", "xml"),
    ("ENVHIVE_ISOLATION", "island"),
    ("ENVHIVE_MEMORY_LIMIT", "much"),
]


@pytest.fixture(autouse=True)
def _no_variables_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


# Environment variables.


@pytest.mark.parametrize(("variable", "text", "field", "value"), GOOD_VALUES)
def test_a_variable_sets_its_field(variable: str, text: str, field: str, value: Any) -> None:
    found = getattr(ServerConfig.resolve({variable: text}), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("variable", "text", "field", "value"), GOOD_VALUES)
def test_variables_come_from_the_process_unless_given(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: Any
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(ServerConfig.resolve(), field) == value
    assert ServerConfig.resolve({}) == ServerConfig()


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_variable_counts_as_not_set(variable: str, blank: str) -> None:
    assert ServerConfig.resolve({variable: blank}) == ServerConfig()


@pytest.mark.parametrize(("variable", "value"), BAD_VALUES)
def test_a_bad_value_is_one_line_that_names_the_variable_and_the_value(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ServerConfig.resolve({variable: value})
    text = str(caught.value)
    assert variable in text
    assert repr(value) in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("MAX_CONCURRENT_ENVS", "0", "a positive integer"),
        ("SESSION_TIMEOUT", "never", "a positive number of seconds"),
        ("PORT", "70000", "a port from 1 to 65535"),
        ("ENVHIVE_LOG_LEVEL", "loud", "one of critical, error, warning, info, debug"),
        ("ENVHIVE_MODE", "party", "simulation or production"),
    ],
)
def test_a_bad_value_is_told_with_what_would_be_good(variable: str, value: str, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=wanted):
        ServerConfig.resolve({variable: value})


@given(st.text())
@settings(deadline=None)
def test_no_value_whatsoever_gets_past_as_a_limit_below_one(text: str) -> None:
    try:
        limit = ServerConfig.resolve({"MAX_CONCURRENT_ENVS": text}).max_sessions
    except ConfigurationError as error:
        assert str(error).startswith("MAX_CONCURRENT_ENVS must be a positive integer")
        assert len(str(error).splitlines()) == 1
    else:
        assert limit is None if not text.strip() else limit is not None and limit >= 1


def test_a_bad_variable_stops_an_app_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "plenty")
    with pytest.raises(ConfigurationError, match=r"MAX_CONCURRENT_ENVS .*'plenty'"):
        create_app(EchoEnvironment, EchoAction, EchoObservation)


# Precedence.


def test_what_is_given_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    environ = {"PORT": "9000", "HOST": "0.0.0.0"}
    config = ServerConfig.resolve(environ, port=7000)
    assert (config.port, config.host, config.workers) == (7000, "0.0.0.0", 1)


def test_none_counts_as_not_given() -> None:
    assert ServerConfig.resolve({"PORT": "9000"}, port=None, host=None) == ServerConfig(port=9000)


def test_our_own_mode_variable_wins_over_openenvs() -> None:
    environ = {"ENVHIVE_MODE": "simulation", "OPENENV_MODE": "production"}
    assert ServerConfig.resolve(environ).mode is ServerMode.SIMULATION


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        ServerConfig.resolve({}, colour="red")


# What `create_app` is given.


def test_max_concurrent_envs_is_the_limit() -> None:
    assert config_for_app(12, None, None).max_sessions == 12


def test_a_concurrency_config_sets_limit_and_timeout() -> None:
    config = config_for_app(None, ConcurrencyConfig(max_concurrent_envs=12, session_timeout=3.0), None)
    assert (config.max_sessions, config.session_timeout) == (12, 3.0)


def test_both_ways_to_set_the_limit_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="either max_concurrent_envs or concurrency_config, not both"):
        create_app(
            EchoEnvironment,
            EchoAction,
            EchoObservation,
            max_concurrent_envs=2,
            concurrency_config=ConcurrencyConfig(max_concurrent_envs=2),
        )


@pytest.mark.parametrize("limit", [0, -5, 2.5, "many"])
def test_a_limit_that_makes_no_sense_is_refused_by_name(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_concurrent_envs must be a positive integer") as caught:
        config_for_app(limit, None, None)
    assert str(limit) in str(caught.value)


def test_what_an_app_is_made_with_wins_over_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "5")
    monkeypatch.setenv("OPENENV_MODE", "production")
    assert config_for_app(12, None, "simulation") == ServerConfig(max_sessions=12)
    config = config_for_app(None, None, None)
    assert (config.max_sessions, config.mode) == (5, ServerMode.PRODUCTION)


@pytest.mark.parametrize("mode", ["production", "Production", ServerMode.PRODUCTION])
def test_a_mode_is_a_word_or_a_member(mode: ServerMode | str) -> None:
    assert as_mode(mode) is ServerMode.PRODUCTION
    assert config_for_app(None, None, mode).mode is ServerMode.PRODUCTION


def test_an_unknown_mode_is_refused_with_the_choice() -> None:
    with pytest.raises(ConfigurationError, match=r"'party'.*simulation or production"):
        as_mode("party")


# What is forced from outside.


def test_a_forced_option_wins_over_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "5")
    with forced(max_sessions=3):
        assert config_for_app(12, None, None).max_sessions == 3
        assert config_for_app(None, ConcurrencyConfig(max_concurrent_envs=12), None).max_sessions == 3
        assert config_for_app(None, None, None).max_sessions == 3


def test_a_forced_option_is_what_an_app_is_made_with() -> None:
    with forced(max_sessions=3, session_timeout=9.0):
        app = create_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=12)
    assert app.state.envhive.concurrency_config == ConcurrencyConfig(max_concurrent_envs=3, session_timeout=9.0)


def test_forcing_ends_with_its_block_even_when_that_fails() -> None:
    with pytest.raises(KeyError), forced(max_sessions=3):
        raise KeyError
    assert config_for_app(12, None, None).max_sessions == 12


def test_forcing_none_forces_nothing() -> None:
    with forced(max_sessions=None):
        assert config_for_app(12, None, None).max_sessions == 12


def test_an_inner_block_wins_and_the_outer_one_comes_back() -> None:
    with forced(max_sessions=3, grace_period=1.0):
        with forced(max_sessions=4):
            inner = config_for_app(None, None, None)
        outer = config_for_app(None, None, None)
    assert (inner.max_sessions, inner.grace_period) == (4, 1.0)
    assert outer.max_sessions == 3


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ServerConfig().port = 1  # type: ignore[misc]
