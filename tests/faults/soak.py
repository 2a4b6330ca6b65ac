"""All faults at random, for as long as one likes: `scripts/soak --minutes 30`.

Clients play all the while against a server of two workers, with a process for each session. Exits with 1 if anything is
left behind, or if a client sees a failure that has no business there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from envhive.bench.procfs import tree
from tests.faults.test_killed import ANY_FAILURE, play
from tests.faults.test_nothing_left_behind import BAD
from tests.faults.test_slow_peers import clog
from tests.support import raw
from tests.support.belongings import Belongings, Tally, row
from tests.support.processes import ServerProcess, envhive_serve

ROOT: Final = Path(__file__).parents[2]
CLIENTS: Final = 12
NURSERIES: Final = 100
"""Descriptors: a nursery that is forked later holds, as /dev/null, one for each that its worker had then."""
MEMORY: Final = 60 * 1024 * 1024
"""Over five processes: two workers, two nurseries, one supervisor."""

UNDISTURBED_S: Final = 5.0
"""At the end: a lost nursery is replaced when a session needs it."""

Fault = Callable[[ServerProcess, random.Random], None]


def visits(server: ServerProcess, dice: random.Random) -> None:
    visit, _ = dice.choice(BAD)
    for _ in range(100):
        visit(server.port)


def slow_readers(server: ServerProcess, dice: random.Random) -> None:
    for peer in clog(server.port, 2):
        raw.hang_up(peer.sock, hard=dice.random() < 0.5)


def killed_environment(server: ServerProcess, dice: random.Random) -> None:
    _kill(dice.choice([each["env_pid"] for each in server.sessions() if each.get("env_pid")] or [0]))


def killed_nursery(server: ServerProcess, dice: random.Random) -> None:
    _kill(dice.choice([pid for worker in _workers(server) for pid in tree(worker)[1:2]] or [0]))


def killed_worker(server: ServerProcess, dice: random.Random) -> None:
    _kill(dice.choice(_workers(server) or [0]))


def stopped_for_a_while(server: ServerProcess, dice: random.Random) -> None:
    pids = tree(server.process.pid)
    for number, pause in ((signal.SIGSTOP, dice.uniform(0.5, 4)), (signal.SIGCONT, 0.0)):
        for pid in pids:
            _send(pid, number)
        time.sleep(pause)


FAULTS: Final[tuple[Fault, ...]] = (
    visits,
    slow_readers,
    killed_environment,
    killed_nursery,
    killed_worker,
    stopped_for_a_while,
)


def _workers(server: ServerProcess) -> list[int]:
    return [worker["pid"] for worker in server.health()["workers"] if worker.get("pid")]


def _kill(pid: int) -> None:
    if pid:
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended meanwhile


class Players:
    """Clients that play on a thread of their own until they are told to stop."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        self.tally = Tally()
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    async def _all(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        everyone = (play(self._server, self.tally, self._is_over, ANY_FAILURE) for _ in range(CLIENTS))
        try:
            await asyncio.gather(*everyone)
        except Exception as error:  # it is shown at the end, and counts as a failed soak
            self.failure = error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(60)


def settled(server: ServerProcess, processes: int) -> Belongings:
    """What the server has once it is empty and complete again, or after a minute."""
    deadline = time.monotonic() + 60
    while True:
        try:
            found = Belongings.of(server)
            if (found.processes == processes and not found.sessions) or time.monotonic() > deadline:
                return found
        except OSError:
            assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.5)


def soak(server: ServerProcess, minutes: float, seed: int) -> int:
    dice, done = random.Random(seed), Counter[str]()
    for fault in (visits, slow_readers):
        fault(server, dice)
    processes = 5  # the supervisor, two workers, two nurseries
    before = settled(server, processes)
    players = Players(server)
    players.start()
    deadline, shown = time.monotonic() + minutes * 60, 0.0
    while time.monotonic() < deadline and players.failure is None:
        fault = dice.choice(FAULTS)
        try:
            fault(server, dice)
            done[fault.__name__.replace("_", " ")] += 1
        except OSError as error:  # what it was about to disturb is just being replaced
            done[f"not possible: {type(error).__name__}"] += 1
        time.sleep(dice.uniform(0.2, 2))
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{max(0, deadline - shown):5.0f} s left; {dict(done)}; requests: {players.tally}", flush=True)
    time.sleep(UNDISTURBED_S)
    players.stop()
    after = settled(server, processes)
    print("\n| what | threads | processes | descriptors | memory, MB | requests |\n|---|---|---|---|---|---|")
    print(row(f"soak of {minutes:g} min: {sum(done.values())} faults", before, after, players.tally))
    wrong = after.excess_over(before, descriptors=NURSERIES, own_memory=MEMORY)
    wrong += [] if after.processes == processes else [f"processes: {processes} → {after.processes}"]
    wrong += [] if players.failure is None else [f"a client failed: {players.failure!r}"]
    print("\n".join(("left behind:", *wrong)) if wrong else "Nothing is left behind.")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    options = ("--workers", "2", "--isolation", "process", "--max-sessions", "64", "--log-level", "error")
    with tempfile.TemporaryDirectory() as folder:
        served = envhive_serve("tests.support.wild:Wild", *options, cwd=ROOT, log=Path(folder) / "log")
        with served as server:
            return soak(server, given.minutes, given.seed)


if __name__ == "__main__":
    sys.exit(main())
