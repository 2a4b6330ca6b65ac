"""The Model Context Protocol: what a request asks of a session's environment, and how it is answered.

Nothing here knows of a transport. A `Peer` turns a request into a `Plan`; whoever holds the session carries it out.
OpenEnv's clients call tools without a word of introduction. They are answered as OpenEnv answers; whoever sends
`initialize` is answered as the protocol says.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from envhive import __version__
from envhive.errors import (
    EnvHiveError,
    EnvironmentFailureError,
    InvalidMessageError,
    RequestError,
    SessionNotFoundError,
)
from envhive.server import mcp_jobs
from envhive.server.blueprint import Blueprint
from envhive.server.notes import Listening
from envhive.tools import CallToolAction, ListToolsAction, ToolError, ToolErrorType
from envhive.types import Action
from envhive.wire.codec import error_data
from envhive.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_ERROR,
    JsonRpcError,
    JsonRpcRequest,
    encode_error,
    encode_result,
)

if TYPE_CHECKING:
    from envhive.server.runner import Runner
    from envhive.server.threads import Done

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, that begin with `initialize`; the newest first."""
BATCHING: Final = frozenset({"2025-03-26"})
"""Those in which several calls may come in one message."""
ACT: Final = "act"

_NO_TOOLS: Final = "Environment does not support MCP"
_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

Notify = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class About:
    """What all sessions of a server have in common."""

    name: str
    by_step: bool
    """Whether environments without our base class take tool actions in `step`."""
    act: dict[str, Any] | None
    """The tool that stands for `step`, where it is offered."""

    @classmethod
    def of(cls, blueprint: Blueprint, *, expose_step: bool) -> About:
        by_step = blueprint.action_cls in (Action, ListToolsAction, CallToolAction)
        return cls(blueprint.env_name, by_step, _act(blueprint) if expose_step else None)


