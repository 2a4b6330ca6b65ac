"""Results in words and numbers."""

from __future__ import annotations

import pytest

from envhive.bench.compare import compare_table, spread_of
from envhive.bench.load import DIED
from envhive.bench.records import Figure, Run, SteadyWindow
from envhive.bench.stats import summarise
from envhive.bench.tables import (
    errors_of,
    max_batch_table,
    steady_table,
    storm_table,
    tables_of,
    together,
    warnings_of,
)
from tests.bench import samples


def test_every_kind_of_run_has_tables_whose_rows_fit_their_columns() -> None:
    for run in samples.runs():
        for table in tables_of(run):
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.columns)}


def test_a_storm_shows_the_worst_success_and_what_went_wrong() -> None:
    cells = [samples.cell(64), samples.cell(64, 0.5, repetition=2, server_died=True)]
    (row,) = storm_table(Run(samples.info(), [*cells])).rows
    assert row[2:4] == ["64", "50.0 %"]
    assert row[-1] == "server died, 3× refused"


def test_the_max_batch_is_told_for_each_wait_and_per_core() -> None:
    cells = [samples.cell(32), samples.cell(128), samples.cell(512, 0.5), samples.cell(32, 0.0, wait_s=5.0)]
    assert max_batch_table(Run(samples.info(), [*cells])).rows == [
        ["ws", "1 s", "128", "64"],
        ["ws", "5 s", "none", "–"],
    ]
    assert max_batch_table(Run(samples.info(server_cores=None), [cells[0]])).rows == [["ws", "1 s", "≥ 32", "–"]]


def test_what_is_not_known_of_a_server_elsewhere_is_left_open() -> None:
    window = samples.window(cpu_us_per_step=None, server_cpu=None, memory_per_session=None)
    shown = shown_of(window)
    assert [shown[name] for name in ("server CPU/step", "server CPU", "memory/session")] == ["–", "–", "–"]


def shown_of(window: SteadyWindow) -> dict[str, str]:
    table = steady_table(Run(samples.info("steady"), [window]))
    return dict(zip(table.columns, table.rows[0], strict=True))


@pytest.mark.parametrize(("steps", "known"), [(99, set()), (100, {"p99"}), (1000, {"p99", "p99.9"})])
def test_a_percentile_of_too_few_steps_is_none_and_the_slowest_is_told(steps: int, known: set[str]) -> None:
    shown = shown_of(samples.window(latency=summarise([0.001] * (steps - 1) + [1.5])))
    assert {name for name in ("p99", "p99.9") if shown[name] != "–"} == known
    assert shown["slowest"] == "1.50 s"


def test_a_window_that_ctrl_c_ended_says_so() -> None:
    assert shown_of(samples.window(cut_short=True))["errors"] == "cut short after 2.0 s"


def test_a_process_without_cpu_time_is_not_taken_for_the_server() -> None:
    window = samples.window(cpu_us_per_step=None, server_cpu=None, server_processes=1)
    (said,) = warnings_of([window])
    assert "--pid" in said
    assert warnings_of([samples.window(cpu_us_per_step=None, server_cpu=None)]) == []


def test_runs_of_one_kind_stand_beside_each_other() -> None:
    one = Run(samples.info("steady", "one"), [samples.window(512), samples.window(64)])
    two = Run(samples.info("steady", "two"), [samples.window(64)])
    knee = Run(samples.info("knee", "one"), [samples.window(), *samples.runs()[2].verdicts()])
    (table,) = together([one, two, knee, Run(samples.info("storm"), [samples.cell()])])
    assert [row[:3] for row in table.rows] == [
        ["64", "closed", "one"],
        ["64", "closed", "two"],
        ["512", "closed", "one"],
    ]
    (table,) = together([knee, knee])
    assert [row[:2] for row in table.rows] == [["one", "sessions"]] * 2
    assert {len(row) for row in table.rows} == {len(table.columns)}


def test_success_counts_sessions_that_never_opened_and_steps_that_failed() -> None:
    assert samples.window().success == 1
    assert samples.window(opened=32).success == 0.5
    assert samples.window(opened=32, errors={"CAPACITY_REACHED": 32}, well=1000).success == 0.5
    assert samples.window(well=900, failed=100, errors={"EXECUTION_ERROR": 100}).success == 0.9
    assert samples.window(well=1000, unanswered=1000).success == 0.5
    assert samples.window(well=1000, lost=64, errors={"connection lost": 64}).success == 0
    assert samples.window(steps=0, well=64).success == 1  # each took longer than the window, and was answered
    assert samples.window(opened=0, steps=0).success == 0


