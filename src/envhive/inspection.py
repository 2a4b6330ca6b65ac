"""Reading off a class, without making an instance, how it is to be called and what it takes."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from envhive.environment import Environment
from envhive.types import Action, Observation

Factory = Callable[[], Any]

_TOOLS_BASE: Final = ("envhive.mcp_environment", "MCPEnvironment")
_BASES: Final = {
    (Environment.__module__, Environment.__name__),
    _TOOLS_BASE,
    ("openenv.core.env_server.interfaces", "Environment"),
}
"""Base classes whose async methods are only the default, or are there for subclasses to call."""


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
    names: frozenset[str] = frozenset()
    """The parameters it has by name."""

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


_plans: dict[type, ClassPlan] = {}


def plan_for(cls: type[Any]) -> ClassPlan:
    """Where a class's code runs and what its methods take."""
    if cls not in _plans:
        _plans[cls] = _make_plan(cls)
    return _plans[cls]


def _make_plan(cls: type[Any]) -> ClassPlan:
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
    chosen = (
        f"{name}_async" if async_depth is not None and (plain_depth is None or async_depth <= plain_depth) else name
    )
    method = getattr(cls, chosen, None)
    if method is None:
        return MethodPlan(chosen, False, None)
    accepts, names = _keywords(method, skip)
    return MethodPlan(chosen, inspect.iscoroutinefunction(inspect.unwrap(method)), accepts, names)


def _depth(cls: type, name: str) -> int | None:
    """How far up the inheritance chain `name` is defined; None if only a base class has a default for it."""
    for depth, base in enumerate(cls.__mro__):
        if name in base.__dict__:
            return None if (base.__module__, base.__name__) in _BASES else depth
    return None


def _keywords(method: Any, skip: tuple[str, ...]) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The keywords that a method takes (None: any), and its parameters by name."""
    try:
        parameters = list(inspect.signature(method).parameters.values())[1:]
    except (TypeError, ValueError):
        return None, frozenset()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = frozenset(p.name for p in parameters if p.kind in named and p.name not in skip)
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else names, names


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
    if not inspect.isclass(returned) or inspect.isabstract(returned) or not callable(getattr(returned, "step", None)):
        return None
    return returned


def takes_tools(cls: type) -> bool:
    """Whether it is an `MCPEnvironment`; told without that class, which not every installation can load."""
    return any((base.__module__, base.__name__) == _TOOLS_BASE for base in cls.__mro__)


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


def infer_models(cls: type) -> tuple[type[Any], type[Any]]:
    """The action and observation classes of an environment class, `Action` and `Observation` if undeclared."""
    types = declared_types(cls)
    return types.get("action", Action), types.get("observation", Observation)
