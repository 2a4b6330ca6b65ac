"""The connection, as a session sees it, and the codes that it is closed with."""

from __future__ import annotations

from typing import Final, Protocol

from envhive.errors import EnvHiveError

NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
MESSAGE_TOO_BIG: Final = 1009
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013


class Outlet(Protocol):
    """Where a session's replies go."""

    def send(self, frame: bytes) -> None:
        """Send a text frame."""

    def close(self, code: int, reason: str) -> None:
        """Nothing more will be sent: close, after what was sent has gone out."""

    def refuse(self, error: EnvHiveError, code: int, *, asked: bool) -> None:
        """There will be no session: say why, and close when the client has heard it.

        A client that has not `asked` anything yet is about to. Its request must still find the connection
        open, or it sees a broken connection and never reads why.
        """

    def pause_reading(self) -> None:
        """Too many requests are waiting: read no more for now."""

    def resume_reading(self) -> None:
        """Read on."""

    def drop(self) -> None:
        """The session goes on with another connection: hang up, and forget it."""
