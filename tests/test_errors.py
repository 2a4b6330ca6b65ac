"""The tree of errors, and its way over the wire."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envhive import errors
from envhive.errors import (
    ConcurrencyConfigurationError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DrainingError,
    EnvHiveError,
    EnvironmentCrashedError,
    EnvironmentFactoryError,
    ExecutionError,
    InvalidJSONError,
    InvalidMessageError,
    MessageTooLargeError,
    QuotaExceededError,
    RequestError,
    RequestTimeoutError,
    SessionCapacityError,
    SessionError,
    SessionExpiredError,
    SessionNotFoundError,
    ToolCallError,
    TransportError,
    UnknownTypeError,
    from_wire,
)
from envhive.wire.codec import decode_reply, encode_error_reply, error_data

PROBLEMS: list[dict[str, Any]] = [
    {"type": "missing", "loc": ["board", 0], "msg": "Field required", "input": {}},
    {"type": "int_type", "loc": ["x"], "msg": "Input should be a valid integer", "input": "a"},
]

TRAVELLERS: list[EnvHiveError] = [
    SessionError("The session is in use."),
    InvalidJSONError("Invalid JSON: Expecting value"),
    UnknownTypeError("Unknown message type: jump"),
    InvalidMessageError("Invalid message", PROBLEMS),
    InvalidMessageError("Invalid message"),
    MessageTooLargeError("The message has 12 bytes more than the limit."),
    ExecutionError("the floor gave way"),
    EnvironmentFactoryError("make_game", "Environment factory 'make_game' failed: no such map"),
    EnvironmentFactoryError("make_game"),
    EnvironmentCrashedError(signal="SIGSEGV"),
    EnvironmentCrashedError(exit_code=3),
    EnvironmentCrashedError("It fell over.", signal="SIGKILL"),
    ToolCallError("Unknown tool: 'fly'", "fly", "tool_not_found"),
    SessionCapacityError(8, 8),
    SessionCapacityError(8, 8, "Come back tomorrow."),
    SessionExpiredError("The session was idle for 60 seconds."),
    SessionNotFoundError("There is no session 'abc'."),
    DrainingError("The server is shutting down."),
]
"""One of each error that a server sends, with and without its optional parts."""

COMPOSED: list[EnvHiveError] = [
    ConcurrencyConfigurationError("GameEnvironment", 8),
    EnvironmentFactoryError("make_game"),
    SessionCapacityError(7, 8),
    QuotaExceededError(3, 4),
]
"""Errors that compose their text from their attributes."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
wire_codes = st.sampled_from(sorted({error.code for error in TRAVELLERS}))
wire_details = st.sampled_from(
    ["message", "errors", "factory_name", "active_sessions", "max_sessions", "signal", "exit_code"]
)


def all_classes(root: type[EnvHiveError] = EnvHiveError) -> list[type[EnvHiveError]]:
    children = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in children for found in all_classes(child))]


def attributes(error: EnvHiveError) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if name != "message"}


def name_of(error: EnvHiveError) -> str:
    return type(error).__name__


# Over the wire.


@pytest.mark.parametrize("error", TRAVELLERS, ids=name_of)
def test_the_client_raises_what_the_server_raised(error: EnvHiveError) -> None:
    received = from_wire(error_data(error))
    assert type(received) is type(error)
    assert attributes(received) == attributes(error)
    assert str(received) == str(error)


@pytest.mark.parametrize("error", TRAVELLERS, ids=name_of)
def test_an_error_survives_being_text_on_the_way(error: EnvHiveError) -> None:
    reply = decode_reply(encode_error_reply(error))
    kind, data = reply["type"], reply["data"]
    received = from_wire(data)
    assert kind == "error"
    assert type(received) is type(error)
    assert attributes(received) == attributes(error)


def test_every_code_belongs_to_one_class_on_the_receiving_side() -> None:
    received = {error.code: type(from_wire({"message": "m", "code": error.code})) for error in TRAVELLERS}
    assert received == {error.code: type(error) for error in TRAVELLERS}


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("INVALID_JSON", InvalidJSONError),
        ("UNKNOWN_TYPE", UnknownTypeError),
        ("VALIDATION_ERROR", InvalidMessageError),
        ("EXECUTION_ERROR", ExecutionError),
        ("CAPACITY_REACHED", SessionCapacityError),
        ("FACTORY_ERROR", EnvironmentFactoryError),
        ("ENV_CRASHED", EnvironmentCrashedError),
        ("SESSION_ERROR", SessionError),
        ("SESSION_EXPIRED", SessionExpiredError),
        ("SESSION_NOT_FOUND", SessionNotFoundError),
        ("DRAINING", DrainingError),
        ("MESSAGE_TOO_LARGE", MessageTooLargeError),
    ],
)
def test_a_code_of_the_protocol_is_the_class_it_stands_for(code: str, cls: type[EnvHiveError]) -> None:
    received = from_wire({"message": "It went wrong.", "code": code})
    assert type(received) is cls
    assert "It went wrong." in str(received)


def test_an_unknown_code_becomes_a_session_error_that_tells_the_code() -> None:
    received = from_wire({"message": "The moon is full.", "code": "FULL_MOON"})
    assert type(received) is SessionError
    assert str(received) == "The moon is full. (code: FULL_MOON)"


@pytest.mark.parametrize("code", [None, 5, ["EXECUTION_ERROR"], {"code": "EXECUTION_ERROR"}])
def test_a_code_that_is_no_text_is_an_unknown_code(code: Any) -> None:
    assert str(from_wire({"message": "It went wrong.", "code": code})) == f"It went wrong. (code: {code})"


