"""The plots of one run or several. Each function draws one, or says that there is nothing in these runs to draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from envhive.bench.compare import FLOOR, OURS_ASYNC, OURS_SYNC, medians, metric_order
from envhive.bench.records import Run, StormCell
from envhive.bench.stats import SUCCESS_GOAL, median
from envhive.bench.storm import max_batches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people who see colours differently, too.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a7a7a")
_PHASES: Final = (("connect", "#56b4e9"), ("reset", "#e69f00"), ("step", "#0072b2"))
_DPI: Final = 130


class Plot(msgspec.Struct, frozen=True):
    """A picture on disk, and what it shows."""

    path: Path
    title: str
    text: str


class _Sketch(msgspec.Struct, frozen=True):
    """A plot that could be drawn: its file's name, what it shows, how many panels, and how."""

    name: str
    title: str
    text: str
    draw: Callable[[list[Run], Any], bool]
    """Draws on a figure; False if the runs hold nothing for it."""


def draw_all(runs: Sequence[Run], folder: Path) -> list[Plot]:
    """Every plot that these runs have something for, as PNG files."""
    plots = []
    for sketch in _SKETCHES:
        path = folder / f"{sketch.name}.png"
        with _figure() as figure:
            if sketch.draw(list(runs), figure):
                figure.savefig(path, dpi=_DPI)
                plots.append(Plot(path, sketch.title, sketch.text))
    return plots


@contextmanager
def _figure() -> Iterator[Figure]:
    """A figure of its own, without pyplot: nothing global is changed, and no screen is looked for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure


def _bare(axes: Axes) -> Axes:
    """Without the frame that says nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


# Storms.


def _storms(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.cells()]


def _bars_of_batches(runs: list[Run], figure: Figure, per_core: bool) -> bool:
    """A group of bars for each infrastructure, a bar for each mode and wait."""
    found = [(run, max_batches(run.cells())) for run in _storms(runs)]
    found = [(run, batches) for run, batches in found if not per_core or run.info.server_cores]
    if not found:
        return False
    axes = _bare(figure.add_subplot())
    keys = sorted({key for _, batches in found for key in batches})
    width = 0.8 / len(keys)
    for place, (mode, wait_s) in enumerate(keys):
        heights = [
            batches.get((mode, wait_s), 0) / ((run.info.server_cores or 1) if per_core else 1) for run, batches in found
        ]
        at = [group + (place - (len(keys) - 1) / 2) * width for group in range(len(found))]
        bars = axes.bar(at, heights, width * 0.92, color=_colour(place), label=f"{mode}, wait {wait_s:g} s")
        axes.bar_label(bars, labels=[f"{height:,.0f}" for height in heights], fontsize=8, padding=2)
    axes.set_xticks(range(len(found)), [run.info.label for run, _ in found])
    axes.set_ylabel("sessions per core" if per_core else "sessions at once")
    axes.margins(y=0.12)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return True


def _max_batch(runs: list[Run], figure: Figure) -> bool:
    return _bars_of_batches(runs, figure, per_core=False)


def _per_core(runs: list[Run], figure: Figure) -> bool:
    return _bars_of_batches(runs, figure, per_core=True)


def _by_cell(run: Run) -> dict[tuple[str, float], dict[int, list[StormCell]]]:
    groups: dict[tuple[str, float], dict[int, list[StormCell]]] = defaultdict(lambda: defaultdict(list))
    for cell in run.cells():
        groups[cell.mode, cell.wait_s][cell.sessions].append(cell)
    return groups