def _act(blueprint: Blueprint) -> dict[str, Any]:
    schema = blueprint.action_cls.model_json_schema()
    schema.get("properties", {}).pop("metadata", None)
    return {
        "name": ACT,
        "description": f"Do something in {blueprint.env_name}, and see what comes of it.",
        "inputSchema": {**schema, "type": "object"},
        "meta": None,
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks of an environment."""

    finish: Callable[[Any], Any]
    """Makes the result of what the environment answered; may raise `JsonRpcError`."""
    failed: Callable[[EnvHiveError], Any]
    """Makes the result of a failure, or raises `JsonRpcError`."""
    job: Callable[[Any], Any] | None = None
    async_job: Callable[[Any], Any] | None = None
    action: bytes | None = None
    begins: bool = False
    """Whether an episode must have begun, as nobody but the server can begin one here."""
    timeout_s: float | None = None

    @property
    def what(self) -> str:
        return "mcp" if self.action is None else "step"

    def start(self, runner: Runner, done: Done, *, begun: bool) -> None:
        """Have it done; the answer goes to `done`."""
        if not self.begins or begun:
            self._start(runner, None, done)
            return

        def reset(first: Any, error: EnvHiveError | None) -> None:
            if error is None:
                self._start(runner, first, done)
            else:
                done(None, error)

        runner.reset({}, None, reset)

    def _start(self, runner: Runner, first: Any, done: Done) -> None:
        if self.action is not None:
            runner.step(self.action, {}, done)
        elif self.job is None or self.async_job is None:
            done(first, None)
        elif runner.on_loop:
            runner.call_async(self.async_job, functools.partial(_with_first, done, first))
        else:
            runner.call(self.job, functools.partial(_with_first, done, first))


def _with_first(done: Done, first: Any, answer: Any, error: EnvHiveError | None) -> None:
    if first is not None and isinstance(answer, dict):
        answer = {**answer, "first": first}
    done(answer, error)


@dataclass(slots=True)
class Peer:
    """A client of one session."""

    about: About
    session_id: str
    version: str | None = None
    """Of the protocol; None until it has introduced itself."""
    level: int = 0
    """Messages below this are not for it."""
    client: dict[str, Any] = field(default_factory=dict)

    def plan(self, request: JsonRpcRequest, notify: Notify | None = None) -> Plan | dict[str, Any]:
        """What to do for a request, or its result if there is nothing to do; raises `JsonRpcError`."""
        try:
            method = _METHODS.get(request.method)
            if method is None:
                raise JsonRpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")
            return method(self, request.params, notify)
        except JsonRpcError as error:
            error.request_id = request.id
            raise

    # Getting to know each other.

    def _initialize(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise JsonRpcError(INVALID_PARAMS, "protocolVersion must be a string")
        self.version = wanted if wanted in VERSIONS else VERSIONS[0]
        client = params.get("clientInfo")
        self.client = client if isinstance(client, dict) else {}
        return self._job(
            mcp_jobs.describe, mcp_jobs.describe_async, finish=self._introduction, begins=self.about.act is not None
        )

    def _introduction(self, described: dict[str, Any]) -> dict[str, Any]:
        capabilities: dict[str, Any] = {"tools": {"listChanged": False}, "logging": {}}
        capabilities |= {kind: {"listChanged": False} for kind in ("resources", "prompts") if described.get(kind)}
        instructions = described.get("instructions")
        if "first" in described:
            seen = json.loads(bytes(described["first"]))["data"]["observation"]
            instructions = "\n\n".join(filter(None, [instructions, f"What you see at first: {json.dumps(seen)}"]))
        return {
            "protocolVersion": self.version,
            "capabilities": capabilities,
            "serverInfo": {"name": self.about.name, "version": __version__},
            **({"instructions": instructions} if instructions else {}),
        }

    def _ping(self, params: dict[str, Any], notify: Notify | None) -> dict[str, Any]:
        return {}

    def _set_level(self, params: dict[str, Any], notify: Notify | None) -> dict[str, Any]:
        if params.get("level") not in _LEVELS:
            raise JsonRpcError(INVALID_PARAMS, f"level must be one of {', '.join(_LEVELS)}")
        self.level = _LEVELS.index(params["level"])
        return {}

    def _complete(self, params: dict[str, Any], notify: Notify | None) -> dict[str, Any]:
        return {"completion": {"values": [], "total": 0, "hasMore": False}}

    def _create(self, params: dict[str, Any], notify: Notify | None) -> dict[str, Any]:
        return {"session_id": self.session_id}

    # Tools.

    def _list_tools(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        _check_cursor(params)
        job, async_job = (
            functools.partial(each, self.about.by_step) for each in (mcp_jobs.list_tools, mcp_jobs.list_tools_async)
        )
        return self._job(job, async_job, finish=self._listed_tools)

    def _listed_tools(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        if tools is None and self.about.act is None:
            raise JsonRpcError(INTERNAL_ERROR, _NO_TOOLS)
        listed = [*(tools or []), *([] if self.about.act is None else [self.about.act])]
        if self.version is not None:
            return {"tools": [_without_nulls(each) for each in listed]}
        # OpenEnv's client takes a tool without a description for a reason to show none at all.
        return {"tools": [{**each, "description": each["description"] or ""} for each in listed]}

    def _call_tool(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or not name:
            raise JsonRpcError(INVALID_PARAMS, "Missing 'name' in params")
        if not isinstance(arguments, (dict, type(None))):
            raise JsonRpcError(INVALID_PARAMS, "arguments must be an object")
        if self.about.act is not None and name == ACT:
            action = json.dumps(arguments or {}).encode()
            return Plan(self._acted, self._tool_failed, action=action, begins=True)
        listener = self._listener(params, notify)
        job, async_job = (
            functools.partial(each, name, arguments or {}, None, self.about.by_step, listener)
            for each in (mcp_jobs.call_tool, mcp_jobs.call_tool_async)
        )
        return Plan(functools.partial(self._called_tool, name), self._tool_failed, job, async_job)

    def _called_tool(self, name: str, outcome: Any) -> dict[str, Any]:
        if outcome is None:
            raise JsonRpcError(INTERNAL_ERROR, _NO_TOOLS)
        if isinstance(outcome, ToolError):
            return self._no_result(outcome)
        result: dict[str, Any] = outcome
        if self.version is None:
            return result
        blocks = [_without_nulls(block) for block in result["content"]]
        answer = {"content": blocks, "isError": bool(result.get("is_error"))}
        if result.get("structured_content") is not None:
            answer["structuredContent"] = result["structured_content"]
        if result.get("meta") is not None:
            answer["_meta"] = result["meta"]
        return answer

    def _no_result(self, error: ToolError) -> dict[str, Any]:
        not_found = error.error_type is ToolErrorType.TOOL_NOT_FOUND
        if not_found or self.version is None:
            bad_params = not_found or error.error_type is ToolErrorType.INVALID_ARGS
            data = {"error_type": error.error_type.value}
            raise JsonRpcError(INVALID_PARAMS if bad_params else INTERNAL_ERROR, error.message, data)
        return {"content": [{"type": "text", "text": error.message}], "isError": True}

    def _acted(self, reply: bytes) -> dict[str, Any]:
        seen = json.loads(bytes(reply))["data"]
        answer = {"content": [{"type": "text", "text": json.dumps(seen)}], "structuredContent": seen, "isError": False}
        return answer if self.version is not None else {**answer, "data": seen, "is_error": False}

    def _tool_failed(self, error: EnvHiveError) -> dict[str, Any]:
        """A tool's own failure is for the agent to read; that there is no session any more is not."""
        if self.version is None or not isinstance(error, (EnvironmentFailureError, RequestError)):
            raise as_rpc_error(error) from error
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}

    def _listener(self, params: dict[str, Any], notify: Notify | None) -> Listening | None:
        """Brings what a tool says, on whatever thread, to the client."""
        if notify is None:
            return None
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None

        def listen(note: dict[str, Any]) -> None:
            if note["method"] == "notifications/progress":
                if token is None:
                    return
                note = {**note, "params": {"progressToken": token, **note["params"]}}
            elif _LEVELS.index(note["params"]["level"]) < self.level:
                return
            notify({"jsonrpc": "2.0", **note})

        return Listening(listen)

    # What else there may be.

    def _list_resources(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        return self._ask_server("resources", (), lambda found: {"resources": found or []}, params)

    def _list_templates(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        return self._ask_server("templates", (), lambda found: {"resourceTemplates": found or []}, params)

    def _read_resource(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        return self._ask_server("resource", (_text(params, "uri"),), functools.partial(_found, "resource"))

    def _list_prompts(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        return self._ask_server("prompts", (), lambda found: {"prompts": found or []}, params)

    def _get_prompt(self, params: dict[str, Any], notify: Notify | None) -> Plan:
        arguments = params.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise JsonRpcError(INVALID_PARAMS, "arguments must be an object")
        return self._ask_server("prompt", (_text(params, "name"), arguments), functools.partial(_found, "prompt"))

    def _ask_server(
        self, what: str, args: tuple[Any, ...], finish: Callable[[Any], Any], params: dict[str, Any] | None = None
    ) -> Plan:
        _check_cursor(params or {})
        job, async_job = (
            functools.partial(each, what, args) for each in (mcp_jobs.ask_server, mcp_jobs.ask_server_async)
        )
        return self._job(job, async_job, finish=finish)

    def _job(
        self,
        job: Callable[[Any], Any],
        async_job: Callable[[Any], Any],
        *,
        finish: Callable[[Any], Any],
        begins: bool = False,
    ) -> Plan:
        return Plan(finish, _not_answered, job, async_job, begins=begins)


_METHODS: Final[dict[str, Callable[[Peer, dict[str, Any], Notify | None], Plan | dict[str, Any]]]] = {
    "initialize": Peer._initialize,
    "ping": Peer._ping,
    "logging/setLevel": Peer._set_level,
    "completion/complete": Peer._complete,
    "tools/list": Peer._list_tools,
    "tools/call": Peer._call_tool,
    "resources/list": Peer._list_resources,
    "resources/templates/list": Peer._list_templates,
    "resources/read": Peer._read_resource,
    "prompts/list": Peer._list_prompts,
    "prompts/get": Peer._get_prompt,
    "openenv/session/create": Peer._create,
}


def conclude(plan: Plan, request: JsonRpcRequest, answer: Any, error: EnvHiveError | None) -> bytes:
    """The response to a request that has been carried out."""
    try:
        return encode_result(plan.finish(answer) if error is None else plan.failed(error), request.id)
    except JsonRpcError as failure:
        failure.request_id = request.id
        return encode_error(failure)


def as_rpc_error(error: EnvHiveError, request_id: Any = None) -> JsonRpcError:
    """An error of the server or the environment, as JSON-RPC has it."""
    code = SERVER_ERROR
    if isinstance(error, (SessionNotFoundError, InvalidMessageError)):
        code = INVALID_PARAMS
    elif isinstance(error, EnvironmentFailureError):
        code = INTERNAL_ERROR
    data = {**error_data(error), "outcome": error.outcome, "retryable": error.retryable}
    data.pop("message", None)
    return JsonRpcError(code, str(error), data, request_id)


def _not_answered(error: EnvHiveError) -> Any:
    raise as_rpc_error(error) from error


def _found(kind: str, answer: Any) -> Any:
    if answer is None:
        raise JsonRpcError(INVALID_PARAMS, f"This environment has no {kind}s")
    if isinstance(answer, ToolError):
        missing = answer.error_type is ToolErrorType.TOOL_NOT_FOUND
        raise JsonRpcError(INVALID_PARAMS if missing else INTERNAL_ERROR, answer.message)
    return answer


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise JsonRpcError(INVALID_PARAMS, f"{name} must be a string")
    return value


def _check_cursor(params: dict[str, Any]) -> None:
    if params.get("cursor") is not None:
        raise JsonRpcError(INVALID_PARAMS, "Unknown cursor: all there is comes in one page")


def _without_nulls(described: dict[str, Any]) -> dict[str, Any]:
    """A tool or a piece of content as the protocol has it; OpenEnv's form says of all fields that they are missing."""
    given = {name: value for name, value in described.items() if value is not None and name != "meta"}
    return given | ({} if described.get("meta") is None else {"_meta": described["meta"]})
