"""What a server knows about the environment it serves before it has made one."""

from __future__ import annotations

import functools
import inspect
import threading
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from envhive.environment import Environment
from envhive.errors import ConcurrencyConfigurationError, EnvironmentFactoryError
from envhive.server.config import DEFAULT_MAX_SESSIONS
from envhive.types import Action, Observation, State

Factory = Callable[[], Any]

_BASES: Final = {(Environment.__module__, Environment.__name__), ("openenv.core.env_server.interfaces", "Environment")}
"""Base classes whose async methods are only the default that calls the plain ones."""


class Place(Enum):
    """Where an environment's plain methods run."""

    LOOP = "on the event loop"
    THREAD = "on a thread of the session's own"
    SHARED_THREAD = "on one thread for all sessions"


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """How `reset` or `step` of a class is called."""

    name: str
    is_async: bool
    accepts: frozenset[str] | None
    """The keywords it takes; None: any."""

    def select(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """Only those keywords that the method takes."""
        if self.accepts is None or not keywords:
            return keywords
        return {name: value for name, value in keywords.items() if name in self.accepts}


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """How instances of one environment class are called, decided once per class."""

    reset: MethodPlan
    step: MethodPlan
    place: Place
    async_close: bool


@functools.cache
def plan_for(cls: type) -> ClassPlan:
    """Read off a class where its code runs and what its methods take."""
    reset, step = _method_plan(cls, "reset", skip=()), _method_plan(cls, "step", skip=("action",))
    if getattr(cls, "BLOCKING", True) is False or (reset.is_async and step.is_async):
        place = Place.LOOP
    elif getattr(cls, "REQUIRES_SINGLE_THREAD_EXECUTOR", False):
        place = Place.SHARED_THREAD
    else:
        place = Place.THREAD
    return ClassPlan(reset, step, place, inspect.iscoroutinefunction(getattr(cls, "close", None)))


def _method_plan(cls: type, name: str, skip: tuple[str, ...]) -> MethodPlan:
    """Of `step` and `step_async`, the one that the most derived class defines; the async form in a tie."""
    plain_depth, async_depth = _depth(cls, name), _depth(cls, f"{name}_async")
    chosen = f"{name}_async" if async_depth is not None and (plain_depth is None or async_depth <= plain_depth) else name
    method = getattr(cls, chosen, None)
    if method is None:
        return MethodPlan(chosen, False, None)
    return MethodPlan(chosen, inspect.iscoroutinefunction(method), _keywords(method, skip))


def _depth(cls: type, name: str) -> int | None:
    """How far up the inheritance chain `name` is defined; None if only a base class has a default for it."""
    for depth, base in enumerate(cls.__mro__):
        if name in base.__dict__:
            return None if (base.__module__, base.__name__) in _BASES else depth
    return None


def _keywords(method: Any, skip: tuple[str, ...]) -> frozenset[str] | None:
    try:
        parameters = list(inspect.signature(method).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters if p.kind in named and p.name not in skip)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The environment a server serves: how to make one, and what goes in and out of it."""

    factory: Factory
    action_cls: type[Any]
    observation_cls: type[Any]
    state_cls: type[Any]
    reset_observation_cls: type[Any] | None
    env_name: str

    @classmethod
    def of(
        cls,
        env: Factory,
        action_cls: type[Any],
        observation_cls: type[Any],
        env_name: str | None = None,
        state_cls: type[Any] | None = None,
        reset_observation_cls: type[Any] | None = None,
    ) -> Blueprint:
        if not callable(env) or _is_instance_of_environment(env):
            raise TypeError(
                f"env must be an environment class or a function that makes one, not an instance of "
                f"{type(env).__name__}. Pass {type(env).__name__}, not {type(env).__name__}()."
            )
        if state_cls is None or state_cls is State:
            state_cls = declared_types(underlying_class(env)).get("state") or state_cls or State
        return cls(env, action_cls, observation_cls, state_cls, reset_observation_cls, env_name or factory_name(env))

    @property
    def factory_name(self) -> str:
        return factory_name(self.factory)


def _is_instance_of_environment(env: Any) -> bool:
    return not inspect.isclass(env) and callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))


def factory_name(factory: Factory) -> str:
    if isinstance(factory, functools.partial):
        return factory_name(factory.func)
    return getattr(factory, "__name__", type(factory).__name__)


def underlying_class(factory: Factory) -> type | None:
    """The environment class behind a factory, where that can be told without calling it."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    if inspect.isclass(factory):
        return factory
    try:
        returned = typing.get_type_hints(factory).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    if not inspect.isclass(returned) or returned.__module__ == "builtins" or inspect.isabstract(returned):
        return None
    return returned


def declared_types(cls: type | None) -> dict[str, type]:
    """The action, observation and state classes that an environment class declares.

    From its type parameters, `Environment[MyAction, MyObservation, MyState]`, else from the annotations
    of `step` and `state`.
    """
    found: dict[str, type] = {}
    if cls is None:
        return found
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            arguments = [argument for argument in typing.get_args(generic) if inspect.isclass(argument)]
            if len(arguments) == 3 and callable(getattr(typing.get_origin(generic), "step", None)):
                for role, argument in zip(("action", "observation", "state"), arguments, strict=True):
                    found.setdefault(role, argument)
    step = getattr(cls, plan_for(cls).step.name, None)
    hints = _hints(step)
    parameters = [name for name in hints if name != "return"]
    if parameters:
        _declare(found, "action", hints.get("action", hints[parameters[0]]))
    _declare(found, "observation", hints.get("return"))
    state = inspect.getattr_static(cls, "state", None)
    _declare(found, "state", _hints(state.fget if isinstance(state, property) else state).get("return"))
    return found


def _declare(found: dict[str, type], role: str, candidate: Any) -> None:
    if inspect.isclass(candidate) and hasattr(candidate, "model_json_schema"):
        found.setdefault(role, candidate)


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function) if function is not None else {}
    except (NameError, TypeError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class Limit:
    """How many sessions a server takes, and why."""

    sessions: int
    reason: str
    env_cls: type | None
    """The environment's class, where it became known on the way."""


def session_limit(blueprint: Blueprint, wanted: int | None) -> Limit:
    """The limit to serve with; raises when more is wanted than the environment allows."""
    if wanted == 1:
        return Limit(1, "as configured", underlying_class(blueprint.factory))
    cls = underlying_class(blueprint.factory) or _class_by_trial(blueprint)
    concurrent = getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False)
    if wanted is not None:
        if not concurrent:
            raise ConcurrencyConfigurationError(cls.__name__, wanted)
        return Limit(wanted, "as configured", cls)
    if concurrent:
        return Limit(DEFAULT_MAX_SESSIONS, f"the default, as {cls.__name__} supports concurrent sessions", cls)
    return Limit(1, f"as {cls.__name__} does not set SUPPORTS_CONCURRENT_SESSIONS = True", cls)


