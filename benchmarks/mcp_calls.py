"""Tool calls per second, and server CPU per call: EnvHive beside OpenEnv, one after the other, in one run.

    python benchmarks/mcp_calls.py --help

Three ways to call the same tool: POST /mcp without a session (each call gets an environment of its own), POST /mcp with
a session made by openenv/session/create, and {"type":"mcp"} frames on /ws.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec
from websockets.asyncio.client import connect

import envhive
from envhive.bench import peers, procfs
from envhive.bench.servers import Recipe, RunningServer
from envhive.bench.servers import envhive as envhive_server

_APPS: Final = Path(__file__).parent / "apps"
_PEER_APP: Final = _APPS / "openenv_tools_app.py.txt"

Call = Callable[[], Awaitable[Any]]


class Figures(msgspec.Struct, frozen=True):
    """Of one window."""

    calls_per_s: float
    cpu_us: float
    """Of the server, for each call."""


class Poster:
    """JSON-RPC calls over one HTTP connection that stays open; as little work as can be done for it in Python."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def post(self, message: dict[str, Any]) -> Any:
        body = json.dumps(message).encode()
        head = f"POST /mcp HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
        return json.loads(await self._reader.readexactly(length))

    def close(self) -> None:
        self._writer.close()


def _call(**more: Any) -> dict[str, Any]:
    params = {"name": "add", "arguments": {"a": 2, "b": 3}, **more}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def _check(reply: Any) -> None:
    """A failure is not a fast call."""
    if reply.get("result", {}).get("data") != 5:
        raise click.ClickException(f"The server answered {reply}")


async def _post_alone(url: str) -> tuple[Call, Call]:
    poster = Poster(url)
    await poster.open()

    async def call() -> None:
        _check(await poster.post(_call()))

    async def close() -> None:
        poster.close()

    return call, close


async def _post_in_session(url: str) -> tuple[Call, Call]:
    poster = Poster(url)
    await poster.open()
    made = await poster.post({"jsonrpc": "2.0", "id": 0, "method": "openenv/session/create", "params": {}})
    session_id = made["result"]["session_id"]

    async def call() -> None:
        _check(await poster.post(_call(session_id=session_id)))

    async def close() -> None:
        params = {"session_id": session_id}
        await poster.post({"jsonrpc": "2.0", "id": 0, "method": "openenv/session/close", "params": params})
        poster.close()

    return call, close


async def _send_frames(url: str) -> tuple[Call, Call]:
    ws = await connect(f"ws{url.removeprefix('http')}/ws", proxy=None, compression=None)
    frame = json.dumps({"type": "mcp", "data": _call()})

    async def call() -> None:
        await ws.send(frame)
        _check(json.loads(await ws.recv())["data"])

    return call, ws.close


WAYS: Final[dict[str, Callable[[str], Awaitable[tuple[Call, Call]]]]] = {
    "POST /mcp, no session": _post_alone,
    "POST /mcp, a session": _post_in_session,
    "mcp frames on /ws": _send_frames,
}


async def measure(server: RunningServer, way: str, sessions: int, seconds: float) -> Figures:
    """Call as fast as the server answers, one call at a time in each session."""
    opened = [await WAYS[way](server.url) for _ in range(sessions)]
    counts = [0] * sessions
    over = False

    async def go_on(number: int) -> None:
        call, _ = opened[number]
        while not over:
            await call()
            counts[number] += 1

    working = [asyncio.ensure_future(go_on(number)) for number in range(sessions)]
    await asyncio.sleep(seconds / 4)  # warm-up
    pids = procfs.tree(server.pid)
    calls, cpu, began = sum(counts), procfs.cpu_seconds(pids), time.perf_counter()
    await asyncio.sleep(seconds)
    calls, cpu, took = sum(counts) - calls, procfs.cpu_seconds(pids) - cpu, time.perf_counter() - began
    over = True
    await asyncio.gather(*working)
    for _, close in opened:
        await close()
    return Figures(calls / took, 1e6 * cpu / max(calls, 1))


def recipes(folder: Path) -> list[Recipe]:
    """The peer and EnvHive, each as a person starts it."""
    peer = peers.PEERS["openenv"]
    python = peers.install(peer, lambda text: click.echo(text, err=True))
    (folder / "peer_app.py").write_text(_PEER_APP.read_text(encoding="utf-8"), encoding="utf-8")
    ours = envhive_server("tools_env:Adder", max_sessions=256)
    where = os.pathsep.join([str(_APPS), str(Path(envhive.__file__).parents[1])])  # the same EnvHive as this script's
    return [
        peers.peer_server(peer, python, "sync", folder, f"{peer.name} {peer.version}"),
        Recipe(ours.name, ours.command, {"PYTHONPATH": where}),
    ]


def _furthest(values: list[float]) -> float:
    """How far a value is from the median of all, at most."""
    middle = statistics.median(values)
    return max(abs(value - middle) / middle for value in values)


def cores() -> tuple[list[int], list[int]]:
    """One for the server, one for the load, where there are two."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (available[:1], available[1:2]) if len(available) > 1 else ([], [])


@click.command()
@click.option("--sessions", type=click.IntRange(1, 256), default=16, show_default=True, help="Sessions at once.")
@click.option("--seconds", type=click.FloatRange(0.2), default=3.0, show_default=True, help="Length of a window.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds; medians are printed.")
def main(sessions: int, seconds: float, rounds: int) -> None:
    """Call a tool of EnvHive's and of OpenEnv's in turn, and print a table of both."""
    for_server, for_load = cores()
    if for_load:
        os.sched_setaffinity(0, for_load)
    with tempfile.TemporaryDirectory(prefix="envhive-mcp-") as name:
        both = recipes(Path(name))
        found: dict[tuple[str, str], list[Figures]] = {}
        for number in range(rounds):
            for recipe in both:
                with RunningServer(recipe, for_server) as server:
                    for way in WAYS:
                        click.echo(f"round {number + 1} of {rounds}: {recipe.name}, {way}", err=True)
                        figures = asyncio.run(measure(server, way, sessions, seconds))
                        found.setdefault((recipe.name, way), []).append(figures)
    peer, ours = (recipe.name for recipe in both)
    load = os.getloadavg()[0]
    furthest = max(_furthest([each.cpu_us for each in side]) for side in found.values())
    click.echo(
        f"CPU per call: the furthest round was {furthest:.0%} from its median. Load average at the end: {load:.1f}."
    )
    click.echo(f"| {sessions} sessions | {peer} | {ours} | ours/peer |\n|---|---|---|---|")
    for way in WAYS:
        theirs, own = found[peer, way], found[ours, way]
        cpu = [statistics.median(each.cpu_us for each in side) for side in (theirs, own)]
        rate = [statistics.median(each.calls_per_s for each in side) for side in (theirs, own)]
        click.echo(f"| server CPU per call, {way} | {cpu[0]:,.0f} µs | {cpu[1]:,.0f} µs | 1/{cpu[0] / cpu[1]:.1f} |")
        click.echo(f"| calls/s, {way} | {rate[0]:,.0f} | {rate[1]:,.0f} | {rate[1] / rate[0]:.1f} × |")


if __name__ == "__main__":
    main()
