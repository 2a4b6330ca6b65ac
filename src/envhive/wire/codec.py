"""JSON text to messages and back.

Decoding has a fast path (msgspec, the `data` left raw) and a careful one, taken only when the fast
one refuses: it accepts what Python's own `json` accepts (OpenEnv's clients send `NaN`), and says
precisely what is wrong with the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from pydantic import BaseModel
from pydantic import ValidationError as PydanticValidationError
from pydantic_core import PydanticSerializationError, to_json

from envhive.errors import EnvHiveError, InvalidJSONError, InvalidMessageError, UnknownTypeError
from envhive.wire.messages import NO_DATA, ExtendedStepRequest, Message, Request, StepRequest

REQUEST_TYPES: Final = frozenset({"reset", "step", "state", "mcp", "close"})
M = TypeVar("M", bound=Message)
Model = TypeVar("Model", bound=BaseModel)
_LARGEST_ECHO: Final = 64 * 1024
"""An invalid action larger than this is not sent back inside its own error."""

_decode_message: Final = msgspec.json.Decoder(Message).decode
_decode_extended: Final = msgspec.json.Decoder(Request).decode
_decode_any: Final = msgspec.json.Decoder().decode


decode_step: Final = msgspec.json.Decoder(StepRequest).decode
"""The step in a frame, which is what nearly all frames hold; raises one of `NOT_A_STEP` for any other message."""
decode_extended_step: Final = msgspec.json.Decoder(ExtendedStepRequest).decode
"""The same for layer 2."""
NOT_A_STEP: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_request(text: str | bytes) -> Message:
    """The message in a frame; raises a `RequestError` that says what is wrong with it."""
    try:
        message = _decode_message(text)
    except NOT_A_STEP:
        message = _decode_carefully(text, Message)
    return _checked(message)


def decode_extended_request(text: str | bytes) -> Request:
    """The same for layer 2."""
    try:
        message = _decode_extended(text)
    except NOT_A_STEP:
        message = _decode_carefully(text, Request)
    if isinstance(message.id, str) and not message.id.isprintable():
        raise InvalidMessageError("Invalid message", [_problem("id", "An id must be printable", None, loc=("id",))])
    return _checked(message)


def id_of(text: str | bytes) -> int | str | None:
    """The id in a frame that is no valid request otherwise, so that its error can name it."""
    try:
        document = decode_value(text)
    except InvalidJSONError:
        return None
    found = document.get("id") if isinstance(document, dict) else None
    if isinstance(found, bool) or not isinstance(found, (int, str)):
        return None
    return found if isinstance(found, int) or found.isprintable() else None


def _checked(message: M) -> M:
    if message.type not in REQUEST_TYPES:
        raise UnknownTypeError(f"Unknown message type: {message.type}")
    if message.type == "step" and not message.has_data:
        raise InvalidMessageError("Invalid message", [_problem("missing", "Field required", {"type": "step"})])
    if message.type in ("state", "close") and message.has_data:
        data = decode_value(message.data)
        raise InvalidMessageError(
            "Invalid message", [_problem("extra_forbidden", "Extra inputs are not permitted", data)]
        )
    return message


def _decode_carefully(text: str | bytes, cls: type[M]) -> M:
    document = decode_value(text)
    if not isinstance(document, dict):
        raise InvalidMessageError(
            f"A message must be a JSON object, not {_json_type(document)}",
            [_problem("model_type", "Input should be an object", document, loc=())],
        )
    kind = document.get("type", "")
    if not isinstance(kind, str) or kind not in REQUEST_TYPES:
        raise UnknownTypeError(f"Unknown message type: {kind}")
    extra = [
        _problem("extra_forbidden", "Extra inputs are not permitted", document[name], loc=(name,))
        for name in document.keys() - set(cls.__struct_fields__)
    ]
    if extra:
        raise InvalidMessageError("Invalid message", extra)
    if "data" in document:
        document["data"] = msgspec.Raw(json.dumps(document["data"]).encode())
    try:
        return msgspec.convert(document, cls)
    except msgspec.ValidationError as error:
        raise InvalidMessageError("Invalid message", [_problem("type", str(error), document, loc=())]) from None


def decode_resume(text: str | bytes) -> str:
    """The token in the first frame of a client that comes back: `{"type":"resume","data":{"token":"..."}}`."""
    document = decode_value(text)
    data = document.get("data") if isinstance(document, dict) and document.get("type") == "resume" else None
    token = data.get("token") if isinstance(data, dict) else None
    if not isinstance(token, str) or not token.isascii():
        raise InvalidMessageError("The first message on this connection must be a resume with a token")
    return token


def asks_for_tools(action: msgspec.Raw) -> bool:
    """Whether an action is the question what tools there are, which changes nothing."""
    found = decode_value(action)
    return isinstance(found, dict) and found.get("type") == "list_tools"


def decode_value(text: str | bytes | msgspec.Raw) -> Any:
    """Any JSON value, with Python's leniency; raises `InvalidJSONError`."""
    try:
        return _decode_any(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(bytes(text) if isinstance(text, msgspec.Raw) else text)
    except RecursionError:
        raise InvalidJSONError("Invalid JSON: nested too deeply") from None
    except ValueError as error:
        raise InvalidJSONError(f"Invalid JSON: {error}") from None


def decode_object(raw: msgspec.Raw) -> dict[str, Any]:
    """The object in a message's `data`; an absent one is empty."""
    if raw is NO_DATA:
        return {}
    value = decode_value(raw)
    if not isinstance(value, dict):
        raise InvalidMessageError(
            "Invalid message", [_problem("dict_type", "Input should be a valid dictionary", value)]
        )
    return value


def _problem(kind: str, message: str, value: Any, loc: tuple[str, ...] = ("data",)) -> dict[str, Any]:
    return {"type": kind, "loc": list(loc), "msg": message, "input": value}


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "that")


