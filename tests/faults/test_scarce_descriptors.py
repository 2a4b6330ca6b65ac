"""More clients than the system gives the server descriptors for: those that are in go on, and others come in later."""

from __future__ import annotations

from collections import Counter
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


def came_in(port: int, stack: ExitStack, tally: Tally) -> raw.Player | None:
    """A client with a session, if it gets one; else how it was refused is noted."""
    try:
        player = raw.Player(raw.upgraded(port, timeout=1))
    except OSError as error:
        tally.failed("waited" if isinstance(error, TimeoutError) else "hung up on")
        return None
    stack.callback(player.close)
    try:
        reply = player.ask({"type": "reset"})
    except OSError as error:
        tally.failed(error)
        return None
    if reply["type"] == "error":
        tally.failed(reply["data"]["code"])
        return None
    tally.answered()
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
        with ExitStack() as stack:
            assert came_in(server.port, stack, Tally()) is not None


def crowd_in(server: ServerProcess) -> Counter[str]:
    """Come with more clients than there can be, step with those who came in, and leave."""
    tally = Tally()
    with ExitStack() as stack:
        players: list[raw.Player] = []
        turned_away = 0
        while turned_away < 12:
            player = came_in(server.port, stack, tally)
            if player is None:
                turned_away += 1
            else:
                players.append(player)
            assert len(players) < 3 * FILES, "the limit was never reached"
        for number in (1, 2, 3):
            for player in players:
                assert player.add() == number
                tally.answered()
    return tally.counts
