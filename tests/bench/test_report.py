"""Plots and page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envhive.bench.records import Run
from envhive.bench.report import write_report
from envhive.errors import ConfigurationError
from tests.bench import samples

PLOTS_OF_A_STORM = {
    "max_batch.png",
    "sessions_per_core.png",
    "success.png",
    "p99_heat_map.png",
    "latency_breakdown.png",
}


def drawn(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.png")}


def test_a_storm_is_drawn_in_five_ways(tmp_path: Path) -> None:
    write_report([samples.runs()[0]], tmp_path)
    assert drawn(tmp_path) == PLOTS_OF_A_STORM
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("place", "name"), [(1, "step_latency.png"), (2, "step_latency.png"), (3, "beside_the_peer.png")]
)
def test_the_other_kinds_are_drawn_in_one(place: int, name: str, tmp_path: Path) -> None:
    write_report([samples.runs()[place]], tmp_path)
    assert drawn(tmp_path) == {name}


def test_several_runs_are_drawn_together(tmp_path: Path) -> None:
    page = write_report(samples.runs(), tmp_path).read_text()
    assert drawn(tmp_path) == PLOTS_OF_A_STORM | {"step_latency.png", "beside_the_peer.png"}
    assert page.count("<img") == 7
    assert "beside each other" not in page
    page = write_report([*samples.runs(), samples.runs()[1]], tmp_path).read_text()
    assert drawn(tmp_path) > {"steady_together.png"}
    assert "Steady, beside each other" in page


def test_the_page_needs_nothing_beside_it_and_is_escaped(tmp_path: Path) -> None:
    page = write_report(samples.runs(), tmp_path).read_text()
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)"', page))
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert "a &lt;box&gt;" in page
    assert "<box>" not in page
    assert "A note &amp; more." in page


def test_storms_of_which_none_got_through_are_drawn_too(tmp_path: Path) -> None:
    write_report([Run(samples.info(server_cores=None), [samples.cell(32, 0.0)])], tmp_path)
    assert drawn(tmp_path) == PLOTS_OF_A_STORM - {"sessions_per_core.png"}


def test_a_run_without_results_still_has_a_page(tmp_path: Path) -> None:
    assert "a &lt;box&gt;" in write_report([Run(samples.info(), [])], tmp_path).read_text()
    assert drawn(tmp_path) == set()


def test_a_place_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Cannot write the report"):
        write_report(samples.runs(), tmp_path / "file" / "report")
