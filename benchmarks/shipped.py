"""Steps per second, and memory per session, of each environment that ships and whose packages are here.

Each is served as a person serves it, in a process of its own. N sessions play it by its random policy
(`envhive.envs.policies`), each in a loop of its own: step, and reset at an episode's end. Prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envhive import GenericEnvClient
from envhive.bench.procfs import cpu_seconds, memory, tree
from envhive.envs import SHIPPED
from envhive.envs.policies import RANDOM_POLICIES

SESSIONS = 64
FEWER = {"browsergym": 4}
"""Those whose sessions are too heavy for so many: each has a browser."""
START_LIMIT_S = 120.0
WARM_UP_STEPS = 5
COLUMNS = (
    "environment",
    "sessions",
    "steps/s",
    "server CPU per step",
    "resets",
    "memory per session",
    "memory at rest",
)


@dataclass
class Player:
    """One session, and what it has done."""

    name: str
    env: GenericEnvClient
    chance: random.Random
    seen: dict[str, Any] | None = None
    steps: int = 0
    resets: int = 0

    async def act(self) -> None:
        if self.seen is None or self.seen["done"]:
            self._see(await self.env.reset(seed=self.chance.getrandbits(31)))
            self.resets += 1
        else:
            self._see(await self.env.step(RANDOM_POLICIES[self.name](self.chance, self.seen)))
            self.steps += 1

    def _see(self, result: Any) -> None:
        self.seen = {**result.observation, "done": result.done}

    async def play_until(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            await self.act()


@contextmanager
def serving(name: str, settings: list[str]) -> Iterator[tuple[str, int]]:
    """`envhive serve NAME`, ready: its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(Path(sys.executable).with_name("envhive"))
    options = [part for setting in settings for part in ("--set", setting)]
    command = [script, "serve", name, *options, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}", server.pid
    finally:
        server.terminate()
        server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{url} did not come up") from None
            time.sleep(0.05)


async def measure(name: str, url: str, pid: int, sessions: int, seconds: float) -> tuple[str, ...]:
    players = [
        Player(name, GenericEnvClient(url, connect_timeout_s=60), random.Random(at)) for at in range(sessions + 1)
    ]
    first, rest = players[0], players[1:]
    try:
        for _ in range(WARM_UP_STEPS):  # what the first session loads is there for all
            await first.act()
        at_rest = memory(tree(pid))
        for _ in range(1 + WARM_UP_STEPS):
            await asyncio.gather(*(player.act() for player in rest))
        per_session = (memory(tree(pid)) - at_rest) / sessions
        for player in rest:
            player.steps = player.resets = 0
        began, cpu = time.perf_counter(), cpu_seconds(tree(pid))
        await asyncio.gather(*(player.play_until(began + seconds) for player in rest))
        took, cpu = time.perf_counter() - began, cpu_seconds(tree(pid)) - cpu
    finally:
        await asyncio.gather(*(player.env.close() for player in players))
    steps, resets = sum(player.steps for player in rest), sum(player.resets for player in rest)
    each = f"{cpu / max(steps, 1) * 1e6:,.0f} µs"
    return name, str(sessions), f"{steps / took:,.0f}", each, f"{resets:,}", size(per_session), size(at_rest)


def size(amount: float) -> str:
    return f"{amount / 1e6:.1f} MB" if amount >= 1e6 else f"{amount / 1e3:.0f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="environments; all that are installed if none is named")
    parser.add_argument("--sessions", type=int, help=f"sessions at once (default: {SESSIONS}; browsergym: 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long they play (default: 5)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, for all of them")
    given = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name in given.names or sorted(RANDOM_POLICIES.keys() & SHIPPED.keys()):
        if hint := SHIPPED[name].hint():
            print(f"{name} is left out: {hint}", file=sys.stderr)
            continue
        with serving(name, given.set) as (url, pid):
            sessions = given.sessions or FEWER.get(name, SESSIONS)
            row = asyncio.run(measure(name, url, pid, sessions, given.seconds))
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
