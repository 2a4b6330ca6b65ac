"""Results as tables: rows of text first, so that terminal and report show the same."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from envhive.bench.load import BUSY, DIED
from envhive.bench.records import Run, SteadyWindow, StormCell, Verdict
from envhive.bench.stats import SUCCESS_GOAL, median
from envhive.bench.storm import max_batches

_HICCUP_S: Final = 0.5
_DISTURBED: Final = 0.3
"""Cores that other programs may use before a measurement beside them is in doubt."""
_MOST_OF_IT: Final = 0.9
ENOUGH_FOR_P99: Final = 100
"""Of fewer than so many the percentile is the largest."""
_ENOUGH_FOR_P999: Final = 1000


_STEADY_COLUMNS: Final = [
    *("sessions", "loop", "success", "steps/s", "p50", "p90", "p99", "p99.9", "slowest", "server CPU/step"),
    *("server CPU", "memory/session", "opened/s", "load CPU", "errors"),
]
_VERDICT_COLUMNS: Final = ["ramp of", "held", "broke at", "what broke", "for want of", "evidence"]


class Table(msgspec.Struct, frozen=True):
    """A title, the names of the columns, and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    keys: int = 1
    """Columns, from the first, that tell the rows apart."""


def duration(seconds: float | None) -> str:
    """Seconds as a person reads them.

    Example:
        >>> duration(0.000234), duration(0.0123), duration(3.21), duration(None)
        ('0.23 ms', '12.3 ms', '3.21 s', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 0.01:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def size(number: float | None) -> str:
    """Bytes as a person reads them.

    Example:
        >>> size(15_000), size(52_000_000)
        ('15.0 kB', '52.0 MB')
    """
    if number is None:
        return "–"
    return f"{number / 1e3:.1f} kB" if abs(number) < 1e6 else f"{number / 1e6:.1f} MB"


def share(number: float) -> str:
    """A share of one; never rounded up to all of it.

    Example:
        >>> share(0.99996), share(1.0), share(0.469)
        ('99.9 %', '100 %', '46.9 %')
    """
    return "100 %" if number >= 1 else f"{int(number * 1000) / 10:.1f} %"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def storm_table(run: Run) -> Table:
    """A row for each cell of the grid, the median of its repetitions; success is the worst of them."""
    groups = _grouped(run.cells())
    columns = ["mode", "wait", "sessions", "success", "connect p50", "reset p50", "step p50", "p50", "p90", "p99"]
    columns += ["req/s", "concurrency", "server CPU", "load CPU", "errors"]
    rows = []
    for (mode, wait_s, sessions), cells in sorted(groups.items()):
        times = [cell for cell in cells if cell.whole.count]
        phases = [[getattr(cell, phase).p50 for cell in times] for phase in ("connect", "reset", "step", "whole")]
        tails = [[cell.whole.p90 for cell in times], [cell.whole.p99 for cell in times]]
        spent = [cell.server_cpu_s for cell in cells if cell.server_cpu_s is not None]
        rows.append(
            [
                mode,
                _wait(wait_s),
                f"{sessions:,}",
                share(min(cell.success for cell in cells)),
                *(duration(median(values) if values else None) for values in phases + tails),
                number(median(cell.requests_per_s for cell in cells)),
                number(median(cell.concurrency for cell in cells) if wait_s else None),
                f"{median(spent):.2f} s" if spent else "–",
                share(max(cell.load_cpu for cell in cells)),
                errors_of(cells),
            ]
        )
    return Table(f"Storm: {run.info.label}", columns, rows, keys=3)


def max_batch_table(run: Run) -> Table:
    rows = []
    for (mode, wait_s), batch in sorted(max_batches(run.cells()).items()):
        key = (mode, wait_s)
        rows.append([mode, _wait(wait_s), _batch(run, key, batch), _per_core(run, key, batch)])
    return Table(
        f"Max batch: the largest with {SUCCESS_GOAL:.0%} success in every repetition",
        ["mode", "wait", "max batch", "per core"],
        rows,
    )


def _wait(seconds: float) -> str:
    """How long a step sleeps, where that is known: an action of the user's own takes what it takes."""
    return f"{seconds:g} s" if seconds else "–"


def _batch(run: Run, key: tuple[str, float], batch: int) -> str:
    """The largest batch that was borne; if no larger one was tried, more may be."""
    if not batch:
        return "none"
    largest = max(cell.sessions for cell in run.cells() if (cell.mode, cell.wait_s) == key)
    return f"≥ {batch:,}" if batch == largest else f"{batch:,}"


