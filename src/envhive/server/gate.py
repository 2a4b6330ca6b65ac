"""Who may come in: asked once for each HTTP request and each WebSocket upgrade, never for a step."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends
from pydantic_core import PydanticSerializationError, to_json
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envhive.errors import (
    DrainingError,
    EnvHiveError,
    ForbiddenOriginError,
    InvalidMessageError,
    MessageTooLargeError,
    QuotaExceededError,
    SessionCapacityError,
    UnauthorizedError,
)
from envhive.server.auth import Owner, bearer
from envhive.server.config import ServerConfig
from envhive.server.metrics import count_refusal_at_gate
from envhive.server.outlet import POLICY_VIOLATION
from envhive.wire.codec import error_data

OWNER: Final = "envhive.owner"
"""Where a scope says whose request it is, once a gate has let it in."""

REFUSED_HEADER: Final = "X-EnvHive-Refused"
"""On an answer that says that there is no place here for a new session; its value is the error's code."""

_OPEN: Final = "/health"
"""For probes, which have no token."""
_READS: Final = ("GET", "HEAD")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class Gate:
    """ASGI middleware before everything else: tokens, origins, and how large a body may be.

    A WebSocket's `receive` is left as it is, or the fast lane could not take the connection over.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or OWNER in scope:
            await self._app(scope, receive, send)
            return
        try:
            self._let_in(scope)
        except (UnauthorizedError, MessageTooLargeError) as error:
            await _refuse(error, scope, receive, send)
            return
        if scope["type"] == "http":
            body = _Body(self._config.max_message_size, scope, receive, send)
            try:
                await self._app(scope, body.receive, body.send)
            except ClientDisconnect:
                if not body.refused:
                    raise
        else:
            await self._app(scope, receive, send)

    def _let_in(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        in_query = _take_token_from_query(scope) if self._config.tokens else ""  # else it is the app's own
        is_websocket = scope["type"] == "websocket"
        if is_websocket or scope["method"] not in (*_READS, "OPTIONS"):
            self._check_origin(headers, scope)
        scope[OWNER] = owner = self._owner(headers, in_query if is_websocket else "")
        if owner is None and self._config.tokens and not _needs_no_token(scope, headers):
            raise UnauthorizedError(
                "This server wants a token, as `Authorization: Bearer ...`"
                + ("" if is_websocket or not in_query else "; `?token=` is for WebSockets only")
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._config.max_message_size:
            raise _too_large(self._config.max_message_size)

    def _owner(self, headers: Headers, in_query: str) -> Owner | None:
        secret = bearer(headers["authorization"]) if "authorization" in headers else in_query
        return self._config.tokens.owner_of(secret) if secret and self._config.tokens else None

    def _check_origin(self, headers: Headers, scope: Scope) -> None:
        origin = headers.get("origin")
        allowed = self._config.allow_origins
        if origin is None or "*" in allowed or origin.lower() in allowed:
            return
        scheme, _, host = origin.lower().partition("://")
        port = _DEFAULT_PORTS.get(scheme, "")
        is_own = host and host.removesuffix(port) == headers.get("host", "").lower().removesuffix(port)
        if not is_own and not _is_allowed_by_app(scope.get("app", self._app), origin):
            raise ForbiddenOriginError(
                "This request comes from a web page of another origin. Allow it with --allow-origin"
            )


class _Body:
    """The body of a request, of which no more than so many bytes get through. The app takes the rest for a hang-up."""

    def __init__(self, limit: int, scope: Scope, receive: Receive, send: Send) -> None:
        self._left = limit
        self._limit = limit
        self._scope = scope
        self._receive = receive
        self._send = send
        self._answered = self.refused = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body") or b"")
        if self._left < 0 and not self._answered:
            self.refused = self._answered = True
            await _refuse(_too_large(self._limit), self._scope, self._receive, self._send)
        return {"type": "http.disconnect"} if self.refused else message

    async def send(self, message: Message) -> None:
        self._answered = True
        if not self.refused:
            await self._send(message)


async def caller(connection: HTTPConnection) -> Owner | None:
    """Whose request it is; None where no tokens are asked for, or at `/health`."""
    return connection.scope.get(OWNER)


Caller = Annotated[Owner | None, Depends(caller)]


def error_response(error: EnvHiveError) -> Response:
    """An error as an HTTP response: its class knows the status, its data are the body."""
    detail = error.errors if isinstance(error, InvalidMessageError) and error.errors else str(error)
    extra = {name: value for name, value in error_data(error).items() if name not in ("message", "errors")}
    extra |= {"outcome": error.outcome, "retryable": error.retryable}
    headers = refusal_headers(error)
    if error.http_status == UnauthorizedError.http_status:
        headers["WWW-Authenticate"] = "Bearer"
    try:
        body = to_json({"detail": detail, **extra}, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, RecursionError):  # what came in, or was raised, has no JSON form
        words = {"code": error.code, "outcome": error.outcome, "retryable": error.retryable}
        body = to_json({"detail": str(error).encode("utf-8", "backslashreplace").decode(), **words})
    return Response(body, status_code=error.http_status, headers=headers, media_type="application/json")


def refusal_headers(error: EnvHiveError) -> dict[str, str]:
    """Says to a proxy that another server may have room: nothing has happened here."""
    elsewhere = isinstance(error, (SessionCapacityError, DrainingError)) and not isinstance(error, QuotaExceededError)
    return {REFUSED_HEADER: error.code} if elsewhere else {}


async def _refuse(error: EnvHiveError, scope: Scope, receive: Receive, send: Send) -> None:
    count_refusal_at_gate(error)
    if scope["type"] == "http" or "websocket.http.response" in (scope.get("extensions") or {}):
        await error_response(error)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})


def _is_allowed_by_app(app: Any, origin: str) -> bool:
    """Whether the author of the app has said, by a CORS middleware, that pages of this origin may use it."""
    return any(
        each.cls is CORSMiddleware and CORSMiddleware(app, *each.args, **each.kwargs).is_allowed_origin(origin)
        for each in getattr(app, "user_middleware", ())
    )


def _too_large(limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"The request's body is larger than {limit} bytes")


def _needs_no_token(scope: Scope, headers: Headers) -> bool:
    if scope["type"] == "websocket":
        return False
    if scope["method"] == "OPTIONS":  # a browser asks first, and sends its token only then
        return "origin" in headers and "access-control-request-method" in headers
    path: str = scope["path"]
    return scope["method"] in _READS and path.removeprefix(scope.get("root_path", "")) == _OPEN


def _take_token_from_query(scope: Scope) -> str:
    """The `token` of a query string, which is taken out of it: servers log the rest."""
    query: bytes = scope.get("query_string", b"")
    if b"token" not in query and b"%" not in query:
        return ""
    fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    found = [value for name, value in fields if name == "token"]
    if found:
        kept = [(name, value) for name, value in fields if name != "token"]
        scope["query_string"] = urlencode(kept, encoding="latin-1").encode()
    return found[0] if found else ""
