"""The plots of one run or several. Each function draws one, or says that there is nothing in these runs to draw."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from envhive.bench.compare import FLOOR, OURS_ASYNC, OURS_SYNC, medians, metric_order
from envhive.bench.records import Run, SteadyWindow, Verdict
from envhive.bench.stats import Summary, median
from envhive.bench.storm_plots import (
    COLOURS,
    bare,
    colour_of,
    draw_breakdown,
    draw_heat_map,
    draw_max_batch,
    draw_per_core,
    draw_success,
    legend,
    plain_ticks,
    words,
)
from envhive.bench.tables import loop_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import LineStyleType

_PERCENTILES: Final[Sequence[tuple[str, str, LineStyleType]]] = (
    ("p50", "o", "-"),
    ("p90", "s", "--"),
    ("p99", "^", "-."),
    ("p999", "D", ":"),
)
_DPI: Final = 130


class Plot(msgspec.Struct, frozen=True):
    """A picture on disk, and what it shows."""

    path: Path
    title: str
    text: str


class _Sketch(msgspec.Struct, frozen=True):
    """A plot that could be drawn: its file's name, what it shows, and how."""

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
            figure.suptitle(sketch.title)
            if sketch.draw(list(runs), figure):
                caption = textwrap.fill(sketch.text, int(16 * figure.get_figwidth()))
                figure.supxlabel(caption, fontsize=8, color="#555555")
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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a box is drawn in its place
        yield figure


# Sessions that stay.


class _Line(msgspec.Struct, frozen=True):
    """What a run measured at each level of load, and where that broke it."""

    label: str
    levels: dict[float, list[Summary]]
    """The repetitions of each level."""
    verdicts: list[Verdict]


def _lines(runs: list[Run], by_rate: bool) -> list[_Line]:
    """The levels are rates or numbers of sessions. Where they are rates, each number of sessions has its own line."""
    lines = []
    for run in runs:
        groups: dict[int, dict[float, list[Summary]]] = defaultdict(lambda: defaultdict(list))
        for window in run.windows():
            if window.latency.count and window.rate is not None and by_rate:
                groups[window.sessions][window.rate].append(window.latency)
            elif window.latency.count and window.rate is None and not by_rate:
                groups[0][window.sessions].append(window.latency)
        verdicts = [verdict for verdict in run.verdicts() if (verdict.ramp == "rate") == by_rate]
        for sessions, levels in sorted(groups.items()):
            label = f"{run.info.label}, {sessions:,} sessions" if len(groups) > 1 else run.info.label
            lines.append(_Line(label, levels, verdicts))
    return lines


def _latency(runs: list[Run], figure: Figure) -> bool:
    """Percentiles of the step over the level of load; a panel for rates, another for numbers of sessions."""
    panels = [(by_rate, lines) for by_rate in (True, False) if (lines := _lines(runs, by_rate))]
    if not panels:
        return False
    figure.set_size_inches(9, 0.8 + 3.8 * len(panels))
    for axes, (by_rate, lines) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        axes.set(xlabel="steps/s asked for" if by_rate else "sessions", ylabel="latency of a step (ms)", yscale="log")
        _draw_lines(bare(axes), lines)
        legend(figure, axes, _keys(lines))
    return True


