"""`create_app`: an environment class becomes an ASGI app. Assembly only."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, WebSocket
from fastapi.routing import APIWebSocketRoute
from starlette.middleware import Middleware
from starlette.routing import websocket_session

from envhive.environment import Environment
from envhive.server.asgi_lane import serve_websocket
from envhive.server.blueprint import Blueprint
from envhive.server.config import config_for_app, mode_for_app
from envhive.server.gate import Gate
from envhive.server.hive import Hive
from envhive.server.http import register_http_routes
from envhive.server.mcp_http import McpEndpoint
from envhive.server.openenv import OpenEnvNames
from envhive.types import ConcurrencyConfig, ServerCapacityStatus, ServerMode, SessionInfo, State

logger: Final = logging.getLogger("envhive.server")


class HTTPEnvServer(OpenEnvNames):
    """One environment, served: register its routes on any FastAPI app.

    Example:
        >>> from fastapi import FastAPI
        >>> from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation
        >>> app = FastAPI()
        >>> server = HTTPEnvServer(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=4)
        >>> server.register_routes(app)
        >>> server.get_capacity_status().available_slots
        4
    """

    def __init__(
        self,
        env: Callable[[], Environment[Any, Any, Any]],
        action_cls: type[Any],
        observation_cls: type[Any],
        max_concurrent_envs: int | None = None,
        concurrency_config: ConcurrencyConfig | None = None,
        env_name: str | None = None,
        state_cls: type[Any] = State,
        *,
        reset_observation_cls: type[Any] | None = None,
        mode: ServerMode | str | None = None,
    ) -> None:
        config = config_for_app(max_concurrent_envs, concurrency_config, mode)
        blueprint = Blueprint.of(env, action_cls, observation_cls, env_name, state_cls, reset_observation_cls)
        self.hive = Hive(blueprint, config)

    def register_routes(self, app: FastAPI, mode: ServerMode | str | None = None) -> None:
        """Put `/ws` and the HTTP endpoints on an app, and the gate before all of its routes.

        In production mode reset, step and state are not offered. A mode that is given here is one of the HTTP endpoints
        (and of tools): as with OpenEnv's server, `/ws` keeps what it has.
        """
        offered = self.hive.mode
        if mode is not None:
            offered = self.hive.calls.mode = mode_for_app(mode)
            if offered is ServerMode.SIMULATION:
                self.hive.mode = offered
        endpoint = McpEndpoint(self.hive)

        async def ws(websocket: WebSocket) -> None:
            """One connection, one session, one environment."""
            await serve_websocket(websocket, self.hive)

        async def mcp_ws(websocket: WebSocket) -> None:
            """JSON-RPC calls of the Model Context Protocol, one a frame."""
            await endpoint.websocket(websocket)

        _add_websocket_route(app, "/ws", ws)  # before the others: the route that is looked for most often
        _add_websocket_route(app, "/mcp", mcp_ws)
        register_http_routes(app, self.hive, offered, endpoint)
        if not hasattr(app.state, "envhive"):  # of several environments on one app, the first one's routes are found
            app.state.envhive = self
        if app.middleware_stack is None:
            app.add_middleware(Gate, config=self.hive.config)
        else:  # the app runs already, as its lifespan registers routes: it is put together anew
            app.user_middleware.insert(0, Middleware(Gate, config=self.hive.config))
            app.middleware_stack = app.build_middleware_stack()
        app.router.lifespan_context = _with_hive(app.router.lifespan_context, self.hive)

    def get_capacity_status(self) -> ServerCapacityStatus:
        """How full the server is."""
        return self.hive.capacity()

    def get_session_info(self, session_id: str) -> SessionInfo | None:
        """One session, or None if there is none of that id."""
        session = self.hive.sessions.get(session_id)
        return None if session is None else session.info()

    @property
    def active_sessions(self) -> int:
        return self.hive.active_sessions

    @property
    def max_concurrent_envs(self) -> int:
        return self.hive.limit.sessions

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether the environment says that it may run many times at once."""
        return bool(getattr(self.hive.limit.env_cls, "SUPPORTS_CONCURRENT_SESSIONS", False))

    @property
    def concurrency_config(self) -> ConcurrencyConfig:
        found: ConcurrencyConfig = self._concurrency_config
        return found


def _add_websocket_route(app: FastAPI, path: str, endpoint: Callable[[WebSocket], Awaitable[None]]) -> None:
    """FastAPI's route, which heeds dependencies, also those of an app that includes this one's.

    Where there are none, it need not look for any: that costs 30 µs a connection.
    """
    route = APIWebSocketRoute(path, endpoint, dependencies=app.router.dependencies, dependency_overrides_provider=app)
    if not route.dependencies:
        route.app = websocket_session(endpoint)
    app.router.routes.append(route)


def _with_hive(inner: Any, hive: Hive) -> Any:
    """A lifespan that also starts and ends the hive. Where none runs (a mounted app), the hive starts by itself."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with inner(app) as state:
            hive.start()
            try:
                yield state
            finally:
                await hive.shutdown()

    return lifespan


def create_fastapi_app(
    env: Callable[[], Environment[Any, Any, Any]],
    action_cls: type[Any],
    observation_cls: type[Any],
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    env_name: str | None = None,
    state_cls: type[Any] = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type[Any] | None = None,
) -> FastAPI:
    """An app without the page. See `create_app`."""
    server = HTTPEnvServer(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        reset_observation_cls=reset_observation_cls,
        mode=mode,
    )
    app = FastAPI(
        title=f"{server.hive.blueprint.env_name} on EnvHive",
        version="1.0.0",  # as OpenEnv's apps: `openenv validate` takes it for that of the protocol
        description="A reinforcement-learning environment. Episodes run over the WebSocket at `/ws`.",
    )
    server.register_routes(app)
    return app


def create_app(
    env: Callable[[], Environment[Any, Any, Any]],
    action_cls: type[Any],
    observation_cls: type[Any],
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Callable[..., Any] | None = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    state_cls: type[Any] = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type[Any] | None = None,
) -> FastAPI:
    """An ASGI app that serves an environment, for any ASGI server.

    Args:
        env: The environment class, or a function that makes an instance; called once per session.
        action_cls: What `step` takes. Actions are validated against it.
        observation_cls: What `reset` and `step` return.
        env_name: The environment's public name.
        max_concurrent_envs: Most sessions at once. Else `MAX_CONCURRENT_ENVS`, else 1,000 if the class
            sets `SUPPORTS_CONCURRENT_SESSIONS`, else 1.
        concurrency_config: The same and more, as an object; not together with `max_concurrent_envs`.
        gradio_builder, custom_tab_name, custom_tab_primary, show_default_tab, title_override: For the page.
        state_cls: What `state` returns, for `/schema`; read off the class where it says so.
        mode: `simulation`, or `production`, which offers neither reset nor step nor state.
        reset_observation_cls: What `reset` returns, where that differs, for `/schema`.

    Example:
        >>> from envhive import create_app
        >>> from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation
        >>> app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo")
        >>> app.title
        'echo on EnvHive'
    """
    app = create_fastapi_app(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        mode=mode,
        reset_observation_cls=reset_observation_cls,
    )
    hive = app.state.envhive.hive
    if hive.config.wants_page and (hive.crew is None or hive.crew.index == 0):  # one worker says so for all
        logger.warning(
            "ENABLE_WEB_INTERFACE is set, but EnvHive serves no page at /web: step the environment with `envhive play`"
        )
    return app
