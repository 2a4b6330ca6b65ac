"""What the lab tells its load processes, and what they answer. Times are on the clock all processes share."""

from __future__ import annotations

import time
from array import array
from typing import Final, Literal

import msgspec

Mode = Literal["ws", "http"]

clock: Final = time.monotonic
"""One clock for every process of a machine, so that all can begin at the same moment."""


class Storm(msgspec.Struct, tag=True, frozen=True):
    """Open sessions all at once; each resets, steps once and closes."""

    url: str
    sessions: int
    action: str
    mode: Mode
    begin_at: float
    timeout_s: float
    sources: list[str] = []


class Open(msgspec.Struct, tag=True, frozen=True):
    """Open sessions that stay, and reset each."""

    url: str
    sessions: int
    at_once: int
    timeout_s: float
    sources: list[str] = []


class Drive(msgspec.Struct, tag=True, frozen=True):
    """Step the sessions that are open, and measure from `begin_at` for `seconds`.

    With a `rate`, steps are sent at fixed moments, `first_at` seconds after the beginning and then one each
    1 / rate seconds, whether or not the server keeps up; without one, each session sends when the last is answered.
    """

    action: str
    warm_up_at: float
    begin_at: float
    seconds: float
    think_s: float = 0.0
    rate: float | None = None
    first_at: float = 0.0
    drain_s: float = 5.0


class Close(msgspec.Struct, tag=True, frozen=True):
    """Close the sessions that are open."""

    timeout_s: float


class Cut(msgspec.Struct, tag=True, frozen=True):
    """End the window that is being measured at this moment, and tell of it."""

    at: float


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Leave off what is being done."""


Job = Storm | Open | Drive | Close | Cut | Stop


class Progress(msgspec.Struct, tag=True, frozen=True):
    """How far the job has come, every so often."""

    done: int
    failed: int


class Stormed(msgspec.Struct, tag=True, frozen=True):
    """What became of a storm: the durations of the sessions that got through, and why the others did not."""

    connect: bytes
    reset: bytes
    step: bytes
    whole: bytes
    errors: dict[str, int]
    ended_at: float
    cpu_s: float
    said: dict[str, str] = {}
    """The server's own words for each kind of error."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    durations: bytes
    errors: dict[str, int]
    ended_at: float
    cpu_s: float
    said: dict[str, str] = {}


class Driven(msgspec.Struct, tag=True, frozen=True):
    """What the window brought to light."""

    steps: int
    """Answered well, within the window."""
    latencies: bytes
    errors: dict[str, int]
    well: int
    """Steps that the window has to tell of and that were answered well, in the end."""
    failed: int
    """Those that were answered with an error."""
    unanswered: int
    """Steps that were due in the window and had no answer when the patience for them ended."""
    lost: int
    """Sessions whose connection was lost."""
    cpu_s: float
    """Of the load process, within the window."""
    lag: bytes
    """How late each step was sent for the load process's own fault (open loop)."""
    said: dict[str, str] = {}


class Closed(msgspec.Struct, tag=True, frozen=True):
    pass


Answer = Progress | Stormed | Opened | Driven | Closed


def pack(values: array[float]) -> bytes:
    """Durations as they travel: a window has half a million of them, four bytes each."""
    return values.tobytes()


def unpack(data: bytes) -> array[float]:
    values = array("f")
    values.frombytes(data)
    return values


def durations() -> array[float]:
    return array("f")


encode_job: Final = msgspec.msgpack.Encoder().encode
decode_job: Final = msgspec.msgpack.Decoder(Job).decode
encode_answer: Final = msgspec.msgpack.Encoder().encode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
