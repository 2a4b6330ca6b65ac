"""The wall clock jumps, or the server is stopped for a while: no session ends, and no peer is given up."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from envhive.bench.procfs import tree
from tests.support import raw
from tests.support.belongings import nothing_left_behind
from tests.support.processes import ServerProcess, envhive_serve

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
DAY: Final = 24 * 3600
FAKETIME: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
IMPATIENT: Final = ("--ping-interval", "0.3", "--ping-timeout", "6", "--session-timeout", "6")
STOPPED_S: Final = 6.5


def opened(server: ServerProcess, stack: ExitStack, count: int) -> list[raw.Player]:
    players = [raw.Player(raw.upgraded(server.port)) for _ in range(count)]
    for player in players:
        stack.callback(player.close)
        assert player.ask({"type": "reset", "data": {"seed": 0}})["type"] == "observation"
    return players


@pytest.mark.skipif(not FAKETIME, reason="the wall clock can only be set for a test with libfaketime")
def test_a_jump_of_the_wall_clock_changes_nothing_but_the_times_that_are_shown(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    environ = {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    options = ("--ping-interval", "0.2", "--ping-timeout", "20", "--session-timeout", "60")
    served = envhive_serve(
        "tests.support.wild:Wild", *options, cwd=ROOT, environ=environ, log=tmp_path / "log", host="127.0.0.1"
    )
    with served as server, nothing_left_behind(server, "a day forth, two days back") as tally, ExitStack() as stack:
        players = opened(server, stack, 5)
        for number, jump in enumerate((f"+{DAY}", f"-{2 * DAY}", "+0"), 1):
            offset.write_text(jump)
            for _ in range(2):  # the second has been sent since: there was a sweep
                players[0].answer_ping(players[0].hear_ping())
            for player in players:
                assert player.add() == number
                tally.answered()
            listed = server.sessions()
            assert len(listed) == 5
            assert all(0 <= each["age_s"] < 60 and 0 <= each["idle_s"] < 60 for each in listed)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_was_stopped_for_a_while_gives_nobody_up(workers: str, tmp_path: Path) -> None:
    options = (*IMPATIENT, "--workers", workers)
    served = envhive_serve("tests.support.wild:Wild", *options, cwd=ROOT, log=tmp_path / "log")
    what = f"stopped for {STOPPED_S} s, with time-outs of 6 s, {workers} worker(s)"
    with served as server, nothing_left_behind(server, what) as tally, ExitStack() as stack:
        players = opened(server, stack, 8)
        pings = [player.hear_ping() for player in players]  # nobody has answered yet
        pids = tree(server.process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for player, ping in zip(players, pings, strict=True):
            player.answer_ping(ping)
        time.sleep(STOPPED_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for player in players:
            player.hear_ping()  # by a sweep, which would have ended it
        for player in players:
            assert player.add() == 1
            tally.answered()
