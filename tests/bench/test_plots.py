"""What the plots say, read from the figures as they are saved."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from envhive.bench.plots import draw_all
from envhive.bench.records import Result, Run, SteadyWindow, Verdict
from envhive.bench.stats import Summary, summarise
from tests.bench import samples

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


def drawn(*runs: Run) -> dict[str, Figure]:
    """The figures of these runs by their files' names, drawn."""
    figures: dict[str, Figure] = {}
    save = Figure.savefig

    def keep(figure: Figure, path: Path, **given: Any) -> None:
        save(figure, path, **given)
        figures[path.stem] = figure

    with tempfile.TemporaryDirectory() as folder, patch.object(Figure, "savefig", keep):
        draw_all(runs, Path(folder))
    return figures


def storm(*cells: Result, label: str = "a box") -> Run:
    return Run(samples.info("storm", label), [*cells])


def steady(*results: Result, label: str = "a box") -> Run:
    return Run(samples.info("steady", label), [*results])


def window(sessions: int = 64, p50: float = 0.001, p999: float = 0.003, **more: Any) -> SteadyWindow:
    return samples.window(sessions, latency=Summary(9, p50, p50, p50, p999, p999, p999), **more)


def said(axes: Axes) -> list[str]:
    """What is written on the axes, their title and ticks not counted."""
    return [text.get_text() for text in axes.texts]


