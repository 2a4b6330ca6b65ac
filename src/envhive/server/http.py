"""The HTTP endpoints: thin functions over the hive.

`/reset` answers with the id of its session in `X-Session-Id`; a call that sends it back goes on with that session. A
`/step` or `/state` without it gets a fresh environment, which counts as a session while it lasts.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Body, FastAPI, Header, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from starlette.exceptions import HTTPException

from envhive.errors import EnvHiveError, ExecutionError, InvalidMessageError
from envhive.server.auth import Owner
from envhive.server.gate import Caller, error_response
from envhive.server.hangups import unless_gone
from envhive.server.hive import Hive
from envhive.server.mcp_http import McpEndpoint
from envhive.server.relay import Relayed, is_relayed
from envhive.server.session import Session
from envhive.server.tasks import register_task_routes
from envhive.server.yielding import offer
from envhive.types import EnvironmentMetadata, HealthStatus, ServerMode


class ResetRequest(BaseModel):
    """What `reset` may be given; further fields go to the environment's `reset` where it takes them."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"seed": 42}, {}]})

    seed: int | None = Field(default=None, ge=0, description="Seed for a reproducible episode")
    episode_id: str | None = Field(default=None, max_length=255, description="Name of the episode")
    timeout_s: float | None = Field(default=None, gt=0, description="Seconds the reset may take")


class StepRequest(BaseModel):
    """An action; further fields go to the environment's `step` where it takes them."""

    model_config = ConfigDict(extra="allow")

    action: dict[str, Any] = Field(description="The action, as /schema describes it")
    timeout_s: float | None = Field(default=None, gt=0, description="Seconds the step may take")
    request_id: str | None = Field(
        default=None,
        max_length=255,
        description="The caller's name for this request. In a session, the last one that comes again is not run again",
    )


class StepResponse(BaseModel):
    """What came of a reset or step."""

    observation: dict[str, Any] = Field(description="The observation's fields")
    reward: float | None = Field(default=None, description="Reward of the action")
    done: bool = Field(default=False, description="Whether the episode has ended")
    metadata: dict[str, Any] | None = Field(default=None, description="What the environment sent along, if anything")


class CloseResponse(BaseModel):
    """A session has ended."""

    session_id: str
    steps: int = Field(description="How many steps it had")


class HealthResponse(BaseModel):
    """How the server is."""

    status: HealthStatus
    reasons: list[str] = Field(description="Why it is not healthy, if it is not")
    active_sessions: int
    max_sessions: int
    loop_lag_ms: float = Field(description="Longest time the event loop was blocked lately")
    uptime_s: float
    version: str
    workers: list[dict[str, Any]] = Field(description="Each worker process, where there are several")


class ErrorResponse(BaseModel):
    """Why a request failed."""

    detail: Any = Field(description="A sentence, or pydantic's list for an invalid action")
    code: str
    outcome: str = Field(description="Whose fault it was: `invalid`, `env_error`, `timeout` or `infra_error`")
    retryable: bool = Field(description="Whether trying again may help")


_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorResponse, "description": "There is no such session"},
    410: {"model": ErrorResponse, "description": "The session has expired"},
    422: {"model": ErrorResponse, "description": "The action is invalid"},
    500: {"model": ErrorResponse, "description": "The environment failed"},
    503: {"model": ErrorResponse, "description": "No session is free"},
    504: {"model": ErrorResponse, "description": "It took longer than it was given"},
}


_ONE_SESSION: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorResponse, "description": "There is no such session"}
}


def register_http_routes(app: FastAPI, hive: Hive, mode: ServerMode, endpoint: McpEndpoint) -> None:
    """Put the endpoints of `mode` on an app."""
    app.add_exception_handler(EnvHiveError, answer_error)
    if app.exception_handlers.get(RequestValidationError) is request_validation_exception_handler:  # not the app's own
        app.add_exception_handler(RequestValidationError, answer_unreadable)
    if mode is ServerMode.SIMULATION:
        _register_control(app, hive)
    _register_information(app, hive)
    _register_mcp(app, endpoint)
    register_task_routes(app, hive)


