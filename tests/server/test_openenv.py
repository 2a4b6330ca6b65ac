"""OpenEnv's server class, for those who derive from it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from envhive import HTTPEnvServer, create_app
from envhive.server.auth import Tokens
from envhive.server.config import forced
from envhive.types import ServerMode, State
from tests.support.envs import Move, Seen, counting


def test_a_derived_class_finds_what_it_reaches_for() -> None:
    env = counting()

    class Derived(HTTPEnvServer):
        def __init__(self) -> None:
            super().__init__(env=env, action_cls=Move, observation_cls=Seen, env_name="counting")
            self.sample = self._env_factory()

    server = Derived()
    assert isinstance(server.sample, env)
    assert (server.action_cls, server.observation_cls, server.reset_observation_cls) == (Move, Seen, Seen)
    assert issubclass(server.state_cls, State)
    assert (server.env_name, server._max_concurrent_envs) == ("counting", server.max_concurrent_envs)


@pytest.mark.parametrize(("value", "lines"), [("true", 1), ("1", 1), ("YES", 1), ("false", 0), ("0", 0), ("", 0)])
def test_a_page_that_was_asked_for_and_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str, lines: int
) -> None:
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", value)
    with TestClient(create_app(counting(), Move, Seen)) as client:
        assert client.get("/web").status_code == 404
    assert caplog.text.count("no page at /web: step the environment with `envhive play`") == lines


def test_an_apps_version_is_that_of_openenvs_apps_or_its_own() -> None:
    app = FastAPI(version="7.1")
    HTTPEnvServer(counting(), Move, Seen).register_routes(app)
    for each, version in ((app, "7.1"), (create_app(counting(), Move, Seen), "1.0.0")):
        assert TestClient(each).get("/openapi.json").json()["info"]["version"] == version


@pytest.mark.parametrize("first", [True, False])
def test_a_derived_class_may_set_what_openenvs_constructor_sets(first: bool) -> None:
    class Derived(HTTPEnvServer):
        def __init__(self) -> None:
            if first:
                self.action_cls, self.observation_cls = Move, Seen
            super().__init__(env=counting(), action_cls=Move, observation_cls=Seen)
            if not first:
                self.action_cls, self.env_name = State, "mine"

    server = Derived()
    assert (server.action_cls, server.env_name == "mine") == ((Move, False) if first else (State, True))
    assert server.observation_cls is Seen


def test_the_server_of_an_app_has_openenvs_names_and_is_found_as_openenvs_is() -> None:
    app = create_app(counting(), Move, Seen, max_concurrent_envs=3)
    (endpoint,) = (route.endpoint for route in app.routes if getattr(route, "path", "") == "/ws")
    server = inspect.getclosurevars(endpoint).nonlocals["self"]
    assert (server.action_cls, server._max_concurrent_envs, server._sessions) == (Move, 3, {})
    assert server._concurrency_config.max_concurrent_envs == server.concurrency_config.max_concurrent_envs == 3
    with TestClient(app) as client, client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset"})
        ws.receive_json()
        ((name, info),) = server._session_info.items()
        assert (name, info.step_count) == (*server._sessions, 0)


def test_a_lifespan_may_register_the_routes_of_an_app_that_runs_already() -> None:
    env = counting()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        HTTPEnvServer(env, Move, Seen).register_routes(app)
        yield

    with forced(tokens=Tokens.parse("test", ["ada:a-long-secret"])), TestClient(FastAPI(lifespan=lifespan)) as client:
        assert client.post("/reset").status_code == 401
        ada = {"Authorization": "Bearer a-long-secret"}
        failed = client.post("/step", json={"action": {"do": "raise"}}, headers=ada)
        assert (failed.status_code, failed.json()["code"]) == (500, "EXECUTION_ERROR")
        unknown = client.get("/state", headers={**ada, "X-Session-Id": "nobody"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "SESSION_NOT_FOUND")
        with client.websocket_connect("/ws?token=a-long-secret") as ws:
            ws.send_json({"type": "reset"})
            assert ws.receive_json()["type"] == "observation"


def test_a_mode_that_routes_are_registered_with_is_one_of_the_http_endpoints() -> None:
    app = FastAPI()
    HTTPEnvServer(counting(), Move, Seen).register_routes(app, mode=ServerMode.PRODUCTION)

    @app.post("/reset")
    async def own() -> str:
        return "mine"

    with TestClient(app) as client, client.websocket_connect("/ws") as ws:
        assert client.post("/reset").json() == "mine"
        assert client.post("/step", json={"action": {}}).status_code == 404
        ws.send_json({"type": "reset"})
        assert ws.receive_json()["type"] == "observation"


def test_its_sessions_are_there_with_their_environments_and_can_be_ended() -> None:
    env, app = counting(), FastAPI()
    server = HTTPEnvServer(env, Move, Seen)
    server.register_routes(app)

    @app.post("/end")
    async def end() -> int:
        ended = [await server._destroy_session(name) for name in [*server._sessions, "unknown"]]
        return len(ended) - 1

    with TestClient(app) as client, client.websocket_connect("/ws") as ws:
        client.post("/reset")  # leaves a session on offer, which OpenEnv's does not
        ws.send_json({"type": "reset"})
        ws.receive_json()
        assert [type(each) for each in server._sessions.values()] == [env]
        assert client.post("/end").json() == 1
        assert server._sessions == {}
        assert ws.receive()["type"] == "websocket.close"
    assert env.journal.count("close") == env.journal.count("make")


def test_what_is_overridden_for_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "envhive.server"):

        class Derived(HTTPEnvServer):
            async def _destroy_session(self, session_id: str) -> None:
                await asyncio.sleep(0)

    assert [record.getMessage() for record in caplog.records] == [
        "Derived._destroy_session replaces a part of OpenEnv's server: EnvHive never calls it"
    ]