def _class_by_trial(blueprint: Blueprint) -> type:
    """Learn a factory's class by calling it, on a thread of its own as a session would, and leave nothing behind.

    It is called twice: a factory that hands out one shared instance must not find it closed.
    """
    made: list[Any] = []
    failure: list[BaseException] = []

    def trial() -> None:
        try:
            made.append(blueprint.factory())
            made.append(blueprint.factory())
        except BaseException as error:  # the author's code: anything may come, and the start must say so
            failure.append(error)
        for instance in made if len({id(instance) for instance in made}) == len(made) else ():
            close = getattr(instance, "close", None)
            if callable(close) and not inspect.iscoroutinefunction(close):
                close()

    thread = threading.Thread(target=trial, name="envhive-trial")
    thread.start()
    thread.join()
    if failure:
        raise EnvironmentFactoryError(
            blueprint.factory_name,
            f"Environment factory '{blueprint.factory_name}' failed when tried at start: "
            f"{type(failure[0]).__name__}: {failure[0]}",
        ) from failure[0]
    return type(made[0])


def infer_models(cls: type) -> tuple[type[Any], type[Any]]:
    """The action and observation classes of an environment class, `Action` and `Observation` if undeclared."""
    types = declared_types(cls)
    return types.get("action", Action), types.get("observation", Observation)
