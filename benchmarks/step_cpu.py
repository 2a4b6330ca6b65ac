"""Server CPU per step: EnvHive against OpenEnv, and against bare picows as the floor, in one run.

All servers run at once, pinned to one core; one load generator on another core visits them in turn, round after
round, so that whatever else the machine does falls on all of them alike. Linux, two cores or more.

python benchmarks/step_cpu.py            # some five minutes
python benchmarks/step_cpu.py --quick    # seconds, to see that it works
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from closed_loop import SPIN_HELP, Figures
from servers import (
    HERE,
    PEER,
    PEER_VERSION,
    BenchmarkError,
    RunningServer,
    bare_picows,
    envhive,
    install_peer,
    peer,
    peer_packages,
    serving,
)

PEER_SYNC: Final = f"{PEER} sync"
PEER_ASYNC: Final = f"{PEER} async"
OURS_SYNC: Final = "EnvHive sync"
OURS_ASYNC: Final = "EnvHive async"
BARE: Final = "bare picows"

SERVERS: Final = [
    peer(PEER_SYNC, "sync"),
    envhive(OURS_SYNC, "benchmark"),
    peer(PEER_ASYNC, "async"),
    envhive(OURS_ASYNC, "benchmark-async"),
    bare_picows(BARE),
]
COLUMNS: Final = [PEER_SYNC, PEER_ASYNC, OURS_SYNC, OURS_ASYNC, BARE]

_SETTLE_S: Final = 0.3
_LOAD_SLACK_S: Final = 150.0
"""For opening, resetting and closing the sessions, before the load generator counts as stuck."""

Key = tuple[str, int]
"""A server's name and a number of sessions."""
Results = dict[Key, list[Figures]]


class Plan(msgspec.Struct, frozen=True):
    """What is to be measured."""

    sessions: list[int]
    rounds: int
    seconds: float
    warm_up: float
    spin: bool

    @property
    def counts(self) -> list[int]:
        """One session too, for the latency of a step that nothing stands in front of."""
        return [1, *(count for count in self.sessions if count != 1)]


class Cores(msgspec.Struct, frozen=True):
    server: int
    load: int


# Measuring.


def measure_all(plan: Plan, cores: Cores) -> Results:
    results: Results = defaultdict(list)
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(serving(server, cores.server)) for server in SERVERS]
        for number in range(1, plan.rounds + 1):
            for count in plan.counts:
                for server in running:
                    figures = measure(server, count, plan, cores.load)
                    results[server.name, count].append(figures)
                    report_progress(number, plan.rounds, server.name, count, figures)
    return results


