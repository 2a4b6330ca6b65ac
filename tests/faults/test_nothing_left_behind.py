"""Clients that come and go in every bad way there is: afterwards the server is as it was before."""

from __future__ import annotations

import base64
import os
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from envhive import GenericEnvClient
from tests.support.processes import ServerProcess, envhive_serve
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

dice = random.Random(5)


def dial(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def hang_up(sock: socket.socket) -> None:
    if dice.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
    sock.close()


def upgraded(server: ServerProcess) -> socket.socket:
    sock = dial(server)
    key = base64.b64encode(dice.randbytes(16)).decode()
    sock.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(4096)
    assert b" 101 " in head.split(b"\r\n")[0]
    return sock


def frame(text: bytes) -> bytes:
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text


def open_and_drop(server: ServerProcess) -> None:
    hang_up(dial(server))


def upgrade_and_drop(server: ServerProcess) -> None:
    hang_up(upgraded(server))


def reset_and_drop(server: ServerProcess) -> None:
    sock = upgraded(server)
    sock.sendall(frame(b'{"type":"reset"}'))
    sock.recv(10)
    hang_up(sock)


def drop_in_the_middle_of_a_step(server: ServerProcess) -> None:
    sock = upgraded(server)
    sock.sendall(frame(b'{"type":"step","data":{"wait_seconds":0.05}}'))
    hang_up(sock)


def drop_in_the_middle_of_a_frame(server: ServerProcess) -> None:
    sock = upgraded(server)
    whole = frame(b'{"type":"reset"}')
    sock.sendall(whole[: dice.randrange(1, len(whole))])
    hang_up(sock)


def garbage_before_the_upgrade(server: ServerProcess) -> None:
    sock = dial(server)
    sock.sendall(dice.randbytes(dice.randrange(1, 3000)))
    hang_up(sock)


def garbage_after_the_upgrade(server: ServerProcess) -> None:
    sock = upgraded(server)
    sock.sendall(dice.randbytes(dice.randrange(1, 3000)))
    hang_up(sock)


def belongings(server: ServerProcess) -> dict[str, int]:
    process = Path(f"/proc/{server.process.pid}")
    return {"descriptors": len(os.listdir(process / "fd")), "threads": len(os.listdir(process / "task"))}


def play(server: ServerProcess) -> None:
    with GenericEnvClient(server.url).sync() as env:
        env.reset()
        assert env.step({"wait_seconds": 0}).reward == 0


@pytest.mark.parametrize("target", ["benchmark", "benchmark-async"])
def test_after_clients_of_every_bad_kind_the_server_is_as_before(target: str) -> None:
    bad: list[tuple[Callable[[ServerProcess], None], int]] = [
        (open_and_drop, 5000),
        (upgrade_and_drop, 500),
        (reset_and_drop, 300),
        (drop_in_the_middle_of_a_step, 300),
        (drop_in_the_middle_of_a_frame, 300),
        (garbage_before_the_upgrade, 500),
        (garbage_after_the_upgrade, 300),
    ]
    with envhive_serve(target, "--max-sessions", "400", "--log-level", "error") as server:
        for _ in range(100):
            reset_and_drop(server)  # what the server starts once, such as its pool of threads, is there now
        eventually(lambda: server.health()["active_sessions"] == 0, within=30)
        before = belongings(server)
        for visit, times in bad:
            for _ in range(times):
                visit(server)
            eventually(lambda: server.health()["active_sessions"] == 0, within=30)
            eventually(lambda: belongings(server)["descriptors"] <= before["descriptors"] + 3, within=30)
            play(server)
        eventually(lambda: belongings(server)["threads"] <= max(before["threads"], 70), within=30)
        assert server.health()["status"] in ("healthy", "degraded")
