"""OpenEnv's models of messages, for environments that use them. The server has its own: `envhive.wire`."""

from __future__ import annotations

import json
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from envhive.types import HealthStatus

Scalar = int | float | bool


class WSErrorCode(StrEnum):
    """What an `error` reply may be about."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


class BaseMessage(BaseModel):
    """Fields that are not known are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid")


# Over HTTP.


class ResetRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    seed: int | None = Field(default=None, ge=0)
    episode_id: str | None = Field(default=None, max_length=255)


class StepRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)


class StepResponse(_Reply):
    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class ResetResponse(StepResponse):
    pass


class SchemaResponse(BaseMessage):
    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]
    reset_observation: dict[str, Any] | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_declared(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if value is not None}


class HealthResponse(BaseMessage):
    status: HealthStatus = HealthStatus.HEALTHY


class CodeExecResult(BaseMessage):
    """What a program printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int


class ListTasksRequest(BaseMessage):
    split: str


class NumTasksRequest(BaseMessage):
    split: str


class GetTaskRequest(BaseMessage):
    split: str
    index: int


class GetTaskRangeRequest(BaseMessage):
    split: str
    start: int | None = None
    stop: int | None = None


# Over WebSocket.


class WSResetMessage(BaseMessage):
    type: Literal["reset"] = "reset"
    data: dict[str, Any] = Field(default_factory=dict)


class WSStepMessage(BaseMessage):
    type: Literal["step"] = "step"
    data: dict[str, Any]


class WSStateMessage(BaseMessage):
    type: Literal["state"] = "state"


class WSCloseMessage(BaseMessage):
    type: Literal["close"] = "close"


class WSMCPMessage(BaseMessage):
    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]


WSIncomingMessage = Annotated[
    WSResetMessage | WSStepMessage | WSStateMessage | WSCloseMessage, Field(discriminator="type")
]


class WSObservationResponse(_Reply):
    type: Literal["observation"] = "observation"
    data: dict[str, Any]


class WSStateResponse(_Reply):
    type: Literal["state"] = "state"
    data: dict[str, Any]


class WSErrorResponse(_Reply):
    type: Literal["error"] = "error"
    data: dict[str, Any]


class WSMCPResponse(_Reply):
    type: str = "mcp"
    data: dict[str, Any]


# JSON-RPC.


class McpMethod(StrEnum):
    TOOLS_LIST = "tools/list"
    TOOLS_CALL = "tools/call"


class JsonRpcErrorCode(IntEnum):
    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    SERVER_ERROR = -32000

    @property
    def words(self) -> str:
        return "Invalid Request" if self is self.INVALID_REQUEST else self.name.replace("_", " ").capitalize()


class JsonRpcError(_Reply):
    code: int
    message: str
    data: Any = None

    @classmethod
    def from_code(cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None) -> Self:
        return cls(code=int(code), message=message or code.words, data=data)


class JsonRpcRequest(_Reply):
    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class JsonRpcResponse(_Reply):
    """A result or an error; what is dumped has the one or the other, as the specification wants it."""

    jsonrpc: Literal["2.0"] = "2.0"
    result: Any = None
    error: JsonRpcError | None = None
    id: str | int | None = None

    def model_dump(self, **kwargs: Any) -> dict[str, Any]:
        outcome = {"result": self.result} if self.error is None else {"error": self.error.model_dump()}
        return {"jsonrpc": self.jsonrpc, "id": self.id, **outcome}

    def model_dump_json(self, **kwargs: Any) -> str:
        return json.dumps(self.model_dump())

    @classmethod
    def success(cls, result: Any, request_id: str | int | None = None) -> Self:
        return cls(result=result, id=request_id)

    @classmethod
    def error_response(
        cls,
        code: JsonRpcErrorCode,
        message: str | None = None,
        data: Any = None,
        request_id: str | int | None = None,
    ) -> Self:
        return cls(error=JsonRpcError.from_code(code, message, data), id=request_id)
