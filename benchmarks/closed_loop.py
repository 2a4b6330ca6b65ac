"""The load generator: N sessions, each sending its next step when the last one is answered.

It reads the server's CPU time itself, in the same callback that counts the steps, so that both figures are of the
same window to the microsecond. The result is one JSON object on stdout.

python closed_loop.py --port 8000 --pid 1234 --sessions 64 --seconds 4
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

# Byte for byte what OpenEnv's client sends: `json.dumps` with its default spacing.
RESET: Final = json.dumps({"type": "reset", "data": {}}).encode()
STEP: Final = json.dumps({"type": "step", "data": {"wait_seconds": 0.0}}).encode()

SPIN_HELP: Final = (
    "poll instead of sleeping between replies. Waking a sleeping process on another core is charged to whoever sends, "
    "and on a virtual machine it is dear: a server that leaves the load generator idle pays for it, one that keeps it "
    "busy does not"
)

_OPENING_AT_ONCE: Final = 32
_HANDSHAKE_LIMIT_S: Final = 30.0
_RESET_LIMIT_S: Final = 60.0
_CLOSE_LIMIT_S: Final = 20.0
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Figures(msgspec.Struct, frozen=True):
    """What one window of load brought to light."""

    steps: int
    seconds: float
    user_s: float
    system_s: float
    p50_ms: float

    @property
    def cpu_us_per_step(self) -> float:
        return (self.user_s + self.system_s) / self.steps * 1e6

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


class Reply(msgspec.Struct):
    """As much of a reply as needs looking at: whether it is an error."""

    type: str


decode_reply: Final = msgspec.json.Decoder(Reply).decode


class Load:
    """What all the sessions share: whether to go on, and how long each step took."""

    def __init__(self, sessions: int) -> None:
        loop = asyncio.get_running_loop()
        self.sessions = sessions
        self.running = True
        self.latencies: list[float] = []
        self.all_reset: asyncio.Future[None] = loop.create_future()
        self.failed: asyncio.Future[None] = loop.create_future()
        self._resets = 0

    def note_reset(self) -> None:
        self._resets += 1
        if self._resets == self.sessions and not self.all_reset.done():
            self.all_reset.set_result(None)

    def fail(self, reason: str) -> None:
        if self.running and not self.failed.done():
            self.failed.set_exception(RuntimeError(reason))

    async def run_for(self, seconds: float, until: asyncio.Future[None] | None = None) -> None:
        """Let the sessions go on for so long, or until then; raises as soon as one of them fails."""
        ends = {self.failed} if until is None else {self.failed, until}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            self.failed.result()


class Session(WSListener):
    """One connection: a reset, then step after step."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._sent_at = 0.0
        self._was_reset = False

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.TEXT:
            self._answered(transport, frame)
        elif frame.msg_type is WSMsgType.CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._load.fail("the server closed a session")

    def _answered(self, transport: WSTransport, frame: WSFrame) -> None:
        now = time.perf_counter()
        load = self._load
        if not is_answer(frame):
            load.fail(f"the server answered: {frame.get_payload_as_utf8_text():.500}")
        if self._was_reset:
            load.latencies.append(now - self._sent_at)
        else:
            self._was_reset = True
            load.note_reset()
        if load.running:
            self._sent_at = time.perf_counter()
            transport.send(WSMsgType.TEXT, STEP)
        else:
            transport.send_close(WSCloseCode.OK)


def is_answer(frame: WSFrame) -> bool:
    """Whether a reply is what a step should bring: counting errors as steps would make a broken server a fast one."""
    try:
        return decode_reply(frame.get_payload_as_memoryview()).type != "error"
    except msgspec.MsgspecError:
        return False


def server_processes(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int(_stat_fields(int(folder.name))[1])
            except OSError:  # it ended while we looked
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for known in found:  # grows as it goes
        found.extend(children.get(known, ()))
    return found


def cpu_seconds(pids: Sequence[int]) -> tuple[float, float]:
    """User and system time that these processes, all their threads, and their ended children have used so far."""
    fields = [_stat_fields(pid) for pid in pids]
    user = sum(int(stat[11]) + int(stat[13]) for stat in fields)
    system = sum(int(stat[12]) + int(stat[14]) for stat in fields)
    return user / _TICKS_PER_SECOND, system / _TICKS_PER_SECOND


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second, the name, may hold spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def open_sessions(load: Load, port: int) -> list[WSTransport]:
    turn = asyncio.Semaphore(_OPENING_AT_ONCE)

    async def open_one() -> WSTransport:
        async with turn:
            transport, _ = await ws_connect(
                lambda: Session(load), f"ws://127.0.0.1:{port}/ws", websocket_handshake_timeout=_HANDSHAKE_LIMIT_S
            )
        return transport

    return await asyncio.gather(*(open_one() for _ in range(load.sessions)))


async def close_sessions(load: Load, transports: Sequence[WSTransport]) -> None:
    """Each closes after its last reply. Waits for the server too, so that its clean-up burdens nobody's next window."""
    load.running = False
    gone = [asyncio.ensure_future(transport.wait_disconnected()) for transport in transports]
    await asyncio.wait(gone, timeout=_CLOSE_LIMIT_S)


async def measure(load: Load, pid: int, seconds: float) -> Figures:
    """One window. Nothing is awaited between reading the CPU time and noting the steps, at either end."""
    pids = server_processes(pid)
    load.latencies.clear()
    user, system = cpu_seconds(pids)
    began = time.perf_counter()
    await load.run_for(seconds)
    ended = time.perf_counter()
    user_after, system_after = cpu_seconds(pids)
    if not load.latencies:
        raise RuntimeError(f"no step was answered in {seconds:g} s")
    return Figures(
        steps=len(load.latencies),
        seconds=ended - began,
        user_s=user_after - user,
        system_s=system_after - system,
        p50_ms=statistics.median(load.latencies) * 1e3,
    )


def spin(load: Load) -> None:
    """Keep the event loop polling. See `--spin`."""
    if load.running:
        asyncio.get_running_loop().call_soon(spin, load)


async def run(port: int, pid: int, sessions: int, warm_up: float, seconds: float, spinning: bool) -> Figures:
    load = Load(sessions)
    transports = await open_sessions(load, port)
    gc.collect()
    gc.disable()  # a collection in the middle would idle the server for as long
    for transport in transports:
        transport.send(WSMsgType.TEXT, RESET)
    await load.run_for(_RESET_LIMIT_S, until=load.all_reset)
    if not load.all_reset.done():
        raise RuntimeError(f"not all sessions were reset within {_RESET_LIMIT_S:g} s")
    if spinning:
        spin(load)
    await load.run_for(warm_up)
    figures = await measure(load, pid, seconds)
    await close_sessions(load, transports)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True, help="port of the server, on this host")
    parser.add_argument("--pid", type=int, required=True, help="process of the server, whose CPU time is read")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds of load before the window")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the window")
    parser.add_argument("--spin", action="store_true", help=SPIN_HELP)
    options = parser.parse_args()
    window = run(options.port, options.pid, options.sessions, options.warm_up, options.seconds, options.spin)
    try:
        figures = uvloop.run(window)
    except (OSError, RuntimeError) as error:
        sys.exit(f"closed_loop: {error or type(error).__name__}")
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
