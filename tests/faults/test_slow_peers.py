"""Peers that do not read, or write a byte at a time: the server waits for them without paying for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from envhive import GenericEnvClient
from tests.support import raw
from tests.support.belongings import MEGABYTE, Belongings, Tally, nothing_left_behind
from tests.support.processes import envhive_serve
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
ANSWER: Final = 2000
"""Bytes of the answers that nobody reads."""
MOST_EACH: Final = 2 * MEGABYTE
"""What a peer that does not read may cost: 64 requests, two buffers of 64 kB, and what the allocator makes of it."""
REQUEST: Final = raw.frame(json.dumps({"type": "step", "data": {"do": "echo", "text": "x" * ANSWER}}).encode())


@contextmanager
def serving(tmp_path: Path, *options: str) -> Iterator[Any]:
    with envhive_serve("tests.support.wild:Wild", *options, cwd=ROOT, log=tmp_path / "log") as server:
        yield server


class Neighbour:
    """A client that steps all the while; how long its slowest step took, and how many there were."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self.slowest = 0.0
        self.steps = 0

    def _play(self) -> None:
        with GenericEnvClient(self._url).sync() as env:
            env.reset(seed=0)
            while not self._is_over.is_set():
                began = time.monotonic()
                assert env.step({"do": "add"}).observation["total"] == self.steps + 1
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.steps += 1

    @contextmanager
    def playing(self, tally: Tally) -> Iterator[None]:
        failures: list[BaseException] = []

        def play() -> None:
            try:
                self._play()
            except BaseException as error:  # it is raised again where the test sees it
                failures.append(error)

        thread = threading.Thread(target=play)
        thread.start()
        try:
            eventually(lambda: self.steps or failures)
            yield
        finally:
            self._is_over.set()
            thread.join()
        if failures:
            raise failures[0]
        tally.answered(self.steps)


class Clogged:
    """A peer that sends requests and reads nothing: how many are on their way, and the rest of the last one."""

    def __init__(self, port: int) -> None:
        self.sock = raw.upgraded(port)
        self.sock.setblocking(False)
        self.sent = 0
        self.rest = b""

    def send_more(self) -> bool:
        """Send what can be sent; whether that was anything."""
        before = self.sent, self.rest
        with contextlib.suppress(BlockingIOError):
            while True:
                if not self.rest:
                    self.sent, self.rest = self.sent + 1, REQUEST
                self.rest = self.rest[self.sock.send(self.rest) :]
        return (self.sent, self.rest) != before


def clog(port: int, count: int) -> list[Clogged]:
    """So many peers that send and do not read, until none of them can send any more."""
    peers = [Clogged(port) for _ in range(count)]
    last_progress = time.monotonic()
    while time.monotonic() - last_progress < 0.5:
        could_send = [peer.send_more() for peer in peers]
        if any(could_send):
            last_progress = time.monotonic()
        time.sleep(0.01)
    for peer in peers:
        peer.sock.settimeout(20)
    return peers