def _per_core(run: Run, key: tuple[str, float], batch: int) -> str:
    cores = run.info.server_cores
    if not cores or not batch:
        return "–"
    at_least = "≥ " if _batch(run, key, batch).startswith("≥") else ""
    return at_least + number(batch / cores)


def infrastructure_table(runs: Sequence[Run]) -> Table | None:
    """Storms beside each other: what each infrastructure bore at most, and how; None if there are not several."""
    storms = [run for run in runs if run.info.kind == "storm" and run.results]
    if len(storms) < 2:
        return None
    columns = ["infrastructure", "mode", "wait", "max batch", "cores", "batch per core", "p99", "req/s"]
    rows = []
    for run in storms:
        cores = run.info.server_cores
        for (mode, wait_s), batch in sorted(max_batches(run.cells()).items()):
            cells = [cell for cell in run.cells() if (cell.mode, cell.wait_s, cell.sessions) == (mode, wait_s, batch)]
            rows.append(
                [
                    *(run.info.label, mode, _wait(wait_s), _batch(run, (mode, wait_s), batch)),
                    *("–" if cores is None else str(cores), _per_core(run, (mode, wait_s), batch)),
                    duration(median(cell.whole.p99 for cell in cells) if cells else None),
                    number(median(cell.requests_per_s for cell in cells) if cells else None),
                ]
            )
    return Table("Infrastructures", columns, rows, keys=3)


def together(runs: Sequence[Run]) -> list[Table]:
    """What several runs have to say beside each other."""
    tables = (infrastructure_table(runs), steady_together(runs), knees_together(runs))
    return [table for table in tables if table is not None]


def steady_table(run: Run) -> Table:
    rows = [_steady_row(window) for window in run.windows()]
    return Table(f"Steady: {run.info.label}", _STEADY_COLUMNS, rows, keys=2)


def _steady_row(window: SteadyWindow) -> list[str]:
    latency = window.latency
    times: list[float | None] = [None] * 5
    if latency.count:
        times = [
            latency.p50,
            latency.p90,
            latency.p99 if latency.count >= ENOUGH_FOR_P99 else None,
            latency.p999 if latency.count >= _ENOUGH_FOR_P999 else None,
            latency.largest,
        ]
    return [
        f"{window.sessions:,}",
        loop_of(window),
        share(window.success),
        number(window.steps_per_s),
        *map(duration, times),
        "–" if window.cpu_us_per_step is None else f"{window.cpu_us_per_step:.1f} µs",
        "–" if window.server_cpu is None else f"{window.server_cpu:.2f} cores",
        size(window.memory_per_session),
        number(window.opened_per_s),
        share(window.load_cpu),
        errors_of([window]),
    ]


def steady_together(runs: Sequence[Run]) -> Table | None:
    """The windows of several runs beside each other, those of the same load next to each other."""
    steady = [run for run in runs if run.info.kind == "steady" and run.windows()]
    if len(steady) < 2:
        return None
    rows = [[*row[:2], run.info.label, *row[2:]] for run in steady for row in steady_table(run).rows]
    rows.sort(key=lambda row: (int(row[0].replace(",", "")), row[1]))
    columns = [*_STEADY_COLUMNS[:2], "infrastructure", *_STEADY_COLUMNS[2:]]
    return Table("Steady, beside each other", columns, rows, keys=3)


def knees_together(runs: Sequence[Run]) -> Table | None:
    """What broke each of several infrastructures, and where."""
    knees = [run for run in runs if run.verdicts()]
    if len(knees) < 2:
        return None
    rows = [[run.info.label, *_verdict_row(verdict)] for run in knees for verdict in run.verdicts()]
    return Table("Knees, beside each other", ["infrastructure", *_VERDICT_COLUMNS], rows, keys=2)


def loop_of(window: SteadyWindow) -> str:
    """How the steps came: at a fixed rate, or each after the last."""
    if window.rate is not None:
        return f"open, {window.rate:,g}/s"
    return f"closed, think {window.think_s:g} s" if window.think_s else "closed"


def knee_tables(run: Run) -> list[Table]:
    rows = [_verdict_row(verdict) for verdict in run.verdicts()]
    return [steady_table(run), Table("The knee", _VERDICT_COLUMNS, rows)]


def _verdict_row(verdict: Verdict) -> list[str]:
    levels = [number(verdict.held), number(verdict.broke)]
    return [verdict.ramp, *levels, verdict.why, verdict.resource, verdict.evidence]