def measure(server: RunningServer, sessions: int, plan: Plan, core: int) -> Figures:
    """One window of load on one server, made by a process of its own."""
    time.sleep(_SETTLE_S)  # until the last server has put its threads away
    options: dict[str, float] = {"port": server.port, "pid": server.pid, "sessions": sessions}
    options |= {"warm-up": plan.warm_up, "seconds": plan.seconds}
    command = [sys.executable, str(HERE / "closed_loop.py"), *(f"--{name}={value}" for name, value in options.items())]
    if plan.spin:
        command.append("--spin")
    limit = plan.warm_up + plan.seconds + _LOAD_SLACK_S
    try:
        load = subprocess.run(
            command,
            capture_output=True,
            timeout=limit,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{server.name}, {sessions} sessions: no result within {limit:g} s") from None
    if load.returncode != 0:
        raise BenchmarkError(f"{server.name}, {sessions} sessions: {load.stderr.decode().strip()}")
    return msgspec.json.decode(load.stdout, type=Figures)


def report_progress(number: int, rounds: int, name: str, sessions: int, figures: Figures) -> None:
    print(
        f"round {number}/{rounds}  {sessions:>5} sessions  {name:<14}"
        f"{figures.cpu_us_per_step:8.1f} µs CPU per step  {figures.steps_per_second:9,.0f} steps/s"
        f"  p50 {figures.p50_ms:.2f} ms",
        flush=True,
    )


# Reporting.


def cpu_per_step(results: Results, name: str, sessions: int) -> float:
    return statistics.median(figures.cpu_us_per_step for figures in results[name, sessions])


def table(results: Results, plan: Plan) -> str:
    rows = [["what", *COLUMNS, "sync, ours/peer", "async, ours/peer", "async, ours/bare"]]
    rows.append(["---"] * len(rows[0]))
    rows += [cpu_row(results, count) for count in plan.sessions]
    rows += [rate_row(results, count) for count in plan.sessions]
    rows.append(latency_row(results))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def cpu_row(results: Results, sessions: int) -> list[str]:
    cpu = {name: cpu_per_step(results, name, sessions) for name in COLUMNS}
    return [
        f"server CPU per step, {sessions} sessions",
        *(f"{cpu[name]:.1f} µs" for name in COLUMNS),
        f"1/{cpu[PEER_SYNC] / cpu[OURS_SYNC]:.1f}",
        f"1/{cpu[PEER_ASYNC] / cpu[OURS_ASYNC]:.1f}",
        f"{cpu[OURS_ASYNC] / cpu[BARE]:.2f} ×",
    ]


def rate_row(results: Results, sessions: int) -> list[str]:
    rates = [statistics.median(figures.steps_per_second for figures in results[name, sessions]) for name in COLUMNS]
    return [f"steps/s, {sessions} sessions, one worker", *(f"{rate:,.0f}" for rate in rates), "", "", ""]


def latency_row(results: Results) -> list[str]:
    latencies = [statistics.median(figures.p50_ms for figures in results[name, 1]) for name in COLUMNS]
    return ["p50 step, 1 session", *(f"{latency:.2f} ms" for latency in latencies), "", "", ""]


def spread(results: Results, plan: Plan) -> float:
    """The largest distance of any round from its median, as a share of it: how far to trust the table."""
    return max(
        abs(figures.cpu_us_per_step / cpu_per_step(results, name, count) - 1)
        for name in COLUMNS
        for count in plan.sessions
        for figures in results[name, count]
    )


def describe(plan: Plan, packages: dict[str, str]) -> str:
    loop = "uvloop" if "uvloop" in packages else "asyncio's loop"
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}; "
        f"{PEER} {PEER_VERSION} on uvicorn {packages['uvicorn']} and {loop}; server and load on one core each; "
        f"median of {plan.rounds} round(s) of {plan.seconds:g} s{', load polling' if plan.spin else ''}."
    )


def write_json(path: Path, plan: Plan, results: Results, packages: dict[str, str]) -> None:
    measurements = [
        {"server": name, "sessions": count, "cpu_us_per_step": cpu_per_step(results, name, count), "rounds": rounds}
        for (name, count), rounds in results.items()
    ]
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    document = {"machine": machine, "peer": packages, "plan": plan, "measurements": measurements}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


# The command.


def parse_options(arguments: Sequence[str] | None = None) -> tuple[Plan, Path | None]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[64, 512], metavar="N", help="default: 64 512")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measured window, default: 4")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds of load before a window, default: 1")
    parser.add_argument("--spin", action="store_true", help=f"let the load generator {SPIN_HELP}")
    parser.add_argument("--quick", action="store_true", help="1 round of 1 s with 16 sessions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures there")
    options = parser.parse_args(arguments)
    if min(*options.sessions, options.rounds) < 1 or options.seconds <= 0 or options.warm_up < 0:
        parser.error("sessions, rounds and seconds must be positive")
    if options.quick:
        return Plan(sessions=[16], rounds=1, seconds=1.0, warm_up=0.3, spin=options.spin), options.json
    return Plan(options.sessions, options.rounds, options.seconds, options.warm_up, options.spin), options.json


def choose_cores() -> Cores:
    if not hasattr(os, "sched_getaffinity"):
        raise BenchmarkError("This measurement pins processes to cores and reads /proc: it needs Linux.")
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise BenchmarkError(f"The server and the load need a core each, and only core {allowed[0]} may be used.")
    return Cores(server=allowed[0], load=allowed[1])


def raise_file_limit() -> None:
    """A session is a file descriptor at either end, and every process started from here inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    plan, json_file = parse_options()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # unwinds, so the servers are stopped
    try:
        cores = choose_cores()
        raise_file_limit()
        install_peer()
        packages = peer_packages()
        results = measure_all(plan, cores)
    except BenchmarkError as error:
        sys.exit(f"step_cpu: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"\n{describe(plan, packages)}\n\n{table(results, plan)}\n")
    print(f"No round was further than {spread(results, plan):.1%} from its median CPU per step.")
    if json_file is not None:
        write_json(json_file, plan, results, packages)


if __name__ == "__main__":
    main()