def test_steps_without_an_answer_are_among_the_errors() -> None:
    assert errors_of([samples.window(unanswered=7)]) == "7× unanswered"


def test_the_servers_words_are_told_and_so_is_what_to_do() -> None:
    told = warnings_of([samples.window(said={"VALIDATION_ERROR": "by: Field required"}), samples.window()])
    assert told == [
        "VALIDATION_ERROR, in the server's words: by: Field required",
        "If that is about the action, --action gives another.",
    ]
    assert "ENVHIVE_TOKEN" in warnings_of([samples.cell(errors={"HTTP 401": 3})])[0]


def test_an_action_of_ones_own_has_no_wait_to_tell() -> None:
    table = storm_table(Run(samples.info(), [samples.cell(wait_s=0.0, concurrency=0.0)]))
    shown = dict(zip(table.columns, table.rows[0], strict=True))
    assert (shown["wait"], shown["concurrency"]) == ("–", "–")


def test_a_comparison_shows_ratios_of_medians_in_a_fixed_order() -> None:
    table = compare_table(Run(samples.info("compare"), samples.figures()))
    assert [row[0] for row in table.rows] == [
        "CPU per step, 64 sessions",
        "CPU per step, 512 sessions",
        "memory per idle session",
        "client import",
    ]
    assert table.rows[0][-3:] == ["1/10.0", "1/12.0", "1.25 ×"]
    assert table.rows[-1][-3:] == ["1/20.0", "–", "–"]


def test_a_comparison_says_how_far_its_rounds_lie_apart() -> None:
    figures = samples.figures()
    assert "One round only" in spread_of(Run(samples.info("compare"), figures))
    again = [
        Figure(figure.server, figure.metric, figure.value * 3, 2) for figure in figures if isinstance(figure, Figure)
    ]
    assert "No round was further than 50%" in spread_of(Run(samples.info("compare"), [*figures, *again]))


def test_a_load_generator_that_was_the_bottleneck_says_so() -> None:
    assert warnings_of([samples.cell(), samples.window()]) == []
    (said,) = warnings_of([samples.cell(load_cpu=0.95)])
    assert "load generator was the bottleneck" in said


def test_a_storm_that_was_refused_at_once_says_nothing_of_the_load_generator() -> None:
    assert warnings_of([samples.cell(success=0.0, load_cpu=0.97)]) == []


def test_a_repetition_far_from_the_others_is_told_as_medians_hide_it() -> None:
    slow = summarise([3.5] * 3)
    told = warnings_of([samples.cell(), samples.cell(), samples.cell(whole=slow)])
    assert any("One repetition of 32 sessions had a p99 of 3.50 s" in text for text in told)
    assert warnings_of([samples.cell(), samples.cell()]) == []


def test_a_load_process_that_died_is_not_held_against_the_server() -> None:
    cells = [samples.cell(32), samples.cell(128), samples.cell(128, 0.5, errors={DIED: 64})]
    assert max_batch_table(Run(samples.info(), [*cells])).rows == [["ws", "1 s", "≥ 128", "≥ 64"]]
    assert any("A load process died" in text for text in warnings_of(cells))


def test_a_token_that_was_refused_is_told_from_one_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [samples.cell(success=0.0, errors={"HTTP 401": 32})]
    monkeypatch.delenv("ENVHIVE_TOKEN", raising=False)
    assert "set ENVHIVE_TOKEN" in warnings_of(refused)[0]
    monkeypatch.setenv("ENVHIVE_TOKEN", "wrong-one")
    assert "refused the token" in warnings_of(refused)[0]


def test_steps_sent_late_and_busy_neighbours_are_told() -> None:
    (late,) = warnings_of([samples.window(lag=summarise([0.05]))])
    assert "sent steps late" in late
    (busy,) = warnings_of([samples.window(machine_cpu=1.9, server_cpu=0.5, load_cpu=0.2)])
    assert "Other programs" in busy
    (busy,) = warnings_of([samples.cell(other_cpu=0.9)])
    assert "0.9 cores" in busy
