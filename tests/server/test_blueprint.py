"""What a server knows about its environment before it has made one."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import pytest

from envhive import Action, Environment, Observation, State, create_app
from envhive.errors import ConcurrencyConfigurationError, EnvironmentFactoryError
from envhive.server.blueprint import Blueprint, session_limit
from envhive.server.config import DEFAULT_MAX_SESSIONS
from tests.support.envs import Counting, Move, Seen, counting


class Ground(State):
    height: int = 0


class Grounded(Environment[Action, Observation, Ground]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> Ground:
        return Ground()


def blueprint(env: Any, **options: Any) -> Blueprint:
    return Blueprint.of(env, Move, Seen, **options)


def lone(**attributes: Any) -> type[Counting]:
    """An environment that does not claim to support concurrent sessions."""
    return counting(SUPPORTS_CONCURRENT_SESSIONS=False, **attributes)


# What may be served.


@pytest.mark.parametrize("make", [counting(), functools.partial(counting()), lambda: counting()()])
def test_a_class_a_partial_and_a_function_may_be_served(make: Any) -> None:
    assert blueprint(make).factory is make


def test_an_instance_is_refused_and_the_class_is_asked_for() -> None:
    with pytest.raises(TypeError, match=r"Pass CountingEnvironment, not CountingEnvironment\(\)\."):
        blueprint(counting()())


def test_an_instance_that_can_be_called_is_refused_too() -> None:
    callable_env = counting(__call__=lambda self: self)()
    with pytest.raises(TypeError, match="not an instance of CountingEnvironment"):
        blueprint(callable_env)


def test_create_app_refuses_an_instance() -> None:
    instance: Any = counting()()
    with pytest.raises(TypeError, match="Pass CountingEnvironment"):
        create_app(instance, Move, Seen)


@pytest.mark.parametrize("thing", ["echo", None, 7])
def test_what_is_no_factory_at_all_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="must be an environment class or a function that makes one"):
        blueprint(thing)


def test_a_maker_of_environments_that_is_an_object_may_be_served() -> None:
    class Maker:
        def __call__(self) -> Counting:
            return counting()()

    assert blueprint(Maker()).env_name == "Maker"


# What it is called and what goes in and out.


def test_an_environment_is_called_by_its_name_or_else_by_its_factorys() -> None:
    assert blueprint(Grounded, env_name="ground").env_name == "ground"
    assert blueprint(Grounded).env_name == "Grounded"
    assert blueprint(functools.partial(Grounded)).factory_name == "Grounded"


@pytest.mark.parametrize("given", [None, State])
def test_the_state_class_is_read_off_the_environment(given: type[State] | None) -> None:
    assert blueprint(Grounded, state_cls=given).state_cls is Ground
    assert blueprint(functools.partial(Grounded), state_cls=given).state_cls is Ground


def test_a_state_class_that_is_given_wins() -> None:
    class Other(State):
        pass

    assert blueprint(Grounded, state_cls=Other).state_cls is Other


def test_the_state_class_is_the_base_one_where_nothing_is_known() -> None:
    assert blueprint(lambda: Grounded()).state_cls is State


# How many sessions.


def test_a_class_that_supports_it_gets_a_thousand_sessions() -> None:
    limit = session_limit(blueprint(counting()), None)
    assert limit.sessions == DEFAULT_MAX_SESSIONS == 1000
    assert limit.reason == "the default, as CountingEnvironment supports concurrent sessions"


def test_a_class_that_does_not_gets_one_session_and_the_reason() -> None:
    limit = session_limit(blueprint(lone()), None)
    assert limit.sessions == 1
    assert limit.reason == "as CountingEnvironment does not set SUPPORTS_CONCURRENT_SESSIONS = True"


@pytest.mark.parametrize("wanted", [2, 5000])
def test_what_is_wanted_is_the_limit(wanted: int) -> None:
    limit = session_limit(blueprint(counting()), wanted)
    assert (limit.sessions, limit.reason) == (wanted, "as configured")


def test_one_session_needs_no_support() -> None:
    limit = session_limit(blueprint(lone()), 1)
    assert (limit.sessions, limit.reason) == (1, "as configured")


def test_one_session_of_a_class_that_supports_more_tells_how_to_get_them() -> None:
    limit = session_limit(blueprint(counting()), 1)
    assert limit.sessions == 1
    assert limit.reason == "as configured (though CountingEnvironment supports more: see --max-sessions)"


@pytest.mark.parametrize("wanted", [1, 64])
def test_a_limit_from_the_command_line_tells_which_one_it_replaced(wanted: int) -> None:
    limit = session_limit(blueprint(counting()), wanted, overruled=8)
    assert (limit.sessions, limit.reason) == (wanted, "as --max-sessions has it, not 8 as the app's code has")


def test_more_than_one_session_needs_support() -> None:
    with pytest.raises(ConcurrencyConfigurationError) as caught:
        session_limit(blueprint(lone()), 8)
    assert caught.value.environment_name == "CountingEnvironment"
    assert caught.value.max_concurrent_envs == 8


def test_a_class_that_derives_from_nothing_gets_one_session() -> None:
    class Duck:
        def reset(self) -> dict[str, int]:
            return {}

        def step(self, action: Move) -> dict[str, int]:
            return {}

    assert session_limit(blueprint(Duck), None).sessions == 1
    with pytest.raises(ConcurrencyConfigurationError, match="Duck cannot serve 2 sessions"):
        session_limit(blueprint(Duck), 2)


def test_too_much_is_found_out_when_the_app_is_made() -> None:
    with pytest.raises(ConcurrencyConfigurationError, match="CountingEnvironment cannot serve 4 sessions"):
        create_app(lone(), Move, Seen, max_concurrent_envs=4)


# Trying factories.


@pytest.mark.parametrize("wanted", [None, 1, 4])
def test_a_class_is_never_tried(wanted: int | None) -> None:
    cls = counting()
    for env in (cls, functools.partial(cls)):
        assert session_limit(blueprint(env), wanted).env_cls is cls
    assert cls.journal.entries == []


def test_an_annotated_function_is_never_tried() -> None:
    def make() -> Grounded:
        raise AssertionError("it was called")

    assert session_limit(blueprint(make), None).env_cls is Grounded


def test_one_session_needs_no_trial() -> None:
    cls = lone()
    assert session_limit(blueprint(lambda: cls()), 1).env_cls is None
    assert cls.journal.entries == []


@pytest.mark.parametrize("wanted", [None, 4])
def test_a_function_is_tried_and_nothing_is_left_open(wanted: int | None) -> None:
    cls = counting()
    limit = session_limit(blueprint(lambda: cls()), wanted)
    assert (limit.sessions, limit.env_cls) == (wanted or 1000, cls)
    assert cls.journal.count("make") >= 1
    assert cls.journal.count("close") == cls.journal.count("make")


def test_a_function_that_makes_a_lone_environment_is_found_out_and_nothing_is_left_open() -> None:
    cls = lone()
    with pytest.raises(ConcurrencyConfigurationError, match="CountingEnvironment cannot serve 4 sessions"):
        session_limit(blueprint(lambda: cls()), 4)
    assert cls.journal.count("close") == cls.journal.count("make") >= 1


def test_a_trial_is_made_and_closed_on_one_thread_that_is_not_the_callers() -> None:
    cls = counting()
    session_limit(blueprint(lambda: cls()), None)
    assert cls.journal.events() == ["make", "close"]
    (thread,) = cls.journal.threads()
    assert thread != threading.get_ident()


def test_one_shared_instance_is_not_closed() -> None:
    cls = counting()
    shared = cls()
    limit = session_limit(blueprint(lambda: shared), None)
    assert limit.env_cls is cls
    assert cls.journal.events() == ["make"]


def test_a_class_without_close_may_be_tried() -> None:
    class Duck:
        SUPPORTS_CONCURRENT_SESSIONS = True

    assert session_limit(blueprint(lambda: Duck()), 4).env_cls is Duck


def test_a_factory_that_raises_is_told_at_start() -> None:
    def make_game():  # type: ignore[no-untyped-def]
        raise FileNotFoundError("there is no map.txt")

    with pytest.raises(EnvironmentFactoryError) as caught:
        session_limit(blueprint(make_game), None)
    assert caught.value.factory_name == "make_game"
    assert "'make_game'" in str(caught.value)
    assert "FileNotFoundError: there is no map.txt" in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_factory_that_exits_is_told_at_start() -> None:
    with pytest.raises(EnvironmentFactoryError, match="SystemExit: 3"):
        session_limit(blueprint(lambda: sys.exit(3)), None)


def test_a_factory_that_works_only_once_is_tried_and_its_instance_closed() -> None:
    cls = counting()
    turns = iter([cls])

    assert session_limit(blueprint(lambda: next(turns)()), None).sessions == 1000
    assert cls.journal.events() == ["make", "close"]


def test_a_close_that_fails_leaves_no_other_instance_open() -> None:
    def close(self: Counting) -> None:
        Counting.close(self)
        raise OSError("the disk is full")

    cls = counting(close=close)
    session_limit(blueprint(lambda: cls()), None)
    assert cls.journal.count("close") == cls.journal.count("make")


def test_an_environment_with_an_async_close_is_not_left_open() -> None:
    async def close(self: Counting) -> None:
        Counting.close(self)

    cls = counting(close=close)
    session_limit(blueprint(lambda: cls()), None)
    assert cls.journal.count("close") == cls.journal.count("make")


def test_a_function_annotated_with_any_is_tried() -> None:
    cls = counting()

    def make() -> Any:
        return cls()

    assert session_limit(blueprint(make), 4).env_cls is cls


def test_an_environment_that_allows_only_one_instance_can_be_served_to_one_session() -> None:
    """It holds a port, a device, a lock file: what SUPPORTS_CONCURRENT_SESSIONS = False is for."""
    device = threading.Lock()

    class Exclusive(Grounded):
        def __init__(self) -> None:
            super().__init__()
            if not device.acquire(blocking=False):
                raise RuntimeError("the device is in use")

        def close(self) -> None:
            device.release()

    assert session_limit(blueprint(lambda: Exclusive()), None).sessions == 1
