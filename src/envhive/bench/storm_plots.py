"""The plots of storms, and what all plots are drawn with. Each function draws one, or says that there is nothing to."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from envhive.bench.records import Run, StormCell
from envhive.bench.stats import SUCCESS_GOAL, median
from envhive.bench.storm import max_batches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Told apart by people who see colours differently, too.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a7a7a")
_PHASES: Final = (("connect", "#56b4e9"), ("reset", "#e69f00"), ("step", "#0072b2"), ("close", "#7a7a7a"))
_Cells = dict[tuple[float, int], list[StormCell]]
"""The repetitions of each wait and batch."""
_LONGEST: Final = 80
"""Signs of a name that are drawn; of a longer one the middle is left out."""


def bare(axes: Axes) -> Axes:
    """Without the frame that says nothing."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def colour_of(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def words(text: str, width: int) -> str:
    """A name that somebody chose, in lines, so that matplotlib draws it and does not read it as an order."""
    seen = "".join(sign if sign.isprintable() or sign.isspace() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    seen = " ".join(seen.split()) or "–"
    if len(seen) > _LONGEST:
        seen = f"{seen[: _LONGEST // 2]}…{seen[1 - _LONGEST // 2 :]}"
    lines = "\n".join(textwrap.wrap(seen, width)).replace("$", r"\$")  # else what is between two is mathematics
    return f"\N{ZERO WIDTH SPACE}{lines}" if lines.startswith("_") else lines  # else it is left out of the legend


def legend(figure: Figure, axes: Axes, handles: list[Line2D] | None = None) -> None:
    """Beside the axes, where it hides nothing; the figure is made high enough for it."""
    drawn = axes.legend(
        handles=handles, frameon=False, fontsize=8, handlelength=3, loc="upper left", bbox_to_anchor=(1, 1)
    )
    lines = sum(1 + text.get_text().count("\n") for text in drawn.get_texts())
    figure.set_figheight(max(figure.get_figheight(), len(figure.axes) * (1.2 + 0.18 * lines)))


def plain_ticks(axes: Axes, values: Iterable[float]) -> None:
    """A tick for each value, unless it is so near to the last that their labels would touch."""
    place: Callable[[float], float] = math.log2 if axes.get_xscale() == "log" else float
    ordered = sorted(set(values))
    apart = (place(ordered[-1]) - place(ordered[0])) / 14
    ticks = ordered[:1]
    for value in ordered[1:]:
        if place(value) - place(ticks[-1]) >= apart:
            ticks.append(value)
    if ordered[-1] not in ticks:
        ticks[-1:] = ordered[-1:]  # where the axis ends is always said
    axes.set_xticks(ticks, [f"{value:,.10g}" for value in ticks], fontsize=8)
    axes.xaxis.minorticks_off()


# Storms.


def _storms(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run.cells()]


def _bars_of_batches(runs: list[Run], figure: Figure, per_core: bool) -> bool:
    """A group of bars for each infrastructure, a bar for each mode and wait that it was measured with."""
    found = [(run, max_batches(run.cells())) for run in _storms(runs) if not per_core or run.info.server_cores]
    if not found:
        return False
    axes = bare(figure.add_subplot())
    keys = sorted({key for _, batches in found for key in batches})
    crowded = len(found) * len(keys) > 12
    group_width = max(1.4, (0.3 if crowded else 0.65) * len(keys))
    figure.set_size_inches(max(8.0, 2 + len(found) * group_width), 4.8)
    width = 0.8 / len(keys)
    for place, key in enumerate(keys):
        groups = [(group, run, batches[key]) for group, (run, batches) in enumerate(found) if key in batches]
        at = [group + (place - (len(keys) - 1) / 2) * width for group, _, _ in groups]
        heights = [batch / (run.info.server_cores or 1) if per_core else batch for _, run, batch in groups]
        bars = axes.bar(at, heights, width * 0.92, color=colour_of(place), label=f"{key[0]}, wait {key[1]:g} s")
        shown = [f"{height:,.0f}" if height >= 10 else f"{height:.2g}" for height in heights]
        labels = [_at_least(run, key, batch) + text for (_, run, batch), text in zip(groups, shown, strict=True)]
        axes.bar_label(bars, labels, fontsize=8, padding=2, rotation=90 if crowded else 0)
    axes.set_xticks(range(len(found)), [words(run.info.label, 16) for run, _ in found], fontsize=9)
    axes.set(xlim=(-0.6, len(found) - 0.4), ylabel="sessions per core" if per_core else "sessions at once")
    axes.set_ylim(0, max(1.2 * axes.dataLim.ymax, 1))
    legend(figure, axes)
    return True


def _at_least(run: Run, key: tuple[str, float], batch: int) -> str:
    """The sign before the largest batch that was borne if no larger one was tried: more may be."""
    return "≥ " if batch == max(_by_cell(run)[key]) else ""


def draw_max_batch(runs: list[Run], figure: Figure) -> bool:
    return _bars_of_batches(runs, figure, per_core=False)


def draw_per_core(runs: list[Run], figure: Figure) -> bool:
    return _bars_of_batches(runs, figure, per_core=True)


def _by_cell(run: Run) -> dict[tuple[str, float], dict[int, list[StormCell]]]:
    groups: dict[tuple[str, float], dict[int, list[StormCell]]] = defaultdict(lambda: defaultdict(list))
    for cell in run.cells():
        groups[cell.mode, cell.wait_s][cell.sessions].append(cell)
    return groups


def draw_success(runs: list[Run], figure: Figure) -> bool:
    runs = _storms(runs)
    if not runs:
        return False
    figure.set_size_inches(9, 4.5)
    axes = bare(figure.add_subplot())
    styles = ("-", "--", ":", "-.")
    for place, run in enumerate(runs):
        for number, ((mode, wait_s), batches) in enumerate(sorted(_by_cell(run).items())):
            sizes = sorted(batches)
            worst = [100 * min(cell.success for cell in batches[size]) for size in sizes]
            style, label = styles[number % len(styles)], words(f"{run.info.label}, {mode}, wait {wait_s:g} s", 34)
            axes.plot(sizes, worst, style, marker="o", ms=4, color=colour_of(place), label=label)
    axes.axhline(100 * SUCCESS_GOAL, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    plain_ticks(axes, (cell.sessions for run in runs for cell in run.cells()))
    axes.set(ylim=(-3, 104), xlabel="sessions at once", ylabel="success, worst repetition (%)")
    legend(figure, axes)
    return True


def draw_heat_map(runs: list[Run], figure: Figure) -> bool:
    """A panel for each run and mode."""
    panels: dict[tuple[int, str], _Cells] = defaultdict(lambda: defaultdict(list))
    for place, run in enumerate(runs):
        for cell in sorted(run.cells(), key=lambda cell: cell.mode):
            panels[place, cell.mode][cell.wait_s, cell.sessions].append(cell)
    if not panels:
        return False
    every = [(_p99(group) or 0.0, key) for cells in panels.values() for key, group in cells.items()]
    highest = max(_excess(value, key) for value, key in every) or 1.0
    rows = [1 + 0.35 * len({wait for wait, _ in cells}) for cells in panels.values()]
    columns = max(len({size for _, size in cells}) for cells in panels.values())
    figure.set_size_inches(max(8.0, 1.5 + 0.7 * columns), 1 + sum(rows))
    places = figure.add_gridspec(len(panels), height_ratios=rows)
    for number, ((place, mode), cells) in enumerate(panels.items()):
        axes = figure.add_subplot(places[number])
        axes.set_title(words(f"{runs[place].info.label}, {mode}", 90), fontsize=9)
        _heat(axes, cells, highest)
    return True


def _excess(seconds: float, of: tuple[float, int]) -> float:
    """What a session took beyond the wait that was asked for: only that tells a good cell from a bad one."""
    return max(seconds - of[0], 0.0)


def _p99(cells: list[StormCell]) -> float | None:
    """Of the repetitions in which a session got through."""
    times = [cell.whole.p99 for cell in cells if cell.whole.count]
    return median(times) if times else None


def _heat(axes: Axes, cells: _Cells, highest: float) -> None:
    """The p99 for each wait and batch that was measured.

    It is in the text; the colour is what of it exceeds the wait. Where too few got through, it is that of the lucky
    ones, which the hatching says.
    """
    from matplotlib.patches import Rectangle

    waits, sizes = sorted({wait for wait, _ in cells}), sorted({size for _, size in cells})
    values = [[_p99(cells.get((wait, size), [])) or math.nan for size in sizes] for wait in waits]
    heat = [[_excess(value, (wait, 0)) for value in line] for wait, line in zip(waits, values, strict=True)]
    axes.imshow(heat, aspect="auto", cmap="YlOrRd", vmin=0, vmax=highest)
    axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    axes.set_yticks(range(len(waits)), [f"{wait:g} s" for wait in waits])
    axes.set(xlabel="sessions at once", ylabel="wait")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            shown = f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
            if math.isnan(value):
                shown = "failed" if (waits[row], sizes[column]) in cells else "–"
            elif (success := min(cell.success for cell in cells[waits[row], sizes[column]])) < SUCCESS_GOAL:
                shown += f"\nonly {int(100 * success)} %"
                corner = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor="#bbbbbb", linewidth=0))
            dark = heat[row][column] > 0.6 * highest
            axes.text(column, row, shown, ha="center", va="center", fontsize=8, color="white" if dark else "black")


