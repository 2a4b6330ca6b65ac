"""Clients that come and go in every bad way there is: afterwards the server is as it was before."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from envhive import GenericEnvClient
from tests.support import raw
from tests.support.belongings import POOL, TOLERANCE, nothing_left_behind
from tests.support.processes import ServerProcess, envhive_serve

pytestmark = pytest.mark.integration

dice = random.Random(5)

RESET = raw.frame(b'{"type":"reset"}')


def hang_up(sock: raw.socket.socket) -> None:
    raw.hang_up(sock, hard=dice.random() < 0.5)


def open_and_drop(port: int) -> None:
    hang_up(raw.dial(port))


def upgrade_and_drop(port: int) -> None:
    hang_up(raw.upgraded(port))


def reset_and_drop(port: int) -> None:
    sock = raw.upgraded(port)
    sock.sendall(RESET)
    sock.recv(10)
    hang_up(sock)


def drop_in_the_middle_of_a_step(port: int) -> None:
    sock = raw.upgraded(port)
    sock.sendall(raw.frame(b'{"type":"step","data":{"wait_seconds":0.05}}'))
    hang_up(sock)


def drop_in_the_middle_of_a_frame(port: int) -> None:
    sock = raw.upgraded(port)
    sock.sendall(RESET[: dice.randrange(1, len(RESET))])
    hang_up(sock)


def garbage_before_the_upgrade(port: int) -> None:
    sock = raw.dial(port)
    sock.sendall(dice.randbytes(dice.randrange(1, 3000)))
    hang_up(sock)


def garbage_after_the_upgrade(port: int) -> None:
    sock = raw.upgraded(port)
    sock.sendall(dice.randbytes(dice.randrange(1, 3000)))
    hang_up(sock)


def an_oversized_header(port: int) -> None:
    sock = raw.dial(port)
    try:
        sock.sendall(raw.upgrade_request(port, "/ws", "X-Long: " + "x" * 100_000))
        assert b" 431 " in sock.recv(100)
    except ConnectionError:
        pass  # the answer was overtaken by the end of the connection
    hang_up(sock)


BAD: list[tuple[Callable[[int], None], int]] = [
    (open_and_drop, 10_000),
    (upgrade_and_drop, 500),
    (reset_and_drop, 300),
    (drop_in_the_middle_of_a_step, 300),
    (drop_in_the_middle_of_a_frame, 300),
    (garbage_before_the_upgrade, 500),
    (garbage_after_the_upgrade, 300),
    (an_oversized_header, 300),
]


def play(server: ServerProcess) -> None:
    with GenericEnvClient(server.url).sync() as env:
        env.reset()
        assert env.step({"wait_seconds": 0}).reward == 0


@pytest.mark.parametrize("target", ["benchmark", "benchmark-async"])
def test_after_clients_of_every_bad_kind_the_server_is_as_before(target: str, tmp_path: Path) -> None:
    pool = POOL if target == "benchmark-async" else TOLERANCE
    options = ("--max-sessions", "400", "--log-level", "error")
    with envhive_serve(target, *options, log=tmp_path / "log") as server:
        for visit, times in [(drop_in_the_middle_of_a_step, 300), (open_and_drop, 300)]:
            for _ in range(times):
                visit(server.port)  # what the server starts once, such as its pool of threads, is there now
        for visit, times in BAD:
            what = f"{times:,} × {visit.__name__.replace('_', ' ')} ({target})"
            with nothing_left_behind(server, what, threads=pool) as tally:
                for _ in range(times):
                    visit(server.port)
                play(server)
                tally.answered(2)
        assert server.health()["status"] in ("healthy", "degraded")
        assert "Traceback" not in (tmp_path / "log").read_text()