def in_legend(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


def ticks(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@settings(max_examples=8, derandomize=True, deadline=None, database=None)
@given(label=ANY_TEXT)
@example(label=r"a$\frac$")
@example(label="\x00\x1b[31m\n\ud800")
@example(label="")
@example(label="word " * 300)
@example(label="中文 🚀")
def test_any_label_can_be_drawn(label: str) -> None:
    results = [samples.cell(32), samples.window(64), *samples.figures()[:1]]
    assert len(drawn(Run(samples.info("storm", label), results))) == 7


def test_dollars_are_no_mathematics() -> None:
    figures = drawn(Run(samples.info("storm", "$5 and $6"), [samples.cell(32), samples.window(64)]))
    for name in ("max_batch", "success", "p99_heat_map", "latency_breakdown", "step_latency"):
        found = [text.get_text() for text in figures[name].findobj(Text) if isinstance(text, Text)]
        (shown,) = {text for text in found if "and" in text and "6" in text}
        assert not is_math_text(shown)
        assert shown.replace(r"\$", "$").startswith("$5 and $6")


def test_a_label_with_a_leading_underscore_is_in_the_legend() -> None:
    figures = drawn(Run(samples.info("storm", "_box"), [samples.cell(32), samples.window(64)]))
    for name in ("success", "step_latency"):
        assert any("_box" in text for text in in_legend(figures[name].axes[0]))


def test_labels_of_many_runs_do_not_overlap() -> None:
    runs = [storm(samples.cell(32), label=f"a machine with a long name, number {place}") for place in range(6)]
    axes = drawn(*runs)["max_batch"].axes[0]
    extents = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(extents) == 6
    assert all(left.x1 < right.x0 for left, right in pairwise(extents))


@pytest.mark.parametrize(("name", "bars"), [("max_batch", ["32", "0"]), ("sessions_per_core", ["16", "0"])])
def test_what_was_not_measured_has_no_bar(name: str, bars: list[str]) -> None:
    one = storm(samples.cell(32), samples.cell(64, 0.5), label="one")
    other = storm(samples.cell(32, 0.0, wait_s=5.0), label="other")
    axes = drawn(one, other)[name].axes[0]
    assert said(axes) == bars
    assert len(axes.patches) == 2


@pytest.mark.parametrize(("name", "bars"), [("max_batch", ["≥ 128", "64"]), ("sessions_per_core", ["≥ 64", "32"])])
def test_a_bar_says_that_no_larger_batch_was_tried(name: str, bars: list[str]) -> None:
    one = storm(samples.cell(32), samples.cell(128), label="one")
    other = storm(samples.cell(64), samples.cell(128, 0.5), label="other")
    assert said(drawn(one, other)[name].axes[0]) == bars


def test_the_heat_map_tells_what_failed_from_what_was_not_measured() -> None:
    cells = [samples.cell(32), samples.cell(128, 0.0), samples.cell(32, wait_s=5.0)]
    (axes,) = drawn(storm(*cells))["p99_heat_map"].axes
    assert said(axes) == ["0.30 s", "failed", "0.30 s", "–"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_repetition_in_which_nothing_got_through_has_no_p99(order: tuple[int, ...]) -> None:
    cells = [samples.cell(32, success, repetition=number) for number, success in enumerate((1.0, 0.0, 0.0))]
    (axes,) = drawn(storm(*(cells[place] for place in order)))["p99_heat_map"].axes
    assert said(axes) == ["0.30 s\nonly 0 %"]


def test_a_cell_in_which_few_got_through_does_not_look_like_a_fast_one() -> None:
    (axes,) = drawn(storm(samples.cell(32), samples.cell(64, 0.5)))["p99_heat_map"].axes
    assert said(axes) == ["0.30 s", "0.30 s\nonly 50 %"]
    (hatched,) = axes.patches
    assert hatched.get_hatch()


def test_the_heat_is_what_exceeds_the_wait() -> None:
    late = summarise([3.5])
    cells = [samples.cell(32, whole=late), samples.cell(32, wait_s=3.0, whole=late), samples.cell(64, 0.0)]
    (axes,) = drawn(storm(*cells))["p99_heat_map"].axes
    heat = axes.images[0].get_array()
    assert heat is not None
    assert heat.filled(-1).tolist() == [[2.5, -1], [0.5, -1]]
    assert said(axes) == ["3.50 s", "failed", "3.50 s", "–"]


def test_modes_have_heat_maps_of_their_own() -> None:
    panels = drawn(storm(samples.cell(32), samples.cell(64, mode="http")))["p99_heat_map"].axes
    assert [axes.get_title() for axes in panels] == ["a box, http", "a box, ws"]
    assert [ticks(axes) for axes in panels] == [["64"], ["32"]]


def test_a_breakdown_without_a_session_says_so_and_the_legend_hides_no_bar() -> None:
    figure = drawn(storm(samples.cell(32), samples.cell(32, 0.0, wait_s=5.0)))["latency_breakdown"]
    assert [said(axes) for axes in figure.axes] == [[], ["no session got through"]]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"connect", "reset", "step", "close"}
    assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_the_parts_of_a_breakdown_make_up_the_whole() -> None:
    means = {"connect": 0.2, "reset": 0.3, "step": 1.1, "whole": 2.0}
    cell = samples.cell(32, **{phase: summarise([mean - 0.1, mean + 0.1]) for phase, mean in means.items()})
    (axes,) = drawn(storm(cell))["latency_breakdown"].axes
    heights = [patch.get_height() for patch in axes.patches if isinstance(patch, Rectangle)]
    assert heights == pytest.approx([0.2, 0.3, 1.1, 0.4])


def test_steady_runs_stand_beside_each_other() -> None:
    one = steady(samples.window(64, memory_per_session=3e4), samples.window(64, repetition=2, cpu_us_per_step=30.0))
    other = steady(samples.window(64, cpu_us_per_step=50.0), samples.window(512), label="other")
    figure = drawn(one, other)["steady_together"]
    assert [said(axes) for axes in figure.axes] == [["25", "50", "20"], ["500", "500", "500"], ["30"]]
    assert "steady_together" not in drawn(one)


def test_where_an_axis_ends_is_always_said() -> None:
    (axes,) = drawn(steady(*(window(sessions) for sessions in (32, 64, 128, 1024, 15_000, 16_384))))[
        "step_latency"
    ].axes
    assert ticks(axes)[-1] == "16,384"


def test_rates_and_sessions_have_panels_and_verdicts_of_their_own() -> None:
    rates = [samples.window(64, rate=rate) for rate in (250.0, 500.0)]
    of_rates = steady(*rates, Verdict("rate", 250, 500, "p99", "CPU", "busy"), label="rates")
    of_sessions = steady(window(32), window(64), Verdict("sessions", 32, 64, "p99", "memory", "none"), label="sessions")
    panels = drawn(of_rates, of_sessions)["step_latency"].axes
    assert [axes.get_xlabel() for axes in panels] == ["steps/s asked for", "sessions"]
    assert [said(axes) for axes in panels] == [["broke: CPU"], ["broke: memory"]]
    assert [in_legend(axes)[0] for axes in panels] == ["rates", "sessions"]
    assert [ticks(axes) for axes in panels] == [["250", "500"], ["32", "64"]]


def test_numbers_of_sessions_at_one_rate_are_told_apart() -> None:
    (axes,) = drawn(steady(*(samples.window(sessions, rate=500.0) for sessions in (64, 512))))["step_latency"].axes
    assert in_legend(axes)[:2] == ["a box, 64 sessions", "a box, 512 sessions"]


def test_repetitions_are_one_point_their_median() -> None:
    windows = [window(64, p50, repetition=number) for number, p50 in enumerate((0.001, 0.009, 0.002))]
    (axes,) = drawn(steady(*windows, window(128)))["step_latency"].axes
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[64, 2], [128, 1]]))


def test_latencies_between_powers_of_ten_are_labelled_only_where_there_is_room() -> None:
    for p999, labelled in ((0.005, True), (0.5, False)):
        (axes,) = drawn(steady(window(64, 0.001, p999)))["step_latency"].axes
        assert any(label.get_text() for label in axes.get_yticklabels(minor=True)) == labelled


def test_levels_that_double_are_evenly_spaced_and_plainly_labelled() -> None:
    (axes,) = drawn(steady(*(window(sessions) for sessions in (512, 1024, 2048))))["step_latency"].axes
    assert axes.get_xscale() == "log"
    assert ticks(axes) == ["512", "1,024", "2,048"]
    (axes,) = drawn(steady(window(64), window(512)))["step_latency"].axes
    assert axes.get_xscale() == "linear"


def test_each_picture_has_a_title() -> None:
    figures = drawn(*samples.runs())
    assert len(figures) == 7
    assert {name: figure.get_suptitle() for name, figure in figures.items()} == {
        "max_batch": "Max batch",
        "sessions_per_core": "Sessions per core",
        "success": "Success against batch size",
        "p99_heat_map": "p99 over batch and wait",
        "latency_breakdown": "Where the time goes",
        "step_latency": "Latency of a step",
        "beside_the_peer": "EnvHive beside the peer: a <box>",
    }
