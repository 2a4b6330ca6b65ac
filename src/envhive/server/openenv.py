"""What environments reach for in OpenEnv's server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from envhive.inspection import Factory
from envhive.server.hive import Hive
from envhive.types import ConcurrencyConfig, SessionInfo

logger: Final = logging.getLogger("envhive.server")

_NEVER_CALLED: Final = ("_create_session", "_cleanup_session_resources", "_run_in_session_executor")
"""Methods by which OpenEnv's server keeps its sessions. Here the hive does."""


class _Seen:
    """An attribute that shows what the hive has, until it is set to something else.

    Some subclasses set OpenEnv's attributes themselves, before or after its constructor does: no property lets them.
    """

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, server: Any, cls: type | None = None) -> Any:
        return self if server is None else self._read(server)


class OpenEnvNames:
    """The attributes of OpenEnv's server that subclasses of it, and apps, reach for."""

    hive: Hive

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in (*_NEVER_CALLED, "_destroy_session"):
            if name in vars(cls):
                logger.warning("%s.%s replaces a part of OpenEnv's server: EnvHive never calls it", cls.__name__, name)

    @_Seen
    def action_cls(self) -> type[Any]:
        return self.hive.blueprint.action_cls

    @_Seen
    def observation_cls(self) -> type[Any]:
        return self.hive.blueprint.observation_cls

    @_Seen
    def reset_observation_cls(self) -> type[Any]:
        return self.hive.blueprint.reset_observation_cls or self.observation_cls

    @_Seen
    def state_cls(self) -> type[Any]:
        return self.hive.blueprint.state_cls

    @_Seen
    def env_name(self) -> str:
        return self.hive.blueprint.env_name

    @_Seen
    def _env_factory(self) -> Factory:
        return self.hive.blueprint.factory

    @_Seen
    def _max_concurrent_envs(self) -> int:
        return self.hive.limit.sessions

    @_Seen
    def _concurrency_config(self) -> ConcurrencyConfig:
        return ConcurrencyConfig(
            max_concurrent_envs=self.hive.limit.sessions, session_timeout=self.hive.config.session_timeout
        )

    @_Seen
    def _session_info(self) -> dict[str, SessionInfo]:
        return {name: self.hive.sessions[name].info() for name in self._sessions}

    @_Seen
    def _sessions(self) -> dict[str, Any]:
        """The sessions of this process with their environments; None for one that is elsewhere, or not made yet.

        One that a `/reset` over HTTP has left on offer is none of OpenEnv's.
        """
        sessions = self.hive.sessions.items()
        return {name: session.environment for name, session in sessions if not self.hive.http.is_on_offer(name)}

    async def _destroy_session(self, session_id: str) -> None:
        """End a session, and wait until its environment is closed."""
        session = self.hive.sessions.get(session_id)
        if session is not None:
            session.end()
            await session.wait_closed()
