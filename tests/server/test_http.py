"""The HTTP endpoints, through Starlette's test client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.testclient import TestClient
from pydantic import ConfigDict, Field

from envhive import HTTPEnvServer, Observation, create_app
from tests.support.envs import Counting, Move, Seen, async_counting, counting

JSON: Final = {"Content-Type": "application/json"}


@pytest.fixture
def env() -> type[Counting]:
    return counting()


@pytest.fixture
def http(env: type[Counting]) -> Iterator[TestClient]:
    with TestClient(create_app(env, Move, Seen, env_name="counting")) as client:
        yield client


def test_every_reset_without_a_session_gets_a_fresh_environment(http: TestClient, env: type[Counting]) -> None:
    reply = http.post("/reset", json={"seed": 4, "level": "two"})
    assert reply.json() == {
        "observation": {"metadata": {}, "total": 4, "thread": 0, "got": {"level": "two"}},
        "reward": None,
        "done": False,
    }
    assert http.post("/reset").status_code == 200
    assert (env.journal.count("make"), http.get("/health").json()["active_sessions"]) == (2, 0)


def test_one_request_after_the_other_fits_into_one_place(env: type[Counting]) -> None:
    with TestClient(create_app(env, Move, Seen, max_concurrent_envs=1)) as client:
        assert [client.post("/reset").status_code for _ in range(20)] == [200] * 20


def test_step_takes_an_action_on_a_fresh_environment(http: TestClient) -> None:
    reply = http.post("/step", json={"action": {"do": "metadata"}, "timeout_s": 5, "unknown": 1})
    assert reply.json()["metadata"] == {"note": "hello"}


def test_state_of_a_fresh_environment(http: TestClient) -> None:
    assert http.get("/state").json() == {}


def test_a_bad_action_is_422_with_pydantics_list_and_costs_no_environment(
    http: TestClient, env: type[Counting]
) -> None:
    reply = http.post("/step", json={"action": {"by": "many"}})
    assert reply.status_code == 422
    assert [(error["type"], error["loc"]) for error in reply.json()["detail"]] == [("int_parsing", ["by"])]
    assert http.post("/step", json={"action": {"by": 13}}).status_code == 422
    unfit = (b"{}", b"no JSON", b'{"action": NaN}')
    for path, body in (*(("/step", each) for each in unfit), ("/reset", b'{"seed": -1}'), ("/reset", b'{"seed": NaN}')):
        reply = http.post(path, content=body, headers=JSON)
        told = reply.json()
        assert (reply.status_code, told["code"], told["outcome"]) == (422, "VALIDATION_ERROR", "invalid")
        assert told["detail"][0]["loc"][0] == "body"
    for number in (b"NaN", b"Infinity", b"1e999"):
        reply = http.post("/step", content=b'{"action": {"by": %b}}' % number, headers=JSON)
        assert (reply.status_code, reply.json()["detail"][0]["loc"]) == (422, ["by"])
    reply = http.post("/step", content=b'{"action": "\\ud800"}', headers=JSON)  # which cannot be shown again
    assert (reply.status_code, reply.json()["code"]) == (422, "VALIDATION_ERROR")
    assert env.journal.count("make") == 0


def test_an_apps_own_answer_to_unreadable_requests_stays(env: type[Counting]) -> None:
    app = FastAPI()

    @app.exception_handler(RequestValidationError)
    async def mine(request: Request, error: RequestValidationError) -> PlainTextResponse:
        return PlainTextResponse("what?", 400)

    HTTPEnvServer(env, Move, Seen).register_routes(app)
    with TestClient(app) as http:
        reply = http.post("/step", content=b"no JSON")
    assert (reply.status_code, reply.text) == (400, "what?")


def test_a_step_that_raises_is_500_with_its_message_and_no_traceback(http: TestClient) -> None:
    reply = http.post("/step", json={"action": {"do": "raise"}})
    told = {"code": "EXECUTION_ERROR", "outcome": "env_error", "retryable": False}
    assert (reply.status_code, reply.json()) == (500, {"detail": "the floor gave way", **told})


def test_the_environment_runs_on_a_thread_of_its_own_for_http_too(http: TestClient, env: type[Counting]) -> None:
    http.post("/reset")
    assert len(env.journal.threads()) == 1


def test_http_calls_count_in_the_capacity(env: type[Counting]) -> None:
    with TestClient(create_app(env, Move, Seen, max_concurrent_envs=1)) as client:
        with client.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset"})
            ws.receive_json()
            reply = client.post("/reset")
            assert reply.status_code == 503
            assert reply.json()["code"] == "CAPACITY_REACHED"
            assert (reply.json()["active_sessions"], reply.json()["max_sessions"]) == (1, 1)
        # The place is free when the environment is closed, which is soon.
        assert any(client.post("/reset").status_code == 200 for _ in range(500))


def test_a_server_tells_of_its_capacity_and_of_each_session(env: type[Counting]) -> None:
    app = FastAPI()
    server = HTTPEnvServer(env, Move, Seen, max_concurrent_envs=3)
    server.register_routes(app, mode="simulation")
    with TestClient(app) as client, client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset"})
        ws.receive_json()
        ws.send_json({"type": "step", "data": {"by": 2}})
        ws.receive_json()
        status = server.get_capacity_status()
        assert (status.active_sessions, status.available_slots, status.is_at_capacity) == (1, 2, False)
        assert (server.active_sessions, server.max_concurrent_envs) == (1, 3)
        (listed,) = client.get("/sessions").json()
        info = server.get_session_info(listed["session_id"])
        assert info is not None
        assert (info.step_count, info.environment_type) == (1, "CountingEnvironment")
        assert info.created_at <= info.last_activity_at
        assert server.get_session_info("nobody") is None


def test_health_metadata_and_schema(http: TestClient) -> None:
    health = http.get("/health").json()
    assert (health["status"], health["active_sessions"], health["max_sessions"]) == ("healthy", 0, 1000)
    assert http.get("/metadata").json()["name"] == "CountingEnvironment"
    schema = http.get("/schema").json()
    assert schema.keys() == {"action", "observation", "state", "reset_observation"}
    assert "by" in schema["action"]["properties"]
    assert "total" in schema["observation"]["properties"]
    assert "step_count" in schema["state"]["properties"]


def test_a_reset_observation_is_in_the_schema_declared_or_not(env: type[Counting]) -> None:
    class First(Observation):
        rules: str = ""

    with TestClient(create_app(env, Move, Seen, reset_observation_cls=First)) as client:
        assert "rules" in client.get("/schema").json()["reset_observation"]["properties"]
    with TestClient(create_app(env, Move, Seen)) as client:
        schema = client.get("/schema").json()
        assert schema["reset_observation"] == schema["observation"]  # as OpenEnv has it, where none is declared


def test_an_unhealthy_server_answers_503() -> None:
    def make() -> Counting:
        raise RuntimeError("no disk")

    with TestClient(create_app(make, Move, Seen, max_concurrent_envs=1)) as client:
        for _ in range(3):
            reply = client.post("/reset")
            assert (reply.status_code, reply.json()["code"]) == (500, "FACTORY_ERROR")
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
        assert "failed" in health.json()["reasons"][0]


def test_production_mode_has_no_control_endpoints(env: type[Counting]) -> None:
    with TestClient(create_app(env, Move, Seen, mode="production")) as client:
        assert [client.post("/reset").status_code, client.post("/step", json={}).status_code] == [404, 404]
        assert client.get("/state").status_code == 404
        assert client.get("/health").status_code == 200


def test_documentation_is_served(http: TestClient) -> None:
    assert http.get("/docs").status_code == 200
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/reset", "/step", "/state", "/health", "/metadata", "/schema", "/mcp"} <= paths.keys()


@pytest.mark.parametrize(
    ("body", "code", "request_id"),
    [
        (b"nonsense", -32700, None),
        (b"[]", -32600, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', -32603, 1),
        (b'{"jsonrpc":"2.0","id":"a","method":"what"}', -32601, "a"),
    ],
)
def test_mcp_answers_in_json_rpc(http: TestClient, body: bytes, code: int, request_id: Any) -> None:
    reply = http.post("/mcp", content=body).json()
    assert (reply["error"]["code"], reply["id"]) == (code, request_id)


def with_tasks(base: type[Counting]) -> type[Counting]:
    class Tasks(base):  # type: ignore[misc, valid-type]
        def list_splits(self) -> list[Any]:
            return ["train", "extra", {"name": "own", "type": "test"}]

        def list_tasks(self, split: str) -> list[Any]:
            return [{"split": split, "index": 0}]

        def num_tasks(self, split: str) -> int:
            return 1

        def get_task(self, split: str, index: int) -> Any:
            return self.list_tasks(split)[index]

        async def get_task_range(self, split: str, start: int | None, stop: int | None) -> Any:
            return self.list_tasks(split)[start:stop]

    return Tasks


@pytest.mark.parametrize("base", [counting, async_counting], ids=["plain", "async"])
def test_task_sets_are_offered(base: Any) -> None:
    with TestClient(create_app(with_tasks(base()), Move, Seen, env_name="Quiz")) as client:
        assert client.get("/list_environments").json() == ["Quiz"]
        assert client.get("/quiz/splits").json() == [
            {"name": "train", "type": "train"},
            {"name": "extra", "type": "validation"},
            {"name": "own", "type": "test"},
        ]
        task = {"split": "train", "index": 0}
        assert client.post("/quiz/tasks", json={"split": "train"}).json() == {"tasks": [task], "env_name": "Quiz"}
        assert client.post("/quiz/num_tasks", json={"split": "train"}).json() == {"num_tasks": 1}
        assert client.post("/quiz/task", json=task).json() == {"task": task}
        assert client.post("/quiz/task_range", json={"split": "train"}).json() == {"tasks": [task]}
        assert client.post("/quiz/task", json={"split": "train", "index": 9}).status_code == 400
        assert client.get("/other/splits").status_code == 404


def test_an_environment_without_task_sets_says_so(http: TestClient) -> None:
    assert http.get("/counting/splits").status_code == 501


def test_the_test_client_needs_no_lifespan(env: type[Counting]) -> None:
    client = TestClient(create_app(env, Move, Seen))
    for _ in range(2):  # each connection has an event loop of its own
        with client.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset"})
            assert ws.receive_json()["type"] == "observation"


def test_an_app_that_routes_are_registered_on_says_what_it_serves(env: type[Counting]) -> None:
    app = FastAPI()
    server = HTTPEnvServer(env, Move, Seen, max_concurrent_envs=3)
    server.register_routes(app)
    assert app.state.envhive is server


def test_of_two_environments_on_one_app_the_one_that_answers_is_named(env: type[Counting]) -> None:
    app = FastAPI()
    first, second = (HTTPEnvServer(env, Move, Seen, env_name=name) for name in ("first", "second"))
    first.register_routes(app)
    second.register_routes(app)
    assert app.state.envhive is first
    with TestClient(app) as client, client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "reset"})
        ws.receive_json()
        assert (first.active_sessions, second.active_sessions) == (1, 0)


def test_a_server_says_whether_its_environment_may_run_many_times_at_once(env: type[Counting]) -> None:
    alone = type("Alone", (env,), {"SUPPORTS_CONCURRENT_SESSIONS": False})
    assert HTTPEnvServer(env, Move, Seen).is_concurrency_safe
    assert HTTPEnvServer(lambda: env(), Move, Seen).is_concurrency_safe
    assert not HTTPEnvServer(alone, Move, Seen).is_concurrency_safe


@pytest.mark.parametrize("is_async", [False, True])
def test_what_an_environment_raises_is_answered_by_the_app_where_it_knows_how(
    env: type[Counting], is_async: bool
) -> None:
    def step(self: Counting, action: Move, **kwargs: Any) -> Seen:
        known = {"http": HTTPException(418, "a teapot"), "value": UnicodeError("no words")}
        raise known.get(action.do, OSError("no disk"))

    async def step_async(self: Counting, action: Move, **kwargs: Any) -> Seen:
        return step(self, action)

    app = create_app(type("Raising", (env,), {"step": step_async if is_async else step}), Move, Seen)

    @app.exception_handler(ValueError)
    async def no_value(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"mine": str(error)}, 409)

    with TestClient(app) as client:
        answers = [client.post("/step", json={"action": {"do": do}}) for do in ("http", "value", "other")]
    assert [answer.status_code for answer in answers] == [418, 409, 500]
    assert [answers[0].json(), answers[1].json()] == [{"detail": "a teapot"}, {"mine": "no words"}]
    assert answers[2].json()["code"] == "EXECUTION_ERROR"


def test_metadata_are_there_while_every_place_is_taken(env: type[Counting]) -> None:
    with TestClient(create_app(env, Move, Seen, max_concurrent_envs=1)) as client:
        with client.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset"})
            ws.receive_json()
            assert client.post("/reset").status_code == 503
            assert client.get("/metadata").json()["name"] == "CountingEnvironment"
        assert client.get("/metadata").json()["name"] == "CountingEnvironment"


# Routes of the environment's own.


def own_route(app: FastAPI, how: str, path: str) -> None:
    """What an environment's app may add to what `create_app` returned, in the ways there are."""

    async def mine() -> str:
        return "mine"

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse("mine")(scope, receive, send)

    if how == "mount":
        app.mount(path, mounted)
    elif how == "router":
        router = APIRouter()
        router.add_api_route(path, mine, methods=["GET", "POST"])
        app.include_router(router)
    else:
        app.add_api_route(path, mine, methods=["GET", "POST"])


