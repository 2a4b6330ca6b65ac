"""EnvHive beside a peer, and above the floor: the same load on each in turn, round after round, in one run.

Machines are noisy: whatever else this one does falls on all servers alike when they take turns, so the ratios hold
where the absolute figures would not.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from envhive.bench import peers
from envhive.bench.limits import cores
from envhive.bench.load import LoadFleet
from envhive.bench.peers import OUR_CLIENT_IMPORT, Peer
from envhive.bench.plan import ComparePlan, SteadyPlan
from envhive.bench.records import Figure, Recorder, Run, SteadyWindow
from envhive.bench.servers import Recipe, bare_picows, envhive
from envhive.bench.stats import median
from envhive.bench.steady import measure_window
from envhive.bench.subject import Subject
from envhive.bench.tables import Table, duration, number, size, warnings_of

OURS_SYNC: Final = "EnvHive sync"
OURS_ASYNC: Final = "EnvHive async"
FLOOR: Final = "bare picows"
_MAX_SESSIONS: Final = 20_000

OnStep = Callable[[str, int], None]
OnProgress = Callable[[int, int], None]


def steps_of(plan: ComparePlan) -> int:
    """How many parts the run has, for the progress bar."""
    return plan.starts * 6 + plan.rounds * len(plan.loads) * 5


def run_compare(
    plan: ComparePlan, peer: Peer, python: Path, recorder: Recorder, on_step: OnStep, on_progress: OnProgress
) -> None:
    server_cores, load_cores = _split_cores(recorder)
    with peers.app_folder(peer) as app, LoadFleet(load_cores) as fleet:
        recipes = _recipes(peer, python, app)
        for turn in range(1, plan.starts + 1):
            on_step("client imports", 0)
            _measure_imports(peer, python, turn, recorder)
            for recipe in recipes:
                on_step(f"{recipe.name}: start, open, idle", plan.idle_sessions)
                _measure_life(plan, recipe, turn, server_cores, fleet, recorder, on_progress)
        with contextlib.ExitStack() as stack:
            subjects = [
                (recipe.name, stack.enter_context(Subject(recipe=recipe, pinned_to=server_cores))) for recipe in recipes
            ]
            windows = []
            for turn in range(1, plan.rounds + 1):
                for load in plan.loads:
                    for name, subject in subjects:
                        on_step(f"{name}: {_described(*load)}", 0)
                        window = _measure_load(plan, name, subject, load, turn, fleet, recorder, on_progress)
                        # The floor outruns one load process; its CPU per step, which it is there for, still holds.
                        windows += [window] if name != FLOOR else []
            for text in warnings_of(windows):
                recorder.note(text)
            recorder.fact(spread_of(recorder.run()))


def _recipes(peer: Peer, python: Path, app: Path) -> list[Recipe]:
    """The peer and EnvHive next to each other, in both forms, and the floor."""
    return [
        peers.peer_server(peer, python, "sync", app, f"{peer.name} sync"),
        envhive("benchmark", max_sessions=_MAX_SESSIONS, name=OURS_SYNC),
        peers.peer_server(peer, python, "async", app, f"{peer.name} async"),
        envhive("benchmark-async", max_sessions=_MAX_SESSIONS, name=OURS_ASYNC),
        bare_picows(FLOOR),
    ]


def _split_cores(recorder: Recorder) -> tuple[list[int], list[int]]:
    """One core for the server, another for the load, where the machine has them and lets us choose."""
    available = cores()
    if len(available) < 2 or sys.platform != "linux":
        recorder.note("Server and load shared their cores: trust the ratios of CPU per step, little else.")
        return [], []
    return available[:1], available[1:2]


def _measure_imports(peer: Peer, python: Path, turn: int, recorder: Recorder) -> None:
    theirs = peers.import_seconds(python, peer.client_import)
    ours = peers.import_seconds(Path(sys.executable), OUR_CLIENT_IMPORT)
    recorder.add(Figure(f"{peer.name} sync", "client import", theirs, turn))
    recorder.add(Figure(OURS_SYNC, "client import", ours, turn))


def _measure_life(
    plan: ComparePlan,
    recipe: Recipe,
    turn: int,
    server_cores: Sequence[int],
    fleet: LoadFleet,
    recorder: Recorder,
    on_progress: OnProgress,
) -> None:
    """A fresh server: how soon it is ready, how fast sessions open, what each of them weighs when it does nothing."""
    with Subject(recipe=recipe, pinned_to=server_cores) as subject:
        recorder.add(Figure(recipe.name, "ready after", subject.ready_after_s, turn))
        # Once before it counts: what the first session loads and allocates is not the price of a session.
        _open_and_close(subject, fleet, 8)
        before = subject.usage()
        budget = subject.budget(plan.idle_sessions, 1)
        opened = fleet.open(subject.url, budget, 64, 120.0, on_progress)
        # One step each, so that whatever a session makes on first use is there.
        fleet.drive('{"wait_seconds": 0.0}', 0.0, 0.5, on_progress, _nothing, _nothing, think_s=0.4)
        after = subject.usage()
        fleet.close()
        if opened.opened < plan.idle_sessions:
            recorder.note(f"{recipe.name} opened {opened.opened} of {plan.idle_sessions} sessions.")
            return
        recorder.add(Figure(recipe.name, "sessions opened", opened.opened / opened.wall_s, turn))
        if before is not None and after is not None:
            each = (after.memory - before.memory) / plan.idle_sessions
            recorder.add(Figure(recipe.name, "memory per idle session", each, turn))


def _open_and_close(subject: Subject, fleet: LoadFleet, sessions: int) -> None:
    fleet.open(subject.url, subject.budget(sessions, 1), sessions, 60.0, lambda done, failed: None)
    fleet.close()


def _nothing() -> None:
    pass


def _measure_load(
    plan: ComparePlan,
    name: str,
    subject: Subject,
    load: tuple[int, float | None],
    turn: int,
    fleet: LoadFleet,
    recorder: Recorder,
    on_progress: OnProgress,
) -> SteadyWindow:
    if (said := subject.revive()) is not None:
        recorder.note(f"{name}: {said}")
    sessions, rate = load
    steady = SteadyPlan(rate=rate, seconds=plan.seconds, warm_up_s=plan.warm_up_s)
    window = measure_window(steady, sessions, turn, subject, fleet, 1, on_progress)
    if window.cut_short:
        raise KeyboardInterrupt  # the others have had whole ones
    for metric, value in _figures_of(window).items():
        recorder.add(Figure(name, metric, value, turn))
    if window.errors:
        recorder.note(f"{name}, {_described(*load)}: {window.errors}")
    return window


def _figures_of(window: SteadyWindow) -> dict[str, float]:
    if not window.latency.count:
        return {}
    if window.sessions == 1:
        return {"p50 of a step, 1 session": window.latency.p50}
    load = _described(window.sessions, window.rate)
    figures = {} if window.rate is not None else {f"steps/s, {load}": window.steps_per_s}
    if window.cpu_us_per_step is not None:
        figures[f"CPU per step, {load}"] = window.cpu_us_per_step
    return figures


def _described(sessions: int, rate: float | None) -> str:
    return f"{sessions} sessions" + ("" if rate is None else f" at {rate:g}/s")


# The table.


def compare_table(run: Run) -> Table:
    """A row for each metric: medians, and what of the peer's EnvHive needs, or how much more it does."""
    values = medians(run)
    names = list(dict.fromkeys(figure.server for figure in run.figures()))
    theirs = [name for name in names if name not in (OURS_SYNC, OURS_ASYNC, FLOOR)]
    peer = theirs[0].removesuffix(" sync").removesuffix(" async") if theirs else "peer"
    columns = [f"{peer} sync", f"{peer} async", OURS_SYNC, OURS_ASYNC, FLOOR]
    rows = []
    for metric in sorted(values, key=metric_order):
        row = values[metric]
        rows.append(
            [
                metric,
                *(_shown(metric, row.get(name)) for name in columns),
                ratio(row.get(OURS_SYNC), row.get(f"{peer} sync")),
                ratio(row.get(OURS_ASYNC), row.get(f"{peer} async")),
                ratio(row.get(OURS_ASYNC), row.get(FLOOR)),
            ]
        )
    header = ["what", *columns, "sync, ours/peer", "async, ours/peer", "async, ours/floor"]
    return Table(f"EnvHive beside {peer}", header, rows)


