"""Layer 2 of the protocol, for one session: the kept reply, the resume token, and the lease.

A client numbers its requests and sends the next one when it has the reply to the last. So at most one reply can
be lost with a connection, and keeping the last one is enough: a request that comes a second time is answered from
it, and never runs twice.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any, Final

from pydantic_core import to_json

from envhive.errors import SessionError
from envhive.wire.codec import with_id

IN_FLIGHT: Final = 1
"""Requests without a reply that a client may have, if each is to be answered exactly once."""


class Extended:
    """What a session of layer 2 knows beyond one of layer 1."""

    __slots__ = ("_last_id", "_last_reply", "detached_at", "lease_s", "refused_id", "request_id", "token")

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        """How long the session waits for its client to come back."""
        self.token = secrets.token_urlsafe(24)
        self.request_id: int | str | None = None
        """Of the request that is being handled."""
        self.refused_id: int | str | None = None
        """Of a request that is answered without having been handled: nothing that need be remembered."""
        self.detached_at: float | None = None
        """When the connection was lost, until the client is back."""
        self._last_id: int | str | None = None
        self._last_reply = b""

    def kept_reply(self, request_id: int | str | None) -> bytes | None:
        """The reply to a request that was answered before; None for a new one."""
        if request_id is None or self._last_id is None:
            return None
        if request_id == self._last_id:
            return self._last_reply
        if isinstance(request_id, int) and isinstance(self._last_id, int) and request_id < self._last_id:
            raise SessionError(f"Request {request_id} was answered before, and its reply is no longer kept")
        return None

    def is_new(self, request_id: int | str | None) -> bool:
        """Whether it is a number that comes after the last one, as those of nearly all requests do."""
        last = self._last_id
        return type(request_id) is int and (last is None or (type(last) is int and request_id > last))

    def keep(self, reply: bytes) -> bytes:
        """Mark a reply with the id of its request, and remember it."""
        if self.refused_id is not None:
            refused, self.refused_id = self.refused_id, None
            return with_id(reply, refused)
        if self.request_id is None:
            return reply
        reply = with_id(reply, self.request_id)
        self._last_id, self._last_reply, self.request_id = self.request_id, reply, None
        return reply

    def admits(self, token: str) -> bool:
        """Whether `token` is the one that the client was given."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def hello(self, session_id: str, limits: dict[str, Any], *, resumed: bool) -> bytes:
        """The first frame of a connection."""
        return to_json(
            {
                "type": "hello",
                "session_id": session_id,
                "resume_token": self.token,
                "lease_s": self.lease_s,
                "resumed": resumed,
                "limits": {**limits, "in_flight": IN_FLIGHT},
            }
        )