@pytest.mark.parametrize("how", ["decorator", "router", "mount"])
@pytest.mark.parametrize("method_and_path", ["GET /metrics", "GET /sessions", "GET /sessions/best", "POST /close"])
def test_what_openenv_does_not_have_gives_way_to_the_environments_own(
    env: type[Counting], how: str, method_and_path: str
) -> None:
    method, path = method_and_path.split()
    for root in ("", "/deep"):
        served = app = create_app(env, Move, Seen)
        own_route(app, how, path)
        if root:
            served = FastAPI()
            served.mount(root, app)
        with TestClient(served) as client:
            assert client.request(method, root + path).json() == "mine"
            assert client.post(f"{root}/reset").status_code == 200
            assert client.get(f"{root}/health").json()["status"] == "healthy"


@pytest.mark.parametrize(("how", "path"), [("decorator", "/{rest:path}"), ("decorator", "/{page}"), ("mount", "/")])
def test_what_takes_everything_is_not_meant_for_one_place(env: type[Counting], how: str, path: str) -> None:
    app = create_app(env, Move, Seen)
    own_route(app, how, path)
    with TestClient(app) as client:
        assert client.get("/anything").json() == "mine"
        assert client.get("/sessions").json() == []
        assert "envhive_sessions" in client.get("/metrics").text
        assert client.get("/sessions/unknown").json()["code"] == "SESSION_NOT_FOUND"
        assert client.post("/drain").json()["status"] == "draining"


def test_routes_may_be_taken_over_into_another_app(env: type[Counting]) -> None:
    app = FastAPI()
    app.include_router(create_app(env, Move, Seen).router, prefix="/counting")
    app.add_api_route("/sessions", lambda: "the outer app's")
    client = TestClient(app)
    assert client.get("/counting/sessions").json() == []
    assert client.get("/sessions").json() == "the outer app's"


def test_a_field_that_no_schema_can_describe_does_not_cost_the_others(env: type[Counting]) -> None:
    class Thing:
        pass

    class Odd(Observation):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        things: list[Thing] = Field(default_factory=list)
        number: int = 0

    schema = TestClient(create_app(env, Move, Odd)).get("/schema").json()
    assert schema["observation"]["properties"]["number"]["type"] == "integer"
    assert schema["observation"]["properties"]["things"]["items"] == {}