async def answer_error(request: Request, error: Exception) -> Response:
    """What FastAPI calls for an error of ours. What an environment has raised the app may have an answer for itself."""
    assert isinstance(error, EnvHiveError)
    raised = error.__cause__
    if isinstance(error, ExecutionError) and isinstance(raised, Exception):
        by_class, by_status = request.scope.get("starlette.exception_handlers", ({}, {}))
        handler = by_status.get(raised.status_code) if isinstance(raised, HTTPException) else None
        handler = handler or next((by_class[cls] for cls in type(raised).__mro__ if cls in by_class), None)
        if handler is not None:
            answer = handler(request, raised)
            response: Response = await answer if inspect.isawaitable(answer) else answer
            return response
    return error_response(error)


async def answer_unreadable(request: Request, error: Exception) -> Response:
    """What FastAPI calls for a request that does not fit its endpoint: as it would answer by itself, and typed."""
    assert isinstance(error, RequestValidationError)
    return error_response(InvalidMessageError("Invalid request", jsonable_encoder(error.errors())))


def _json(payload: bytes, session_id: str | None = None) -> Response:
    headers = None if session_id is None else {SESSION_HEADER: session_id}
    return Response(payload, media_type="application/json", headers=headers)


SESSION_HEADER: Final = "X-Session-Id"
SessionId = Annotated[
    str | None, Header(alias=SESSION_HEADER, max_length=255, description="The session, as `/reset` named it")
]


def _register_control(app: FastAPI, hive: Hive) -> None:
    @app.post("/reset", response_model=StepResponse, responses=_ERRORS, tags=["Environment"])
    async def reset(
        request: Request,
        owner: Caller,
        body: Annotated[ResetRequest | None, Body()] = None,
        session_id: SessionId = None,
    ) -> Response:
        """Begin an episode, in a new session or the one that is named, and return its first observation.

        The answer's `X-Session-Id` names the session for further calls. Training runs use the WebSocket at /ws.
        """
        if (relayed := await _relay(hive, request, session_id)) is not None:
            return relayed
        keywords = {} if body is None else body.model_dump(exclude_unset=True)
        timeout_s = keywords.pop("timeout_s", None)
        if session_id is None:
            return await unless_gone(request, _begin(hive, owner, keywords, timeout_s))
        guest = hive.http.find(session_id, owner)
        again = keywords.get("request_id")
        answer = await guest.once("reset", again, keywords, lambda: guest.session.ask_reset(keywords, timeout_s))
        return _json(answer, session_id)

    @app.post("/step", response_model=StepResponse, responses=_ERRORS, tags=["Environment"])
    async def step(request: Request, owner: Caller, body: StepRequest, session_id: SessionId = None) -> Response:
        """Step the session that is named; without one, a fresh environment. Training runs use the WebSocket at /ws."""
        if (relayed := await _relay(hive, request, session_id)) is not None:
            return relayed
        keywords = body.model_dump(exclude_unset=True, exclude={"action", "timeout_s"})
        action = json.dumps(body.action).encode()
        if session_id is not None:
            guest = hive.http.find(session_id, owner)
            call = functools.partial(guest.session.ask_step, action, keywords, body.timeout_s)
            return _json(await guest.once("step", body.request_id, (action, keywords), call), session_id)
        try:
            hive.calls.parse_action(action)  # a bad action needs no environment to be told so
        except InvalidMessageError as error:
            hive.metrics.steps.outcomes[error.outcome] += 1
            raise
        return await unless_gone(
            request, _visit(hive, owner, lambda session: session.ask_step(action, keywords, body.timeout_s))
        )

    @app.get("/state", response_model=hive.blueprint.state_cls, responses=_ERRORS, tags=["Environment"])
    async def state(request: Request, owner: Caller, session_id: SessionId = None) -> Response:
        """The state of the session that is named; without one, of a fresh environment."""
        if (relayed := await _relay(hive, request, session_id)) is not None:
            return relayed
        if session_id is not None:
            return _json(await hive.http.find(session_id, owner).session.ask_state(), session_id)
        return await unless_gone(request, _visit(hive, owner, Session.ask_state))

    @offer(app, "POST", "/close", response_model=CloseResponse, responses=_ERRORS, tags=["Environment"])
    async def close(request: Request, owner: Caller, session_id: SessionId = None) -> Response | CloseResponse:
        """End the session that is named, and give its place to others."""
        if session_id is None:
            raise InvalidMessageError(f"Name the session to close in the header {SESSION_HEADER}")
        if (relayed := await _relay(hive, request, session_id)) is not None:
            return relayed
        session = hive.http.find(session_id, owner).session
        session.end()
        await session.wait_closed()
        return CloseResponse(session_id=session_id, steps=session.steps)


