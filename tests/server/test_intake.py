"""Connections that send no request, or a bad one, are cut; the others notice nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from envhive import create_app
from envhive.server.config import ServerConfig
from envhive.server.intake import Intake
from tests.support.envs import Move, Seen, counting
from tests.support.servers import Running, eventually, reset, running, step

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE = 10.0


@contextmanager
def limited(**limits: Any) -> Iterator[tuple[Running, Intake]]:
    """A server with limits, as `envhive serve` makes it."""
    intake = Intake(ServerConfig(**limits))
    with running(create_app(counting(), Move, Seen), "fast", **intake.protocols) as server:
        yield server, intake
        eventually(lambda: intake.pending == 0)


@contextmanager
def dialled(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
        yield sock


def rest_of(sock: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            received += data
    return received


def reply_on(sock: socket.socket) -> bytes:
    """The status line of a reply, whose body is read too."""
    received = b""
    while not received.endswith(b"}"):
        data = sock.recv(65536)
        assert data, f"the server hung up after {received!r}"
        received += data
    return received.split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: local", b"\r\n"])
def test_a_connection_that_sends_no_complete_head_is_cut(sent: bytes) -> None:
    with limited(head_timeout=0.2) as (server, _), dialled(server) as sock:
        sock.sendall(sent)
        assert rest_of(sock) == b""


def test_a_byte_now_and_then_does_not_help() -> None:
    with limited(head_timeout=0.3) as (server, _), dialled(server) as sock:
        sock.settimeout(0.02)
        began = time.monotonic()
        cut = False
        while not cut:
            assert time.monotonic() < began + PATIENCE
            try:
                sock.sendall(b"X")
                cut = sock.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                cut = True


def test_nor_does_it_between_two_requests() -> None:
    with limited(head_timeout=0.3) as (server, _), dialled(server) as sock:
        sock.sendall(REQUEST)
        assert reply_on(sock) == b"HTTP/1.1 200 OK"
        sock.sendall(b"\r\n")
        assert rest_of(sock) == b""


def test_a_slow_head_that_is_complete_in_time_is_answered_and_the_time_begins_anew() -> None:
    with limited(head_timeout=PATIENCE) as (server, intake), dialled(server) as sock:
        for _ in range(3):
            for byte in REQUEST:
                sock.sendall(bytes([byte]))
            assert reply_on(sock) == b"HTTP/1.1 200 OK"
            assert intake.pending == 0


def test_a_session_outlives_the_time_for_its_head() -> None:
    with limited(head_timeout=0.2) as (server, intake), server.connect() as ws:
        reset(ws)
        eventually(lambda: intake.pending == 0)
        with dialled(server) as later:
            assert rest_of(later) == b""
        assert step(ws)["type"] == "observation"


CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'


def test_a_body_that_stalls_is_cut() -> None:
    with limited(head_timeout=0.2) as (server, _), dialled(server) as sock:
        sock.sendall(b"POST /mcp HTTP/1.1\r\nContent-Length: 100\r\n\r\n" + CALL)
        assert rest_of(sock) == b""


def test_a_body_that_comes_slowly_but_steadily_is_read() -> None:
    with limited(head_timeout=1.0) as (server, intake), dialled(server) as sock, dialled(server) as silent:
        sock.sendall(b"POST /mcp HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (len(CALL) + 200))
        silent.settimeout(0.05)
        began, left = time.monotonic(), 200
        while left:
            assert time.monotonic() < began + PATIENCE
            sock.sendall(b" ")
            left -= 1
            with contextlib.suppress(TimeoutError):
                assert silent.recv(1) == b""  # the other has been cut meanwhile
                break
        assert 0 < left < 200
        sock.sendall(b" " * left + CALL)
        assert reply_on(sock) == b"HTTP/1.1 200 OK"
        assert intake.pending == 0


def head_of(size: int) -> bytes:
    start = b"GET /health HTTP/1.1\r\n"
    lines = b"".join(b"X-%06d: %s\r\n" % (number, b"v" * 86) for number in range(size // 100))
    return start + lines


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "head",
    [head_of(80_000) + b"\r\n", head_of(80_000), b"GET /" + b"x" * 80_000, b"GET / HTTP/1.1\r\nX: " + b"y" * 80_000],
    ids=["complete", "endless", "path", "value"],
)
def test_a_head_that_is_too_large_is_431(head: bytes, at_once: bool) -> None:
    with limited() as (server, _), dialled(server) as sock:
        size = len(head) if at_once else 1000
        with contextlib.suppress(OSError):  # the server may have hung up before all is sent
            for start in range(0, len(head), size):
                sock.sendall(head[start : start + size])
        said = rest_of(sock)
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")


def test_the_answer_431_is_read_by_a_client_that_has_sent_it_all() -> None:
    with limited(max_head_size=1000) as (server, _), dialled(server) as sock:
        sock.sendall(head_of(2000) + b"\r\n")
        assert rest_of(sock).startswith(b"HTTP/1.1 431 ")


def test_a_large_head_within_the_limit_is_answered_and_so_is_a_large_body() -> None:
    with limited() as (server, _), dialled(server) as sock:
        sock.sendall(head_of(60_000) + b"\r\n")
        assert reply_on(sock) == b"HTTP/1.1 200 OK"
        body = b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * 300_000 + b'"}'
        sock.sendall(b"POST /mcp HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert reply_on(sock) == b"HTTP/1.1 200 OK"


def test_nonsense_is_still_400() -> None:
    with limited() as (server, _), dialled(server) as sock:
        sock.sendall(b"NONSENSE\r\n\r\n")
        assert rest_of(sock).startswith(b"HTTP/1.1 400 ")


def test_newcomers_beyond_the_pending_are_closed_until_there_is_room() -> None:
    with limited(max_pending_connections=3, head_timeout=PATIENCE) as (server, intake):
        with server.connect() as ws, ExitStack() as stack:
            reset(ws)
            pending = [stack.enter_context(dialled(server)) for _ in range(3)]
            eventually(lambda: intake.pending == 3)
            with dialled(server) as refused:
                assert rest_of(refused) == b""
            assert step(ws)["type"] == "observation"
            pending[0].sendall(REQUEST)
            assert reply_on(pending[0]) == b"HTTP/1.1 200 OK"
            with dialled(server) as welcome:
                welcome.sendall(REQUEST)
                assert reply_on(welcome) == b"HTTP/1.1 200 OK"
        eventually(lambda: intake.pending == 0)


def test_a_body_that_goes_on_after_its_refusal_is_cut() -> None:
    app = create_app(counting(), Move, Seen)
    intake = Intake(ServerConfig(head_timeout=0.3))
    with running(app, "fast", **intake.protocols) as server, dialled(server) as sock:
        sock.sendall(b"POST /nowhere HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert reply_on(sock) == b"HTTP/1.1 404 Not Found"
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while True:
                assert time.monotonic() < began + PATIENCE
                sock.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
