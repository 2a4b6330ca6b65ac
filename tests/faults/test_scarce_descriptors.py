"""More clients than the system gives the server descriptors for: those that are in go on, and others come in later."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support import raw
from tests.support.belongings import Tally, nothing_left_behind
from tests.support.processes import ServerProcess, envhive_serve

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
FILES: Final = 64
ENOUGH: Final = 12
"""Newcomers that are turned away, until it is plain that there is no room."""


def come_in(port: int) -> raw.Player | str:
    """A client with a session, or how it was refused one."""
    try:
        player = raw.Player(raw.upgraded(port, timeout=1))
    except OSError as error:
        return "waited" if isinstance(error, TimeoutError) else "hung up on"
    try:
        reply = player.ask({"type": "reset"})
    except OSError as error:
        player.close()
        return type(error).__name__
    if reply["type"] == "error":
        player.close()
        return str(reply["data"]["code"])
    return player


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("workers", [1, 2])
def test_without_descriptors_sessions_go_on_and_newcomers_find_room_later(
    workers: int, isolation: str, tmp_path: Path
) -> None:
    options = ("--workers", str(workers), "--isolation", isolation, "--max-sessions", "500", "--log-level", "error")
    limit = {"cwd": ROOT, "log": tmp_path / "log", "most_files": FILES}
    with envhive_serve("tests.support.wild:Wild", *options, **limit) as server:  # type: ignore[arg-type]
        crowd_in(server)  # what is opened once is open now
        what = f"more clients than descriptors, {workers} worker(s), {isolation}"
        with nothing_left_behind(server, what) as tally:
            for _ in range(2):
                counts = crowd_in(server)
                tally.counts += counts
                assert counts["answered"] > 10 * workers
                assert sum(counts.values()) - counts["answered"] > 0
        later = come_in(server.port)
        assert isinstance(later, raw.Player), later
        later.close()


def crowd_in(server: ServerProcess) -> Counter[str]:
    """Come with more clients than there can be, step with those who came in, and leave."""
    tally = Tally()
    with ExitStack() as stack:
        crowd = stack.enter_context(ThreadPoolExecutor(ENOUGH))  # who has to wait does so beside the others
        players: list[raw.Player] = []
        turned_away = 0
        while turned_away < ENOUGH:
            for newcomer in crowd.map(come_in, [server.port] * ENOUGH):
                if isinstance(newcomer, str):
                    tally.failed(newcomer)
                    turned_away += 1
                else:
                    tally.answered()
                    stack.callback(newcomer.close)
                    players.append(newcomer)
            assert len(players) < 3 * FILES, "the limit was never reached"
        for number in (1, 2, 3):
            for player in players:
                assert player.add() == number
                tally.answered()
    return tally.counts