def test_an_error_without_a_message_says_that_there_was_none() -> None:
    assert str(from_wire({"code": "EXECUTION_ERROR"})) == "The server reported an error without a message."


def test_error_data_that_is_no_object_is_shown_as_it_is() -> None:
    assert "[1, 2]" in str(from_wire([1, 2]))


@given(json_values)
@settings(deadline=None)
def test_no_error_data_whatsoever_fails_to_become_an_error(data: Any) -> None:
    received = from_wire(data)
    assert isinstance(received, SessionError)
    assert str(received)


@given(wire_codes, st.dictionaries(wire_details, json_values))
@example("VALIDATION_ERROR", {"errors": ["not a dict"]})
@example("VALIDATION_ERROR", {"errors": [{"loc": 5, "msg": "bad"}]})
@settings(deadline=None)
def test_nonsense_beside_a_known_code_still_becomes_a_readable_error(code: str, details: dict[str, Any]) -> None:
    received = from_wire({**details, "code": code})
    assert received.code == code
    assert str(received)


@pytest.mark.parametrize("count", ["8", None, 8.5, [8]])
def test_a_count_that_is_no_number_reads_as_zero(count: Any) -> None:
    received = from_wire({"code": "CAPACITY_REACHED", "message": "full", "active_sessions": count, "max_sessions": 3})
    assert isinstance(received, SessionCapacityError)
    assert (received.active_sessions, received.max_sessions) == (0, 3)


# What they say.


@pytest.mark.parametrize("error", COMPOSED, ids=name_of)
def test_a_composed_text_is_a_sentence_with_the_values_in_it(error: EnvHiveError) -> None:
    text = str(error)
    assert text[0].isupper()
    assert text.endswith(".")
    for value in attributes(error).values():
        assert str(value) in text


PLAIN = [cls for cls in all_classes() if cls not in {type(error) for error in COMPOSED}]


@pytest.mark.parametrize("cls", PLAIN, ids=lambda cls: cls.__name__)
def test_a_given_message_is_what_the_error_says(cls: type[EnvHiveError]) -> None:
    assert str(cls("It went wrong.")) == "It went wrong."


def test_a_given_message_wins_over_a_composed_one() -> None:
    assert str(SessionCapacityError(1, 2, "It is full.")) == "It is full."
    assert str(EnvironmentFactoryError("make", "It is broken.")) == "It is broken."


def test_an_error_without_a_message_is_never_silent() -> None:
    assert str(SessionExpiredError()) == "SessionExpiredError"


def test_too_much_concurrency_is_explained_with_what_to_do() -> None:
    text = str(ConcurrencyConfigurationError("GameEnvironment", 8))
    assert "SUPPORTS_CONCURRENT_SESSIONS = True" in text
    assert "limit the server to one session" in text


def test_a_full_server_says_how_full_it_is_and_what_to_do() -> None:
    text = str(SessionCapacityError(7, 8))
    assert "7 of 8 sessions" in text
    assert "Try again" in text


def test_the_first_invalid_field_is_named_and_the_others_are_counted() -> None:
    error = InvalidMessageError("Invalid message", PROBLEMS)
    assert str(error) == "Invalid message: board.0: Field required (and 1 more)"


def test_a_single_invalid_field_counts_no_others() -> None:
    assert str(InvalidMessageError("Invalid message", PROBLEMS[1:])) == (
        "Invalid message: x: Input should be a valid integer"
    )


def test_a_problem_with_the_whole_message_names_no_field() -> None:
    assert str(InvalidMessageError("Invalid message", [{"loc": [], "msg": "too odd"}])) == "Invalid message: too odd"


# The tree.


def test_the_documented_tree_is_the_tree() -> None:
    documented = {word for line in (errors.__doc__ or "").splitlines() for word in line.split() if word.isidentifier()}
    missing = {cls.__name__ for cls in all_classes()} - documented
    assert not missing


@pytest.mark.parametrize("cls", all_classes(RequestError), ids=lambda cls: cls.__name__)
def test_a_mistake_of_the_callers_is_not_worth_sending_again(cls: type[EnvHiveError]) -> None:
    assert (cls.outcome, cls.retryable) == ("invalid", False)
    assert 400 <= cls.http_status < 500


@pytest.mark.parametrize("cls", all_classes(TransportError), ids=lambda cls: cls.__name__)
def test_what_the_way_to_the_server_did_is_nobodys_step_and_may_be_tried_again(cls: type[EnvHiveError]) -> None:
    assert cls.outcome == ("timeout" if cls is RequestTimeoutError else "infra_error")
    assert cls.retryable


@pytest.mark.parametrize("cls", [ExecutionError, EnvironmentFactoryError])
def test_a_failure_of_the_environments_is_blamed_on_it(cls: type[EnvHiveError]) -> None:
    assert cls.outcome == "env_error"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigurationError("bad"), ValueError),
        (ConnectError("refused"), ConnectionError),
        (ConnectionLostError("gone"), ConnectionError),
        (RequestTimeoutError("late"), TimeoutError),
        (InvalidMessageError("wrong"), RuntimeError),
        (ExecutionError("failed"), RuntimeError),
        (SessionCapacityError(1, 1, "full"), RuntimeError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_code_that_catches_pythons_own_error_catches_ours(error: EnvHiveError, builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=str(error)):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            error,
            id=name_of(error),
        )
        for error in [*TRAVELLERS, ConcurrencyConfigurationError("GameEnvironment", 8), ConnectError("refused")]
    ],
)
def test_an_error_passes_from_one_process_to_another(error: EnvHiveError) -> None:
    """A trainer's workers (multiprocessing, Ray) hand exceptions over pickled."""
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert vars(received) == vars(error)
    assert str(received) == str(error)