def test_peers_that_do_not_read_cost_little_memory_and_nobody_else_anything(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        fresh = Belongings.of(server).own_memory
        for peer in clog(server.port, 5):
            raw.hang_up(peer.sock)  # the allocator keeps what was once needed, and uses it again
        neighbour = Neighbour(server.url)
        with nothing_left_behind(server, "5 slow readers") as tally, neighbour.playing(tally):
            readers = clog(server.port, 5)
            assert sum(reader.sent for reader in readers) * ANSWER > 10 * MEGABYTE, "it was never really full"
            assert Belongings.of(server).own_memory - fresh < len(readers) * MOST_EACH
            began = neighbour.steps
            eventually(lambda: neighbour.steps > began + 50)
            assert neighbour.slowest < 2
            for reader in readers:
                rest = reader.rest + raw.frame(b'{"type":"state"}')
                sender = threading.Thread(target=reader.sock.sendall, args=(rest,))
                sender.start()  # it can go when replies are read
                with raw.Frames(reader.sock) as frames:
                    for _ in range(reader.sent):
                        assert len(json.loads(frames.read_text())["data"]["observation"]["found"]) == ANSWER
                    assert json.loads(frames.read_text())["type"] == "state", "there were more replies than requests"
                sender.join()
                tally.answered(reader.sent + 1)
                raw.hang_up(reader.sock)


def test_a_peer_that_never_reads_is_given_up(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--ping-interval", "0.5", "--ping-timeout", "1") as server,
        nothing_left_behind(server, "a reader that never reads"),
    ):
        (peer,) = clog(server.port, 1)
        eventually(lambda: server.health()["active_sessions"] == 0)
        raw.hang_up(peer.sock)


def test_pings_whose_answers_nobody_reads_are_not_answered_for_ever(tmp_path: Path) -> None:
    ping = raw.frame(b"x" * 125, raw.PING)
    with serving(tmp_path) as server:
        player = raw.Player(raw.upgraded(server.port))
        assert player.ask({"type": "reset"})["type"] == "observation"
        fresh = Belongings.of(server).own_memory
        pings = 60 * MEGABYTE // len(ping)
        for _ in range(pings // 1000):
            player.send(ping * 1000)
        assert player.add() == 1  # a session is none the worse for it
        assert 0 < player.pongs < pings / 2, "answers were kept for a peer that reads none"
        assert Belongings.of(server).own_memory - fresh < MOST_EACH
        player.send(raw.frame(b"there?", raw.PING))
        assert player.hear_pong() == b"there?"
        player.close()


def test_a_message_in_tiny_parts_takes_the_memory_of_what_is_in_it(tmp_path: Path) -> None:
    part, parts = raw.frame(b"xy", 0, final=False), 400_000
    with serving(tmp_path) as server:
        player = raw.Player(raw.upgraded(server.port))
        player.ask({"type": "reset"})
        fresh = Belongings.of(server).own_memory
        player.send(raw.frame(b'{"type":"step","data":{"do":"echo","text":"', final=False))
        for _ in range(parts // 1000):
            player.send(part * 1000)
        neighbour = raw.Player(raw.upgraded(server.port))
        assert neighbour.ask({"type": "reset"})["type"] == "observation"
        assert Belongings.of(server).own_memory - fresh < 4 * MEGABYTE
        player.send(raw.frame(b'"}}', 0))
        assert player.hear()["data"]["observation"]["found"] == "xy" * parts
        player.close()
        neighbour.close()


async def a_byte_at_a_time(port: int, data: bytes, pause_s: float) -> tuple[asyncio.StreamReader, Any]:
    """Send something as slowly as that, on a connection of its own, until the server has enough of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await asyncio.sleep(pause_s)
        if reader.at_eof() or reader.exception() is not None:
            break
    return reader, writer


def test_frames_that_come_a_byte_at_a_time_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        conversation = raw.upgrade_request(server.port) + b"".join(
            raw.frame(text, mask=os.urandom(4)) for text in (b'{"type":"reset"}', b'{"type":"step","data":{"by":5}}')
        )

        async def slow(tally: Tally) -> None:
            reader, writer = await a_byte_at_a_time(server.port, conversation, 0.003)
            answer = b""
            while answer.count(b'"observation"') < 4:  # the type, and the field
                more = await asyncio.wait_for(reader.read(4096), 10)
                assert more, f"it hung up after {answer!r}"
                answer += more
            assert b'"total":5' in answer
            writer.close()
            tally.answered(2)

        async def all_of_them(tally: Tally) -> None:
            await asyncio.gather(*(slow(tally) for _ in range(20)))

        neighbour = Neighbour(server.url)
        with nothing_left_behind(server, "20 slow writers of frames") as tally, neighbour.playing(tally):
            asyncio.run(all_of_them(tally))
        assert neighbour.slowest < 2


def test_heads_that_come_a_byte_at_a_time_get_their_time_and_no_more(tmp_path: Path) -> None:
    with serving(tmp_path, "--head-timeout", "1") as server:
        head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"

        async def in_time(tally: Tally) -> None:
            reader, writer = await a_byte_at_a_time(server.port, head, 0.003)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
            await reader.read()
            writer.close()
            tally.answered()

        async def too_slow(tally: Tally) -> None:
            began = time.monotonic()
            reader, writer = await a_byte_at_a_time(server.port, head, 0.1)
            try:
                assert await asyncio.wait_for(reader.read(), 10) == b""
            except ConnectionError:
                pass
            assert time.monotonic() - began < 4
            writer.close()
            tally.failed("cut off")

        async def all_of_them(tally: Tally) -> None:
            await asyncio.gather(*(in_time(tally) for _ in range(20)), *(too_slow(tally) for _ in range(50)))

        neighbour = Neighbour(server.url)
        with nothing_left_behind(server, "70 slow writers of heads") as tally, neighbour.playing(tally):
            asyncio.run(all_of_them(tally))
        assert tally.counts["cut off"] == 50
        assert neighbour.slowest < 2