def validation_failure(error: PydanticValidationError, size: int = 0) -> InvalidMessageError:
    """Pydantic's verdict as ours. Its list may hold live exception objects, so it goes through JSON."""
    try:
        errors = json.loads(error.json(include_input=size <= _LARGEST_ECHO))
    except (PydanticSerializationError, ValueError):
        errors = json.loads(error.json(include_input=False, include_context=False))
    return InvalidMessageError("Invalid message", errors)


# Replies. Those of an environment are made in one piece, with the payload that HTTP sends bare inside.

_STATE: Final = b'{"type":"state","data":'
_MCP: Final = b'{"type":"mcp","data":'


def payload_of(reply: bytes) -> bytes:
    """The `data` of an observation or state reply.

    Example:
        >>> payload_of(encode_state({"step_count": 1}))
        b'{"step_count":1}'
    """
    return reply[reply.index(b'"data":') + len(b'"data":') : -1]


def encode_mcp_reply(payload: bytes) -> bytes:
    return _MCP + payload + b"}"


def encode_queued(position: int, patience_s: float) -> bytes:
    """What a client of layer 2 hears while it waits for a place."""
    return to_json({"type": "queued", "position": position, "admission_timeout_s": patience_s})


def encode_error_reply(error: EnvHiveError, *, extended: bool = False) -> bytes:
    """The reply with an error. Never fails, whatever an environment or a client put into it.

    An extended one, for layer 2, also says whose fault it was and whether trying again may help.
    """
    data = error_data(error)
    if extended:
        data |= {"outcome": error.outcome, "retryable": error.retryable}
    try:
        return json_of({"type": "error", "data": data})
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        # A lone surrogate in a message (an undecodable file name, say), or an input that has no JSON form.
        text = str(data["message"]).encode("utf-8", "backslashreplace").decode()
        extras = {"outcome": error.outcome, "retryable": error.retryable} if extended else {}
        return json_of({"type": "error", "data": {"message": text, "code": error.code, **extras}})


def with_id(reply: bytes, request_id: int | str) -> bytes:
    """A reply that names the request it answers.

    Example:
        >>> with_id(b'{"type":"state","data":{}}', 7)
        b'{"type":"state","data":{},"id":7}'
    """
    if isinstance(request_id, int):
        return b'%b,"id":%d}' % (reply[:-1], request_id)
    return b'%b,"id":%b}' % (reply[:-1], to_json(request_id))


def error_data(error: EnvHiveError) -> dict[str, Any]:
    """What an error says on the wire."""
    message = error.message if isinstance(error, InvalidMessageError) else str(error)
    return {"message": message, "code": error.code, **error.details()}


def encode_state(state: Any) -> bytes:
    """The reply with a state: a model, a dict, a dataclass, or None before the first reset."""
    return _STATE + encode_object(state, "state") + b"}"


def encode_object(value: Any, what: str) -> bytes:
    """A model, dict or dataclass as a JSON object; None is an empty one."""
    if value is None:
        return b"{}"
    if callable(value) and not isinstance(value, BaseModel):
        raise TypeError(f"{what} must be a property: put @property above `def {what}`")
    if isinstance(value, BaseModel) and type(value).model_dump is BaseModel.model_dump:
        return type(value).__pydantic_serializer__.to_json(value, fallback=plain_form)
    payload = json_of(value.model_dump() if hasattr(value, "model_dump") else value)
    if not payload.startswith(b"{"):
        raise TypeError(f"{what} must be a model or a dict, not {type(value).__name__}")
    return payload


def json_of(value: Any) -> bytes:
    return to_json(value, fallback=plain_form, inf_nan_mode="null")


def plain_form(value: Any) -> Any:
    """Arrays, tensors and their scalars become lists and numbers; sets and the like become lists."""
    convert: Callable[[], Any] | None = getattr(value, "tolist", None)
    if callable(convert):
        plain = convert()
        return plain if type(plain) is not type(value) else float(plain)  # a long double stays what it is
    raise TypeError(f"cannot turn {type(value).__module__}.{type(value).__qualname__} into JSON")


# The client's side.


def encode_request(kind: str, data: Any = None, **extras: Any) -> bytes:
    """A request. Floats that JSON has no word for go out as `NaN` and `Infinity`, as Python's `json` does."""
    message = {"type": kind} if data is None else {"type": kind, "data": data}
    message |= {name: value for name, value in extras.items() if value is not None}
    try:
        return to_json(message, fallback=plain_form, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        problem = _problem("json_type", str(error), None)
        raise InvalidMessageError(f"The {kind} cannot be sent as JSON", [problem]) from error


def model_of(cls: type[Model], data: Any) -> Model:
    """The model in a reply; raises pydantic's `ValidationError`. Servers write fields by their names, not aliases."""
    try:
        return cls.model_validate(data)
    except PydanticValidationError:
        if all(field.validation_alias is None for field in cls.model_fields.values()):
            raise
        return cls.model_validate(data, by_alias=True, by_name=True)


def decode_reply(text: str | bytes) -> dict[str, Any]:
    """A reply, which has at least a `type`; raises `InvalidJSONError` when it is no reply at all."""
    reply = decode_value(text)
    if not isinstance(reply, dict) or not isinstance(reply.get("type"), str):
        raise InvalidJSONError("The server's reply is not an object with a type")
    return reply
