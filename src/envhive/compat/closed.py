"""A lost connection, as code that was written for OpenEnv's client looks for it."""

from __future__ import annotations

from typing import Final, Self

from websockets import exceptions  # also so that `import websockets` is enough for it, as beside OpenEnv's client
from websockets.frames import Close

from envhive.errors import ConnectionLostError

_CUT: Final = 1006
"""The code of a connection that ended without one."""


class ConnectionClosedError(ConnectionLostError, exceptions.ConnectionClosedError):
    """The connection was lost: what loops catch that try again, by its name or as the class of websockets."""

    @classmethod
    def of(cls, lost: ConnectionLostError) -> Self:
        error = cls(lost.message, lost.close_code, lost.close_reason)
        error.rcvd = None if lost.close_code is None else Close(lost.close_code, lost.close_reason)
        error.sent = error.rcvd_then_sent = None
        return error

    @property
    def code(self) -> int:  # type: ignore[override]  # a number, as there
        return _CUT if self.close_code is None else self.close_code

    @property
    def reason(self) -> str:
        return self.close_reason