def medians(run: Run) -> dict[str, dict[str, float]]:
    """The middle of all rounds, for each metric and server."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for figure in run.figures():
        values[figure.metric][figure.server].append(figure.value)
    return {metric: {name: median(found) for name, found in row.items()} for metric, row in values.items()}


def spread_of(run: Run) -> str:
    """How far the rounds lie apart, in a sentence: that far, and no further, can the table be trusted."""
    rounds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for figure in run.figures():
        if figure.metric.startswith("CPU per step"):
            rounds[figure.server, figure.metric].append(figure.value)
    if max(map(len, rounds.values()), default=0) < 2:
        return "One round only: how far to trust these figures is not known. Leave out --quick, or give --rounds."
    furthest = max(abs(value / median(values) - 1) for values in rounds.values() for value in values)
    return f"No round was further than {furthest:.0%} from its median CPU per step."


def ratio(ours: float | None, theirs: float | None) -> str:
    """Ours over theirs, as a fraction when it is small.

    Example:
        >>> ratio(10.0, 100.0), ratio(30.0, 20.0), ratio(None, 1.0)
        ('1/10.0', '1.50 ×', '–')
    """
    if not ours or not theirs or not math.isfinite(ours / theirs) or ours < 0 or theirs < 0:
        return "–"
    return f"1/{theirs / ours:.1f}" if ours < theirs / 1.05 else f"{ours / theirs:.2f} ×"


_ORDER: Final = ("CPU per step", "steps/s", "p50", "memory", "sessions opened", "ready", "client import")


def metric_order(metric: str) -> tuple[int, int, str]:
    """Where a metric stands in tables and plots."""
    digits = "".join(filter(str.isdigit, metric.partition(",")[2]))
    place = next((place for place, begin in enumerate(_ORDER) if metric.startswith(begin)), len(_ORDER))
    return place, int(digits or 0), metric


def _shown(metric: str, value: float | None) -> str:
    if value is None:
        return "–"
    if metric.startswith("CPU per step"):
        return f"{value:.1f} µs"
    if metric.startswith("memory"):
        return size(value)
    if metric.startswith("steps/s"):
        return number(value)
    return f"{number(value)}/s" if metric.startswith("sessions opened") else duration(value)
