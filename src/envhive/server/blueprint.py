"""What a server knows about the environment it serves before it has made one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from dataclasses import dataclass
from typing import Any, Final

from envhive.errors import ConcurrencyConfigurationError, EnvironmentFactoryError
from envhive.inspection import Factory, declared_types, factory_name, underlying_class
from envhive.server.config import DEFAULT_MAX_SESSIONS
from envhive.types import State

logger: Final = logging.getLogger("envhive.environment")


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
        if not callable(env) and not _is_instance_of_environment(env):
            raise TypeError(f"env must be an environment class or a function that makes one, not {env!r}.")
        if _is_instance_of_environment(env):
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


@dataclass(frozen=True, slots=True)
class Limit:
    """How many sessions a server takes, and why."""

    sessions: int
    reason: str
    env_cls: type | None
    """The environment's class, where it became known on the way."""


def session_limit(blueprint: Blueprint, wanted: int | None, overruled: int | None = None) -> Limit:
    """The limit to serve with; raises when more is wanted than the environment allows."""
    reason = (
        "as configured" if overruled is None else f"as --max-sessions has it, not {overruled} as the app's code has"
    )
    if wanted == 1:
        known = underlying_class(blueprint.factory)
        if overruled is None and getattr(known, "SUPPORTS_CONCURRENT_SESSIONS", False):
            reason += f" (though {known.__name__} supports more: see --max-sessions)"  # type: ignore[union-attr]
        return Limit(1, reason, known)
    cls, is_shared = underlying_class(blueprint.factory), False
    if cls is None:
        cls, is_shared = _class_by_trial(blueprint)
    concurrent = getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False)
    if wanted is not None:
        if not concurrent:
            raise ConcurrencyConfigurationError(cls.__name__, wanted)
        return Limit(wanted, reason, cls)
    if concurrent:
        reason = f"the default, as {cls.__name__} supports concurrent sessions"
        if is_shared:
            reason += "; but the factory hands out one instance, to one session at a time (see --max-sessions)"
        return Limit(DEFAULT_MAX_SESSIONS, reason, cls)
    return Limit(1, f"as {cls.__name__} does not set SUPPORTS_CONCURRENT_SESSIONS = True", cls)


def _class_by_trial(blueprint: Blueprint) -> tuple[type, bool]:
    """Learn a factory's class, and whether it hands out one instance, by calling it.

    That is done on a thread of its own, as a session would, and leaves nothing behind.
    """
    made: list[Any] = []
    failure: list[BaseException] = []

    def trial() -> None:
        try:
            made.append(blueprint.factory())
        except BaseException as error:  # the author's code: anything may come, and the start must say so
            failure.append(error)
            return
        # A second call tells whether all sessions share one instance, which must not find itself closed. That an
        # environment cannot be made twice at once is its own affair.
        with contextlib.suppress(Exception):
            made.append(blueprint.factory())
        for instance in () if is_shared() else made:
            _close_quietly(instance)

    def is_shared() -> bool:
        return len(made) > 1 and made[0] is made[1]

    thread = threading.Thread(target=trial, name="envhive-trial")
    thread.start()
    thread.join()
    if failure:
        raise EnvironmentFactoryError(
            blueprint.factory_name,
            f"Environment factory '{blueprint.factory_name}' failed when tried at start: "
            f"{type(failure[0]).__name__}: {failure[0]}",
        ) from failure[0]
    return type(made[0]), is_shared()


def _close_quietly(instance: Any) -> None:
    close = getattr(instance, "close", None)
    try:
        if inspect.iscoroutinefunction(close):
            asyncio.run(close())
        elif callable(close):
            close()
    except Exception:  # the author's code; the server can start all the same
        logger.exception("close() of %s failed when tried at start", type(instance).__name__)