def _keys(lines: list[_Line]) -> list[Line2D]:
    """What the legend says: a colour for each line, a style for each percentile."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=colour_of(place), linewidth=3, label=words(line.label, 34))
        for place, line in enumerate(lines)
    ]
    for name, marker, style in _PERCENTILES:
        label = name.replace("999", "99.9")
        keys.append(Line2D([], [], marker=marker, linestyle=style, markersize=4, color="#555555", label=label))
    return keys


def _draw_lines(axes: Axes, lines: list[_Line]) -> None:
    levels = sorted({level for line in lines for level in line.levels})
    if len(levels) > 2 and levels[-1] >= 4 * levels[0]:
        axes.set_xscale("log", base=2)
    for place, line in enumerate(lines):
        colour, own = colour_of(place), sorted(line.levels)
        for name, marker, style in _PERCENTILES:
            times = [1e3 * median(getattr(latency, name) for latency in line.levels[level]) for level in own]
            axes.plot(own, times, marker=marker, linestyle=style, markersize=4, color=colour)
        for verdict in line.verdicts:
            if verdict.p99_limit_s is not None:
                axes.axhline(1e3 * verdict.p99_limit_s, color="#999999", linewidth=0.8, linestyle=":")
            if verdict.broke is not None:
                axes.axvline(verdict.broke, color=colour, linewidth=0.8)
                axes.annotate(
                    f"broke: {verdict.resource}", (verdict.broke, 0.02 + place % 3 * 0.33),
                    xycoords=("data", "axes fraction"), xytext=(-2, 0), textcoords="offset points",
                    rotation=90, ha="right", va="bottom", fontsize=8, color=colour,
                )  # fmt: skip
    plain_ticks(axes, levels)
    _label_decades(axes)


def _label_decades(axes: Axes) -> None:
    """Plain numbers on a logarithmic axis; between the powers of ten only where these are too few."""
    from matplotlib.ticker import LogLocator

    lowest, highest = axes.get_ylim()
    decades = math.log10(highest / lowest)
    axes.yaxis.set_major_formatter("{x:g}")
    if 1 <= decades < 2:
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    if decades < 2:
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
    else:
        axes.yaxis.set_minor_formatter("")


# Beside each other.


def _windows_together(runs: list[Run], figure: Figure) -> bool:
    """A panel for each figure of a steady window, a group of bars for each load, a colour for each run."""
    from matplotlib.patches import Patch

    found = [run for run in runs if run.info.kind == "steady" and run.windows()]
    if len(found) < 2:
        return False
    loads = sorted({(window.sessions, loop_of(window)) for run in found for window in run.windows()})
    names = ("server CPU per step (µs)", "steps/s (more is better)", "memory per session (kB)")
    figure.set_size_inches(max(9.0, 3 + 0.5 * len(loads) * len(found)), 3.0 * len(names))
    width = 0.8 / len(found)
    for axes, name in zip(figure.subplots(len(names)), names, strict=True):
        bare(axes).set_title(name, fontsize=9)
        for place, run in enumerate(found):
            values: dict[int, list[float]] = defaultdict(list)
            for window in run.windows():
                if (value := _value_of(window, name)) is not None:
                    values[loads.index((window.sessions, loop_of(window)))].append(value)
            at = [group + (place - (len(found) - 1) / 2) * width for group in values]
            heights = [median(repetitions) for repetitions in values.values()]
            bars = axes.bar(at, heights, width * 0.92, color=colour_of(place))
            axes.bar_label(bars, fmt=lambda value: f"{value:,.3g}" if value < 100 else f"{value:,.0f}", fontsize=7)
        axes.set_xticks(range(len(loads)), [f"{sessions:,}, {loop}" for sessions, loop in loads], fontsize=8)
        axes.margins(y=0.15)
    handles = [Patch(color=colour_of(place), label=words(run.info.label, 34)) for place, run in enumerate(found)]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside right upper")
    return True


def _value_of(window: SteadyWindow, name: str) -> float | None:
    if name.startswith("steps/s"):
        return window.steps_per_s
    if name.startswith("memory"):
        return None if window.memory_per_session is None else window.memory_per_session / 1e3
    return window.cpu_us_per_step


# Beside the peer.


def _beside(runs: list[Run], figure: Figure) -> bool:
    """A small panel for each metric, a bar for each server."""
    found = [run for run in runs if run.figures()]
    if not found:
        return False
    figure.suptitle(f"{figure.get_suptitle()}: {words(found[-1].info.label, 90)}")
    values = medians(found[-1])
    metrics = sorted(values, key=metric_order)
    columns = min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    figure.set_size_inches(11, 2.5 * rows)
    for place, metric in enumerate(metrics):
        axes = bare(figure.add_subplot(rows, columns, place + 1))
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
    return COLOURS[0] if server in (OURS_SYNC, OURS_ASYNC) else "#bbbbbb" if server == FLOOR else COLOURS[1]


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
        "The largest number of sessions at once of which 95 % got through, in every repetition; ≥: no larger one was "
        "tried.",
        draw_max_batch,
    ),
    _Sketch(
        "sessions_per_core",
        "Sessions per core",
        "Max batch over the cores of the server's machine; ≥: no larger batch was tried.",
        draw_per_core,
    ),
    _Sketch(
        "success",
        "Success against batch size",
        "The worst repetition of each batch; the dotted line is 95 %.",
        draw_success,
    ),
    _Sketch(
        "p99_heat_map",
        "p99 over batch and wait",
        "The slowest hundredth of the sessions, from the storm's beginning to their close. The colour is what exceeds "
        "the wait. Hatched: fewer than 95 % got through, and it is theirs; failed: none did; –: not measured.",
        draw_heat_map,
    ),
    _Sketch(
        "latency_breakdown",
        "Where the time goes",
        "The mean time of connecting, resetting, stepping and closing, which make up the whole. A step sleeps for the "
        "wait.",
        draw_breakdown,
    ),
    _Sketch(
        "step_latency",
        "Latency of a step",
        "Sessions that stay; percentiles of all steps of a window, the median of its repetitions.",
        _latency,
    ),
    _Sketch(
        "steady_together",
        "Steady load, beside each other",
        "Medians of the windows of each run. No bar: not known, such as the CPU of a server elsewhere.",
        _windows_together,
    ),
    _Sketch(
        "beside_the_peer",
        "EnvHive beside the peer",
        "Medians over the rounds, measured in turns in one run. Grey is the floor: frames sent straight back.",
        _beside,
    ),
)