def _success(runs: list[Run], figure: Figure) -> bool:
    runs = _storms(runs)
    if not runs:
        return False
    axes = _bare(figure.add_subplot())
    styles = ("-", "--", ":", "-.")
    for place, run in enumerate(runs):
        for number, ((mode, wait_s), batches) in enumerate(sorted(_by_cell(run).items())):
            sizes = sorted(batches)
            worst = [100 * min(cell.success for cell in batches[size]) for size in sizes]
            label = f"{run.info.label}, {mode}, wait {wait_s:g} s"
            axes.plot(sizes, worst, styles[number % len(styles)], marker="o", ms=4, color=_colour(place), label=label)
    axes.axhline(100 * SUCCESS_GOAL, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    _plain_ticks(axes, sorted({cell.sessions for run in runs for cell in run.cells()}))
    axes.set(ylim=(-3, 104), xlabel="sessions at once", ylabel="success, worst repetition (%)")
    axes.legend(frameon=False, fontsize=8)
    return True


def _plain_ticks(axes: Axes, values: Sequence[int]) -> None:
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.minorticks_off()


def _heat_map(runs: list[Run], figure: Figure) -> bool:
    runs = _storms(runs)
    if not runs:
        return False
    figure.set_size_inches(8, 1.6 + 1.9 * len(runs))
    highest = max((cell.whole.p99 for run in runs for cell in run.cells()), default=0.0) or 1.0
    for place, run in enumerate(runs):
        cells: dict[tuple[float, int], list[float]] = defaultdict(list)
        for cell in run.cells():
            cells[cell.wait_s, cell.sessions].append(cell.whole.p99 if cell.whole.count else float("nan"))
        waits, sizes = sorted({wait for wait, _ in cells}), sorted({size for _, size in cells})
        values = [[median(cells.get((wait, size), [float("nan")])) for size in sizes] for wait in waits]
        axes = figure.add_subplot(len(runs), 1, place + 1)
        axes.imshow(values, aspect="auto", cmap="YlOrRd", vmin=0, vmax=highest)
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.set_yticks(range(len(waits)), [f"{wait:g} s" for wait in waits])
        axes.set(title=run.info.label, xlabel="sessions at once", ylabel="wait")
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                shown = "failed" if value != value else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
                dark = value > 0.6 * highest
                axes.text(column, row, shown, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    return True


def _breakdown(runs: list[Run], figure: Figure) -> bool:
    runs = _storms(runs)
    if not runs:
        return False
    panels = [(run, *item) for run in runs for item in sorted(_by_cell(run).items())]
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure.set_size_inches(max(8.0, 3.6 * columns), 3.6 * rows)
    for place, (run, (mode, wait_s), batches) in enumerate(panels):
        axes = _bare(figure.add_subplot(rows, columns, place + 1))
        sizes = sorted(size for size in batches if any(cell.whole.count for cell in batches[size]))
        bottom = [0.0] * len(sizes)
        for phase, colour in _PHASES:
            heights = [median(getattr(cell, phase).p50 for cell in batches[size] if cell.whole.count) for size in sizes]
            axes.bar([f"{size:,}" for size in sizes], heights, bottom=bottom, color=colour, label=phase)
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        axes.set(title=f"{run.info.label}, {mode}, wait {wait_s:g} s", xlabel="sessions at once", ylabel="p50 (s)")
        axes.title.set_fontsize(9)
        axes.legend(frameon=False, fontsize=8)
    return True


# Sessions that stay.


def _latency(runs: list[Run], figure: Figure) -> bool:
    """Percentiles of the step over the level of load, for each run."""
    runs = [run for run in runs if any(window.latency.count for window in run.windows())]
    if not runs:
        return False
    axes = _bare(figure.add_subplot())
    by_rate = all(window.rate is not None for run in runs for window in run.windows())
    styles = (("p50", "-"), ("p90", "--"), ("p99", "-."), ("p999", ":"))
    for place, run in enumerate(runs):
        windows = [window for window in run.windows() if window.latency.count]
        windows.sort(key=lambda window: (window.rate or 0) if by_rate else window.sessions)
        levels = [(window.rate or 0) if by_rate else window.sessions for window in windows]
        for name, style in styles:
            times = [getattr(window.latency, name) * 1e3 for window in windows]
            label = f"{run.info.label}, {name.replace('999', '99.9')}"
            axes.plot(levels, times, style, marker="o", ms=4, color=_colour(place), label=label)
        for verdict in run.verdicts():
            if verdict.broke is not None:
                axes.axvline(verdict.broke, color=_colour(place), linewidth=0.8)
                axes.annotate(
                    f"broke: {verdict.resource}", (verdict.broke, 0.98), xycoords=("data", "axes fraction"),
                    rotation=90, ha="right", va="top", fontsize=8,
                )  # fmt: skip
    axes.set(xlabel="steps/s asked for" if by_rate else "sessions", ylabel="latency of a step (ms)", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.legend(frameon=False, fontsize=8)
    return True


# Beside the peer.


def _beside(runs: list[Run], figure: Figure) -> bool:
    """A small panel for each metric, a bar for each server."""
    found = [run for run in runs if run.figures()]
    if not found:
        return False
    values = medians(found[-1])
    metrics = sorted(values, key=metric_order)
    columns = min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    figure.set_size_inches(11, 2.5 * rows)
    for place, metric in enumerate(metrics):
        axes = _bare(figure.add_subplot(rows, columns, place + 1))
        servers = sorted(values[metric], key=lambda name: (name == FLOOR, "async" in name, "EnvHive" in name))
        factor, unit = _unit(metric)
        heights = [factor * values[metric][name] for name in servers]
        colours = [_bar_colour(name) for name in servers]
        bars = axes.bar([name.replace(" ", "\n") for name in servers], heights, color=colours)
        axes.bar_label(bars, fmt=lambda value: f"{value:,.3g}" if value < 100 else f"{value:,.0f}", fontsize=7)
        axes.set_title(f"{metric} ({unit})", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.margins(y=0.15)
    return True


def _bar_colour(server: str) -> str:
    return _COLOURS[0] if server in (OURS_SYNC, OURS_ASYNC) else "#bbbbbb" if server == FLOOR else _COLOURS[1]


def _unit(metric: str) -> tuple[float, str]:
    """What to multiply a figure with, and what it then is."""
    units = {
        "CPU": (1.0, "µs"),
        "steps/s": (1.0, "more is better"),
        "p50": (1e3, "ms"),
        "memory": (1e-3, "kB"),
        "sessions opened": (1.0, "per s, more is better"),
    }
    return next((unit for begin, unit in units.items() if metric.startswith(begin)), (1.0, "s"))


_SKETCHES: Final = (
    _Sketch(
        "max_batch",
        "Max batch",
        "The largest number of sessions at once of which 95 % got through, in every repetition.",
        _max_batch,
    ),
    _Sketch("sessions_per_core", "Sessions per core", "Max batch over the cores of the server's machine.", _per_core),
    _Sketch(
        "success",
        "Success against batch size",
        "The worst repetition of each batch; the dotted line is 95 %.",
        _success,
    ),
    _Sketch(
        "p99_heat_map",
        "p99 over batch and wait",
        "The slowest hundredth of the sessions, from the storm's beginning to their close. What exceeds the wait is "
        "the server's doing.",
        _heat_map,
    ),
    _Sketch(
        "latency_breakdown",
        "Where the time goes",
        "The median of connecting, resetting and stepping. A step sleeps for the wait.",
        _breakdown,
    ),
    _Sketch("step_latency", "Latency of a step", "Sessions that stay; percentiles of all steps of a window.", _latency),
    _Sketch(
        "beside_the_peer",
        "EnvHive beside the peer",
        "Medians over the rounds, measured in turns in one run. Grey is the floor: frames sent straight back.",
        _beside,
    ),
)
