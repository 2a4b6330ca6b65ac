"""Frames of every kind, right and wrong: each well-formed request has one reply, and nothing else comes of it."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import raw
from tests.support.envs import counting
from tests.support.servers import Lane, Running, serving

pytestmark = pytest.mark.slow

BOUNDED: Final = settings(
    max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
PING, PONG, CONTINUATION, BINARY = 0x9, 0xA, 0x0, 0x2
LAST: Final = json.dumps({"type": "state"}).encode()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
requests = st.one_of(
    st.just({"type": "reset"}),
    st.builds(lambda seed: {"type": "reset", "data": {"seed": seed}}, st.integers(0, 1000)),
    st.builds(lambda by: {"type": "step", "data": {"by": by}}, st.integers(-5, 20)),
    st.just({"type": "state"}),
    st.builds(lambda data: {"type": "step", "data": data}, json_values),
    st.builds(lambda kind, data: {"type": kind, "data": data}, st.text(max_size=8), json_values),
    json_values,
).filter(lambda message: not (isinstance(message, dict) and message.get("type") == "close"))


@dataclass(frozen=True)
class Message:
    """Bytes that are one message, and whether that is one the server can only answer."""

    data: bytes
    replies: int


def in_parts(payload: bytes, cuts: list[int], opcode: int, pings: bool) -> bytes:
    """A message in several frames, with pings in between or not."""
    places = sorted({min(cut, len(payload)) for cut in cuts})
    pieces = [payload[begin:end] for begin, end in zip([0, *places], [*places, len(payload)], strict=True)]
    sent = b""
    for number, piece in enumerate(pieces):
        kind = opcode if number == 0 else CONTINUATION
        sent += raw.frame(piece, kind, final=number == len(pieces) - 1, mask=os.urandom(4))
        sent += raw.frame(b"there?", PING) if pings else b""
    return sent


@st.composite
def good_messages(draw: st.DrawFn) -> Message:
    """What must have one reply: any text that is UTF-8, and anything binary."""
    text = draw(requests.map(json.dumps))
    if draw(st.booleans()):
        at, by = draw(st.integers(0, len(text))), draw(st.text(max_size=3))
        text = text[:at] + by + text[at + draw(st.integers(0, 3)) :]  # most likely no JSON any more
    if '"close"' in text or "\\u" in text:
        text = "{"
    opcode = draw(st.sampled_from([raw.TEXT, raw.TEXT, raw.TEXT, BINARY]))
    payload = text.encode(errors="replace")
    cuts = draw(st.lists(st.integers(0, 40), max_size=3))
    return Message(in_parts(payload, cuts, opcode, draw(st.booleans())), 1)


control = st.builds(
    lambda payload, opcode: Message(raw.frame(payload, opcode), 0),
    st.binary(max_size=125),
    st.sampled_from([PING, PONG]),
)

wrong = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.binary(min_size=1, max_size=30).map(lambda payload: bytes([0x81, len(payload)]) + payload),  # not masked
    st.binary(min_size=1, max_size=30).map(lambda payload: raw.frame(b"\xff\xfe" + payload)),  # no UTF-8
    st.integers(2**31, 2**64 - 1).map(lambda size: b"\x81\xff" + size.to_bytes(8, "big") + b"\0\0\0\0abc"),
    st.sampled_from([0x3, 0x7, 0xB, 0xF]).map(lambda opcode: raw.frame(b"{}", opcode)),
    st.just(raw.frame(b"{}", CONTINUATION)),
    st.just(raw.frame(b"x" * 126, PING)),
    st.just(raw.frame(b"{", raw.TEXT, final=False) + raw.frame(b"{}", raw.TEXT)),
    st.just(b"\xf1" + raw.frame(b"{}")[1:]),  # reserved bits
)


@contextmanager
def fuzzed(lane: Lane, caplog: pytest.LogCaptureFixture) -> Iterator[Running]:
    """A server of which nothing is left, and that had no error of its own, when this ends."""
    config = {"max_message_size": 100_000}
    with caplog.at_level(logging.ERROR), serving(counting(), lane, config=config, max_concurrent_envs=50) as server:
        yield server
        server.wait_until_empty()
        with raw.upgraded(server.port) as sock:
            assert replies_to(sock, b"", 0) == []
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR and is_ours(record)]


def is_ours(record: logging.LogRecord) -> bool:
    """Not what an environment raised, which is logged and answered, nor what uvicorn itself says of bad text."""
    return record.name != "envhive.environment" and not record.getMessage().startswith("Invalid UTF-8 sequence")


def replies_to(sock: socket.socket, data: bytes, count: int) -> list[dict[str, Any]]:
    """Send bytes, read so many replies, and see that the next one is that to a last request."""
    sock.sendall(data + raw.frame(LAST))
    with raw.Frames(sock) as frames:
        found = [json.loads(frames.read_text()) for _ in range(count)]
        last = json.loads(frames.read_text())
    assert last["type"] in ("state", "error")
    return found


@pytest.mark.parametrize("lane", ["fast", "asgi"])
def test_every_message_has_one_reply(lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    with fuzzed(lane, caplog) as server:

        @BOUNDED
        @given(st.lists(good_messages() | control, min_size=1, max_size=8))
        def talk(messages: list[Message]) -> None:
            with raw.upgraded(server.port, timeout=10) as sock:
                sock.sendall(raw.frame(b'{"type":"reset"}'))
                expected = sum(message.replies for message in messages) + 1
                for reply in replies_to(sock, b"".join(message.data for message in messages), expected):
                    assert reply["type"] in ("observation", "state", "mcp", "error")

        talk()


@pytest.mark.parametrize("lane", ["fast", "asgi"])
def test_whatever_is_wrong_ends_its_own_connection_at_most(lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    with fuzzed(lane, caplog) as server, raw.upgraded(server.port) as bystander:

        @BOUNDED
        @given(st.lists(good_messages(), max_size=2), wrong, st.binary(max_size=40))
        def disturb(before: list[Message], bad: bytes, after: bytes) -> None:
            with raw.upgraded(server.port, timeout=10) as sock:
                sock.sendall(b"".join(message.data for message in before) + bad + after)
            assert replies_to(bystander, b"", 0) == []

        disturb()
