"""Where a session is in its life."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Phase(Enum):
    OPENING = auto()
    IDLE = auto()
    BUSY = auto()
    CLOSING = auto()
    CLOSED = auto()
    STUCK = auto()
    """Closed for all others, but its code still runs."""


# A name of the module is found in a tenth of the time that a member of an enum takes: 1 µs a step.
OPENING: Final = Phase.OPENING
IDLE: Final = Phase.IDLE
BUSY: Final = Phase.BUSY
CLOSING: Final = Phase.CLOSING
CLOSED: Final = Phase.CLOSED
STUCK: Final = Phase.STUCK
OVER: Final = (CLOSING, CLOSED, STUCK)