async def _relay(hive: Hive, request: Request, session_id: str | None) -> Response | None:
    """Another worker's answer, if the session is there, or a new one would find more room there."""
    if is_relayed(request.scope) or (way := hive.way_to(session_id)) is None:
        return None
    return Relayed(way, await request.body(), named=session_id is not None)


async def _visit(hive: Hive, owner: Owner | None, ask: Callable[[Session], Awaitable[bytes]]) -> Response:
    """What a fresh environment says."""
    async with hive.visit(owner) as session:
        return _json(await ask(session))


async def _begin(hive: Hive, owner: Owner | None, keywords: dict[str, Any], timeout_s: float | None) -> Response:
    """The first observation of a new session, and its name if it lives on."""
    session = await hive.admit_in_turn(owner)
    kept = False
    try:
        answer = await session.ask_reset(keywords, timeout_s)
        kept = hive.http.add(session)
    finally:
        if not kept:
            session.end()
            await session.wait_closed()
    return _json(answer, session.id if kept else None)


def _register_information(app: FastAPI, hive: Hive) -> None:
    @app.get("/health", response_model=HealthResponse, tags=["Server"])
    async def health(owner: Caller, response: Response) -> HealthResponse | JSONResponse:
        """Whether the server is well, and how full it is. 503 when it is unhealthy, or takes no new sessions.

        All but `status` needs a token, where the server asks for one.
        """
        report = await hive.health()
        if report.status in (HealthStatus.UNHEALTHY, HealthStatus.DRAINING):
            response.status_code = 503
        if owner is None and hive.config.tokens:
            return JSONResponse({"status": report.status}, response.status_code or 200)
        return HealthResponse(**asdict(report))

    @offer(app, "GET", "/sessions", tags=["Server"])
    async def sessions(owner: Caller, response: Response) -> list[dict[str, Any]]:
        """The sessions of the server, or of the token where one is asked for: id, owner, age, idle time, steps, ...

        Workers that are down, or gave no answer in time, are named in `X-Silent-Workers`: theirs are not listed.
        """
        listed, silent = await hive.list_sessions(owner)
        if silent:
            response.headers["x-silent-workers"] = ", ".join(map(str, silent))
        return listed

    @offer(app, "GET", "/sessions/{session_id}", responses=_ONE_SESSION, tags=["Server"])
    async def one_session(request: Request, owner: Caller, session_id: str) -> Any:
        """One session, and the Python stack of what its code is doing at this moment."""
        if (relayed := await _relay(hive, request, session_id)) is not None:
            return relayed
        session = hive.find(session_id, owner)
        return {**hive.summary_of(session), "stack": await session.stack()}

    @offer(app, "DELETE", "/sessions/{session_id}", responses=_ONE_SESSION, tags=["Server"])
    async def end_session(request: Request, owner: Caller, session_id: str) -> Any:
        """End a session, whatever it is doing. What cannot be stopped, such as a thread, is left behind."""
        if (relayed := await _relay(hive, request, session_id)) is not None:
            return relayed
        session = hive.find(session_id, owner)
        session.kill()
        await session.wait_closed()
        return hive.summary_of(session)

    @offer(app, "GET", "/metrics", response_class=PlainTextResponse, tags=["Server"])
    async def metrics(request: Request) -> Response:
        """The server's numbers for Prometheus, of all workers; in OpenMetrics form where that is asked for."""
        reports = await hive.all_metrics()
        # On a thread: the first time a library is loaded, and each time the system is asked about each worker.
        text, content_type = await asyncio.to_thread(_written_down, reports, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    @offer(app, "POST", "/drain", tags=["Server"])
    async def drain() -> HealthResponse:
        """Take no more sessions, in any worker; those that are there go on. Newcomers are told to try elsewhere."""
        return HealthResponse(**asdict(await hive.drain_all()))

    @app.get("/metadata", response_model=EnvironmentMetadata, tags=["Environment"])
    async def metadata(request: Request) -> Response:
        """What the environment says about itself."""
        return await unless_gone(request, _metadata(hive))

    @app.get("/schema", tags=["Environment"])
    async def schema() -> dict[str, Any]:
        """JSON schemas of the environment's own action, observation and state."""
        blueprint = hive.blueprint
        classes = {
            "action": blueprint.action_cls,
            "observation": blueprint.observation_cls,
            "state": blueprint.state_cls,
            "reset_observation": blueprint.reset_observation_cls or blueprint.observation_cls,
        }
        return {name: json_schema(cls) for name, cls in classes.items()}


async def _metadata(hive: Hive) -> Response:
    return _json(await hive.metadata())


def _written_down(reports: dict[int, dict[str, Any] | None], accept: str) -> tuple[bytes, str]:
    from envhive.server.exposition import write  # late: it loads a library that few starts need

    return write(reports, accept)


def json_schema(cls: type[Any]) -> dict[str, Any]:
    """The JSON schema of a model, or of anything pydantic can describe."""
    if issubclass(cls, BaseModel):
        return cls.model_json_schema(schema_generator=_Forgiving)
    return TypeAdapter(cls).json_schema(schema_generator=_Forgiving)


class _Forgiving(GenerateJsonSchema):
    """Describes a model all the same if one of its fields holds something that JSON schemas have no words for."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return {}


_RPC: dict[str, Any] = {"content": {"application/json": {}}}
_MCP_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {"description": "It wants no answer"},
    400: {**_RPC, "description": "It is no JSON, or names no session, or an unknown version of the protocol"},
    404: {**_RPC, "description": "There is no such session, or no longer"},
    503: {**_RPC, "description": "No session is free"},
}
_MCP_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Events, as they come"},
    400: _MCP_ANSWERS[400],
    404: _MCP_ANSWERS[404],
    406: {**_RPC, "description": "Events are not accepted"},
}
_MCP_END: dict[int | str, dict[str, Any]] = {400: _MCP_ANSWERS[400], 404: _MCP_ANSWERS[404]}


def _register_mcp(app: FastAPI, endpoint: McpEndpoint) -> None:
    @app.post("/mcp", responses=_MCP_ANSWERS, tags=["MCP"])
    async def mcp(request: Request) -> Response:
        """JSON-RPC calls of the Model Context Protocol: Streamable HTTP, and OpenEnv's calls without a session."""
        return await endpoint.post(request)

    @offer(app, "GET", "/mcp", responses=_MCP_STREAM, tags=["MCP"])
    async def mcp_stream(request: Request) -> Response:
        """What a session says of its own accord, or the rest of an answer whose connection was lost."""
        return await endpoint.get(request)

    @offer(app, "DELETE", "/mcp", status_code=204, responses=_MCP_END, tags=["MCP"])
    async def mcp_end(request: Request) -> Response:
        """End a session."""
        return await endpoint.delete(request)
