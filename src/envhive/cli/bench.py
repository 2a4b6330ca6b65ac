"""`envhive bench`: what a server can bear, measured, printed and drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envhive.cli.bench_setup import prepare, run, run_options, server_options
from envhive.errors import ConfigurationError

if TYPE_CHECKING:
    from envhive.bench.lab import Lab

_POSITIVE = click.FloatRange(min=0, min_open=True, max=1e6)
_SECONDS = click.FloatRange(0.1, 3600)
_REPETITIONS = click.IntRange(1, 100)
_NO_WAIT = '{"wait_seconds": 0.0}'
_EXAMPLES = {
    "storm": (
        "envhive bench storm --serve benchmark-async",
        'envhive bench storm --url http://gpu-box:8000 --sessions 32,128,512 --waits 1,5 --label "gpu box"',
    ),
    "steady": (
        "envhive bench steady --serve benchmark --sessions 64,512",
        "envhive bench steady --serve benchmark-async --sessions 256 --rate 2000",
    ),
    "compare": ("envhive bench compare --peer openenv",),
    "knee": ("envhive bench knee --serve benchmark",),
    "plot": ("envhive bench plot bench-results/one bench-results/two --out both",),
}


def _examples(*commands: str) -> str:
    lines = [f"  {example}\n" for command in commands for example in _EXAMPLES[command]]
    return "\b\nExamples:\n" + "".join(lines)


@click.group(epilog=_examples(*_EXAMPLES))
def bench() -> None:
    """Measure what a server can bear: storms, steady load, the knee, and beside a peer.

    Load goes only to the server that you name or that the command starts. Results, plots and a report go to
    bench-results/ or --out. Ctrl-C keeps what was measured.
    """


@bench.command(epilog=_examples("storm"))
@server_options
@click.option("--sessions", help="Batch sizes.  [default: 32,128,512]")
@click.option("--waits", help="Seconds that a step sleeps.  [default: 1]")
@click.option("--repetitions", type=_REPETITIONS, default=3, show_default=True, help="Of each cell.")
@click.option("--full", is_flag=True, help="The whole grid: 32 to 16,384 sessions, waits of 1, 5 and 10 s.")
@click.option("--mode", type=click.Choice(["ws", "http"]), default="ws", show_default=True, help="What is spoken.")
@click.option("--timeout", type=_POSITIVE, default=120.0, show_default=True, help="Seconds for a session, wait apart.")
@click.option("--action", help="JSON of the action, for environments other than benchmark.")
def storm(
    sessions: str | None,
    waits: str | None,
    repetitions: int,
    full: bool,
    mode: Any,
    timeout: float,
    action: str | None,
    **options: Any,
) -> None:
    """N sessions at once: connect, reset, one step that sleeps, close. Over a grid of N and sleep."""
    setup = prepare(options)
    from envhive.bench import plan as plans
    from envhive.bench.load import LoadFleet
    from envhive.bench.storm import run_storms

    if action is not None and waits is not None:
        raise ConfigurationError(
            "--waits is for the benchmark environments, whose steps sleep; --action is another step."
        )
    default_sessions = plans.FULL_SESSIONS if full else plans.SMALL_SESSIONS
    default_waits = plans.NO_WAITS if action is not None else plans.FULL_WAITS if full else plans.SMALL_WAITS
    plan = plans.StormPlan(
        sessions=default_sessions if sessions is None else plans.parse_counts(sessions),
        waits=default_waits if waits is None else plans.parse_waits(waits),
        repetitions=repetitions,
        mode=mode,
        timeout_s=timeout,
        action=plans.parse_action(action),
    )
    setup.check_server()
    recorder = setup.recorder("storm")

    def measure(lab: Lab) -> None:
        with (
            setup.serving(max(plan.sessions)) as subject,
            LoadFleet() as fleet,
            lab.bars(len(plan), "storms") as (step, update),
        ):
            run_storms(
                plan,
                subject,
                fleet,
                recorder,
                setup.processes,
                lambda cell: step(f"{cell.sessions} sessions, wait {cell.wait_s:g} s", cell.sessions),
                update,
            )

    run(recorder, measure)


@bench.command(epilog=_examples("steady"))
@server_options
@click.option("--sessions", default="64", show_default=True, help="Numbers of sessions that stay.")
@click.option("--rate", type=_POSITIVE, help="Steps per second in all (open loop).  [default: each after the last]")
@click.option("--think", type=click.FloatRange(0, 3600), default=0.0, help="Seconds between answer and next step.")
@click.option("--seconds", type=_SECONDS, default=5.0, show_default=True, help="Length of a window.")
@click.option("--warm-up", type=click.FloatRange(0, 3600), default=1.0, show_default=True, help="Seconds before it.")
@click.option("--repetitions", type=_REPETITIONS, default=1, show_default=True, help="Windows of each size.")
@click.option("--timeout", type=_POSITIVE, default=120.0, show_default=True, help="Seconds for opening all sessions.")
@click.option("--action", default=_NO_WAIT, show_default=True, help="JSON of the action.")
def steady(
    sessions: str,
    rate: float | None,
    think: float,
    seconds: float,
    warm_up: float,
    repetitions: int,
    timeout: float,
    action: str,
    **options: Any,
) -> None:
    """N sessions that stay and step, in a closed loop or at a fixed --rate."""
    setup = prepare(options)
    from envhive.bench.load import LoadFleet
    from envhive.bench.plan import SteadyPlan, parse_action, parse_counts
    from envhive.bench.steady import run_steady

    if rate is not None and think:
        raise ConfigurationError("--rate fixes when steps are sent, so --think has no place beside it.")
    plan = SteadyPlan(
        sessions=parse_counts(sessions),
        rate=rate,
        think_s=think,
        seconds=seconds,
        warm_up_s=warm_up,
        repetitions=repetitions,
        timeout_s=timeout,
        action=parse_action(action) or _NO_WAIT,
    )
    setup.check_server()
    recorder = setup.recorder("steady")

    def measure(lab: Lab) -> None:
        with (
            setup.serving(max(plan.sessions)) as subject,
            LoadFleet() as fleet,
            lab.bars(len(plan.sessions) * plan.repetitions, "windows") as (step, update),
        ):
            run_steady(
                plan,
                subject,
                fleet,
                recorder,
                setup.processes,
                lambda sessions, repetition: step(f"{sessions} sessions, steps answered", 0),
                update,
            )

    run(recorder, measure)


@bench.command(epilog=_examples("knee"))
@server_options
@click.option("--ramp", type=click.Choice(["sessions", "rate"]), default="sessions", show_default=True)
@click.option("--start", type=_POSITIVE, help="First level.  [default: 32 sessions, 250 steps/s]")
@click.option("--limit", type=_POSITIVE, help="Last level.  [default: 16384 sessions, 256000 steps/s]")
@click.option("--sessions", type=click.IntRange(1), default=64, show_default=True, help="Of a ramp of rates.")
@click.option("--think", type=click.FloatRange(0, 3600), help="Seconds, of a ramp of sessions.  [default: 1]")
@click.option("--p99", type=_POSITIVE, default=0.25, show_default=True, help="Seconds that p99 may reach.")
@click.option(
    "--success", type=click.FloatRange(0, 1), default=0.95, show_default=True, help="Share that must succeed."
)
@click.option("--seconds", type=_SECONDS, default=4.0, show_default=True, help="Length of a level.")
@click.option(
    "--refinements", type=click.IntRange(0, 10), default=2, show_default=True, help="Halvings, once it broke."
)
@click.option("--action", default=_NO_WAIT, show_default=True, help="JSON of the action.")
def knee(
    ramp: str,
    start: float | None,
    limit: float | None,
    sessions: int,
    think: float | None,
    p99: float,
    success: float,
    seconds: float,
    refinements: int,
    action: str,
    **options: Any,
) -> None:
    """More and more load until p99 or success breaks; says which resource ran out."""
    setup = prepare(options)
    from envhive.bench.knee import run_knee
    from envhive.bench.load import LoadFleet
    from envhive.bench.plan import KneePlan, parse_action

    of_rates = ramp == "rate"
    if of_rates and think is not None:
        raise ConfigurationError("A ramp of rates fixes when steps are sent, so --think has no place beside it.")
    plan = KneePlan(
        ramp=ramp,
        start=start or (250.0 if of_rates else 32.0),
        limit=limit or (256_000.0 if of_rates else 16_384.0),
        sessions=sessions,
        think_s=1.0 if think is None else think,
        p99_limit_s=p99,
        success_goal=success,
        seconds=seconds,
        refinements=refinements,
        action=parse_action(action) or _NO_WAIT,
    )
    if plan.limit < plan.start or plan.start < 1:
        raise ConfigurationError(
            f"A ramp from {plan.start:g} to {plan.limit:g} does not climb: see --start and --limit."
        )
    setup.check_server()
    recorder = setup.recorder("knee")

    def measure(lab: Lab) -> None:
        levels = math.ceil(math.log2(plan.limit / plan.start)) + 1 + plan.refinements
        unit = "steps/s" if of_rates else "sessions"
        with (
            setup.serving(sessions if of_rates else int(plan.limit)) as subject,
            LoadFleet() as fleet,
            lab.bars(levels, "levels, at most") as (step, update),
        ):
            run_knee(
                plan,
                subject,
                fleet,
                recorder,
                setup.processes,
                setup.workers,
                lambda level: step(f"{level:g} {unit}", 0),
                update,
            )

    run(recorder, measure)


@bench.command(epilog=_examples("compare"))
@run_options
@click.option("--peer", default="openenv", show_default=True, help="What to measure beside.")
@click.option("--sessions", help="Numbers of sessions.  [default: 64,512]")
@click.option("--rounds", type=_REPETITIONS, help="Turns of each server.  [default: 3]")
@click.option("--seconds", type=_SECONDS, help="Length of a window.  [default: 4]")
@click.option("--quick", is_flag=True, help="A minute's look: one short round, 16 and 64 sessions.")
def compare(
    peer: str, sessions: str | None, rounds: int | None, seconds: float | None, quick: bool, **options: Any
) -> None:
    """EnvHive and a peer in turns, in one run, with ratios. Installs the peer in a folder of its own, once."""
    setup = prepare(options)
    import msgspec

    from envhive.bench import peers
    from envhive.bench.compare import run_compare, steps_of
    from envhive.bench.limits import raise_file_limit
    from envhive.bench.plan import QUICK_COMPARE, ComparePlan, parse_counts

    found, _ = peers.find(peer)
    counts = None if sessions is None else parse_counts(sessions)
    given = {"sessions": counts, "rounds": rounds, "starts": rounds, "seconds": seconds}
    plan = msgspec.structs.replace(
        QUICK_COMPARE if quick else ComparePlan(), **{name: value for name, value in given.items() if value is not None}
    )
    raise_file_limit()  # the servers inherit it
    python = peers.install(found, click.echo)
    recorder = setup.recorder("compare")
    versions = peers.packages(found, python)
    recorder.fact("Peer: " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + ".")

    def measure(lab: Lab) -> None:
        with lab.bars(steps_of(plan), "parts") as (step, update):
            run_compare(plan, found, python, recorder, step, update)

    run(recorder, measure)


@bench.command(epilog=_examples("plot"))
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for plots and report.  [default: the run's own; needed for several]",
)
@click.option("--label", "labels", multiple=True, help="Other names for the runs, in their order.")
def plot(runs: tuple[Path, ...], out: Path | None, labels: tuple[str, ...]) -> None:
    """Draw finished runs again: several of them together, to compare infrastructures."""
    prepare({})
    from envhive.bench import screen
    from envhive.bench.records import RUN_FILE, load_run, told_apart
    from envhive.bench.report import write_report
    from envhive.bench.tables import tables_of, together

    if len(labels) > len(runs):
        raise ConfigurationError(f"There are {len(labels)} labels for {len(runs)} run(s).")
    if out is None and len(runs) > 1:
        raise ConfigurationError("Several runs together need a folder to be drawn in: give --out.")
    names = [*labels, *[None] * (len(runs) - len(labels))]
    if out is not None and (out / RUN_FILE).exists() and out.resolve() not in {folder.resolve() for folder in runs}:
        raise ConfigurationError(f"{out} has the results and the report of another run: give --out another folder.")
    loaded = told_apart([load_run(folder, label) for folder, label in zip(runs, names, strict=True)], runs)
    console = screen.console()
    for finished, folder in zip(loaded, runs, strict=True):
        if not finished.results:
            raise ConfigurationError(f"{folder} holds no result: that run ended before its first.")
    for table in (table for finished in loaded for table in tables_of(finished)):
        screen.show(console, table)
    for table in together(loaded):
        screen.show(console, table)
    for finished in loaded:
        screen.remarks(console, finished.info)
    screen.remark(console, f"Report: {write_report(loaded, out or runs[0])}")