def tables_of(run: Run) -> list[Table]:
    """The tables of a run, whatever kind it is."""
    if run.info.kind == "storm":
        return [storm_table(run), max_batch_table(run)]
    if run.info.kind == "steady":
        return [steady_table(run)]
    if run.info.kind == "knee":
        return knee_tables(run)
    from envhive.bench.compare import compare_table

    return [compare_table(run)]


def errors_of(results: Iterable[StormCell | SteadyWindow]) -> str:
    """The kinds of errors with their counts, the most frequent first."""
    total: Counter[str] = Counter()
    died, cut = False, list[str]()
    for result in results:
        total.update(result.errors)
        if isinstance(result, SteadyWindow) and result.unanswered:
            total["unanswered"] += result.unanswered
        if isinstance(result, SteadyWindow) and result.cut_short:
            cut = [f"cut short after {result.seconds:.1f} s"]
        died |= result.server_died
    said = [f"{count}× {kind}" for kind, count in total.most_common(3)]
    said += [f"{len(total) - 3} more kinds"] if len(total) > 3 else []
    return ", ".join((["server died"] if died else []) + said + cut) or "–"


def _outliers(cells: Sequence[StormCell]) -> list[str]:
    """Repetitions that took far longer than the others, which the medians of the table do not show."""
    said = []
    for (_, _, sessions), of_kind in _grouped(cells).items():
        tails = [cell.whole.p99 for cell in of_kind if cell.whole.count]
        if tails and max(tails) > 2 * median(tails) and max(tails) > median(tails) + _HICCUP_S:
            said.append(
                f"One repetition of {sessions:,} sessions had a p99 of {duration(max(tails))}, where the median of "
                f"the repetitions is {duration(median(tails))}."
            )
    return said


def _grouped(cells: Iterable[StormCell]) -> dict[tuple[str, float, int], list[StormCell]]:
    """The repetitions of each cell of the grid."""
    groups: dict[tuple[str, float, int], list[StormCell]] = defaultdict(list)
    for cell in cells:
        groups[cell.mode, cell.wait_s, cell.sessions].append(cell)
    return groups


def warnings_of(results: Sequence[object]) -> list[str]:
    """What makes the figures say less than they seem to."""
    said = []
    measured = [result for result in results if isinstance(result, (StormCell, SteadyWindow))]
    busy = [result.load_cpu for result in measured if result.success]  # being refused is quick work
    if max(busy, default=0) > BUSY:
        said.append(
            f"The load generator was the bottleneck: a load process used {max(busy):.0%} of a core. Give it more "
            f"--processes on more cores, or trust only the server's CPU per step."
        )
    windows = [result for result in results if isinstance(result, SteadyWindow)]
    if any(window.steps and window.server_processes and window.server_cpu is None for window in windows):
        said.append("The process of --pid used no CPU time while steps were answered: it is not the server's.")
    others = [result.other_cpu for result in measured if result.other_cpu is not None]
    if max(others, default=0.0) > _DISTURBED:
        said.append(
            f"Other programs used up to {max(others):.1f} cores of this machine meanwhile. Repeat it without them: on "
            f"a machine that others load, even a server's CPU per step has been seen to double."
        )
    storms = [result for result in measured if isinstance(result, StormCell)]
    hasty = [cell for cell in storms if cell.step.count and cell.step.p50 < _MOST_OF_IT * cell.wait_s]
    if hasty:
        said.append(
            f"Half of the steps took less than {duration(max(cell.step.p50 for cell in hasty))}, though they were to "
            f"wait for {' or '.join(f'{wait:g}' for wait in sorted({cell.wait_s for cell in hasty}))} s: this "
            f"environment does not, so nothing is shown of steps that take so long."
        )
    words: dict[str, str] = {}
    for result in measured:
        words = result.said | words
    said += [f"{kind}, in the server's words: {text}" for kind, text in words.items() if text]
    if "VALIDATION_ERROR" in words:
        said.append("If that is about the action, --action gives another.")
    if any(kind in result.errors for result in measured for kind in ("HTTP 401", "UNAUTHORIZED")):
        sent = "ENVHIVE_TOKEN" in os.environ
        said.append(
            "The server refused the token in ENVHIVE_TOKEN."
            if sent
            else "The server asks for a token: set ENVHIVE_TOKEN."
        )
    if any(DIED in result.errors for result in measured):
        said.append("A load process died: its sessions count as failed, which is no fault of the server's.")
    said += _outliers(storms)
    late = [window.lag.p99 for window in windows if window.lag.count]
    if max(late, default=0.0) > 0.005:
        said.append(
            f"The load generator sent steps late (p99 {duration(max(late))}), which the latencies include: "
            f"the machine has too few cores for load and server."
        )
    return said
