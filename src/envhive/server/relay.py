"""HTTP requests that belong to another worker, passed on to it over a Unix socket."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httptools
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from envhive.errors import DrainingError, SessionError, SessionNotFoundError
from envhive.server.gate import error_response
from envhive.server.hangups import CLIENT_GONE, hung_up
from envhive.server.newcomers import Way

_CHUNK: Final = 65536
_BETWEEN_NEIGHBOURS: Final = frozenset(
    {b"connection", b"content-length", b"expect", b"keep-alive", b"te", b"transfer-encoding", b"upgrade"}
)
"""Headers that are about a connection, and not passed on to the next."""


def is_relayed(scope: Scope) -> bool:
    """Whether a request came from another worker, which it must not go back to."""
    server = scope.get("server")
    return server is not None and server[1] is None


class Relayed(Response):
    """Another worker's answer to a request, as it comes. `named` says whether the request is about a session there."""

    def __init__(self, way: Way, body: bytes, *, named: bool = True) -> None:
        super().__init__()
        self._way = way
        self._content = body
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._way.path))
        except OSError:
            self._way.arrived()  # as far as it will ever get
            gone: SessionError = DrainingError("The worker that had room for a session has just ended: try again")
            if self._named:
                gone = SessionNotFoundError("The worker that had this session is gone, and the session with it")
            await error_response(gone)(scope, receive, send)
            return
        answer = _Answer()
        leaving = asyncio.ensure_future(hung_up(scope, receive))
        try:
            await asyncio.sleep(0)  # so that a client that has gone by now is noticed
            if leaving.done() and not self._named:  # or a session might begin there before that worker has noticed
                await Response(status_code=CLIENT_GONE)(scope, receive, send)
                return
            writer.write(_head(scope, len(self._content)) + self._content)
            if not self._named:
                leaving.add_done_callback(lambda _: writer.close())
            while not answer.has_begun:
                answer.feed(await reader.read(_CHUNK))
            self._way.arrived()
            # What a session is asked for is done, whoever waits for it: only a stream is of no use to others.
            leaving.add_done_callback(lambda _: writer.close())
            await answer.send_on(reader, send)
        except (OSError, httptools.HttpParserError):
            if not answer.has_begun:
                lost: SessionError = DrainingError("The worker that had room for a session has just ended: try again")
                if self._named:
                    lost = SessionError("The worker that has this session did not answer: it may have ended")
                await error_response(lost)(scope, receive, send)
            # Otherwise the server sees an answer without an end, and cuts the connection: the client cannot mistake it.
        finally:
            self._way.arrived()
            leaving.cancel()
            writer.close()


def _head(scope: Scope, length: int) -> bytes:
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if scope.get("query_string"):
        target += b"?" + scope["query_string"]
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode(), target)]
    lines += [b"%s: %s" % (name, value) for name, value in scope["headers"] if name not in _BETWEEN_NEIGHBOURS]
    lines += [b"content-length: %d" % length, b"connection: close", b"", b""]
    return b"\r\n".join(lines)


class _Answer:
    """An HTTP response on its way, as ASGI messages."""

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[dict[str, Any]] = []
        self.has_begun = self.is_complete = False

    def feed(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError
        self._parser.feed_data(data)

    async def send_on(self, reader: asyncio.StreamReader, send: Send) -> None:
        """Send what is there, and the rest as it comes."""
        while True:
            messages, self._messages = self._messages, []
            for message in messages:
                await send(message)
            if self.is_complete:
                return
            self.feed(await reader.read(_CHUNK))

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" or name not in (*_BETWEEN_NEIGHBOURS, b"date"):  # this worker adds the date itself
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.has_begun = True
        status = self._parser.get_status_code()
        self._messages.append({"type": "http.response.start", "status": status, "headers": self._headers})

    def on_body(self, body: bytes) -> None:
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        self.is_complete = True
        self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})