def _mean_of(phase: str, cell: StormCell) -> float:
    """How long a phase took; closing is what is left of the whole."""
    if phase != "close":
        return float(getattr(cell, phase).mean)
    return max(cell.whole.mean - cell.connect.mean - cell.reset.mean - cell.step.mean, 0.0)


def draw_breakdown(runs: list[Run], figure: Figure) -> bool:
    from matplotlib.patches import Patch

    panels = [(run, *item) for run in _storms(runs) for item in sorted(_by_cell(run).items())]
    if not panels:
        return False
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure.set_size_inches(max(8.0, 1 + 3.6 * columns), 0.8 + 3.4 * rows)
    for place, (run, (mode, wait_s), batches) in enumerate(panels):
        axes = bare(figure.add_subplot(rows, columns, place + 1))
        axes.set_title(words(f"{run.info.label}, {mode}, wait {wait_s:g} s", 42), fontsize=9)
        sizes = sorted(size for size in batches if any(cell.whole.count for cell in batches[size]))
        if not sizes:
            axes.text(0.5, 0.5, "no session got through", ha="center", va="center", transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
            continue
        bottom = [0.0] * len(sizes)
        for phase, colour in _PHASES:
            heights = [median(_mean_of(phase, cell) for cell in batches[size] if cell.whole.count) for size in sizes]
            axes.bar([f"{size:,}" for size in sizes], heights, bottom=bottom, color=colour)
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        axes.set(xlabel="sessions at once", ylabel="mean (s)")
        axes.tick_params(axis="x", labelsize=8, rotation=45 if len(sizes) > 6 else 0)
    handles = [Patch(color=colour, label=phase) for phase, colour in reversed(_PHASES)]
    figure.legend(handles=handles, frameon=False, fontsize=9, loc="outside right upper")
    return True
