"""A run on disk: written while it goes, read again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from envhive.bench.records import RESULTS_FILE, RUN_FILE, Recorder, load_run, unused_folder
from envhive.errors import ConfigurationError
from tests.bench import samples


@pytest.mark.parametrize("run", samples.runs(), ids=lambda run: run.info.kind)
def test_what_was_written_is_read_again(run: samples.Run, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", run.info)
    for result in run.results:
        recorder.add(result)
    assert load_run(tmp_path / "run") == run
    assert load_run(tmp_path / "run", "another name").info.label == "another name"


def test_a_result_is_on_disk_before_the_next_is_measured(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, samples.info())
    recorder.add(samples.cell())
    assert len((tmp_path / RESULTS_FILE).read_bytes().splitlines()) == 1


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, samples.info())
    recorder.add(samples.cell())
    with (tmp_path / RESULTS_FILE).open("ab") as file:
        file.write(b'{"type":"storm","sess')
    assert load_run(tmp_path).results == [samples.cell()]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, samples.info())
    (tmp_path / RESULTS_FILE).write_bytes(b"nonsense\n")
    recorder.add(samples.cell())
    with pytest.raises(ConfigurationError, match="line 1"):
        load_run(tmp_path)


def test_blank_lines_are_none_and_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, samples.info())
    recorder.add(samples.cell())
    results = tmp_path / "results.jsonl"
    line = results.read_bytes()
    results.write_bytes(line + b"\n" + line)
    assert len(load_run(tmp_path).results) == 2
    results.write_bytes(line.replace(b'"ws"', b'"\xff"') + line)
    with pytest.raises(ConfigurationError, match="line 1"):
        load_run(tmp_path)
    results.unlink()
    results.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_run(tmp_path)


def test_what_cannot_be_written_any_more_is_said_in_one_line_and_is_there_all_the_same(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", samples.info())
    (tmp_path / "run" / "results.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match="Cannot write"):
        recorder.add(samples.cell())
    recorder.note("Interrupted.")
    assert len(recorder.run().results) == 1


def test_a_note_is_kept_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, samples.info())
    for _ in range(2):
        recorder.note("The server died.")
    assert load_run(tmp_path).info.notes == ["A note & more.", "The server died."]


def test_a_run_is_not_written_over_another(tmp_path: Path) -> None:
    Recorder(tmp_path, samples.info()).add(samples.cell())
    with pytest.raises(ConfigurationError, match="holds a run already"):
        Recorder(tmp_path, samples.info())


def test_two_runs_of_one_moment_have_a_folder_each(tmp_path: Path) -> None:
    Recorder(tmp_path / "given", samples.info())
    with pytest.raises(ConfigurationError, match="holds a run already"):
        Recorder(tmp_path / "given", samples.info())
    folders = {unused_folder(tmp_path / "results", "storm") for _ in range(5)}
    assert len(folders) == 5
    for folder in folders:
        Recorder(folder, samples.info()).add(samples.cell())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Cannot write to"):
        unused_folder(tmp_path / "file", "storm")


def test_success_in_the_open_loop_is_of_the_steps_that_were_due() -> None:
    """There steps are due at lost sessions, too; in the closed loop a lost session asks for no more."""
    lost = {"well": 1352, "unanswered": 648, "lost": 32}
    assert samples.window(64, rate=500.0, **lost).success == pytest.approx(0.676)
    assert samples.window(64, well=1352, lost=32).success == 0.5
    assert samples.window(64, rate=500.0, well=0, lost=64).success == 0


def test_a_run_without_results_leaves_nothing_behind(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "new", samples.info())
    assert (tmp_path / "new" / RUN_FILE).exists()
    recorder.discard_if_empty()
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not the folder of a run"):
        load_run(tmp_path)
    (tmp_path / RUN_FILE).write_text("{}")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_run(tmp_path)


def test_a_place_that_cannot_be_written_to_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Cannot write to"):
        Recorder(tmp_path / "file" / "run", samples.info())
