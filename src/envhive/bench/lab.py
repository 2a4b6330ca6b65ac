"""One run of the lab, from the first bar to the report: whatever ends it, what was measured is kept and shown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envhive.bench import screen
from envhive.bench.limits import cores, is_loopback
from envhive.bench.records import (
    Kind,
    Recorder,
    RunInfo,
    SteadyWindow,
    StormCell,
    describe_machine,
    now,
    unused_folder,
)
from envhive.bench.servers import signals_as_ctrl_c
from envhive.bench.tables import tables_of, warnings_of
from envhive.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED: Final = 130
NOTHING_WORKED: Final = 1


class Lab:
    """What a measurement needs beside the server: a place to write, and a screen."""

    def __init__(self, recorder: Recorder, console: Console) -> None:
        self.recorder = recorder
        self.console = console

    def bars(self, total: int, unit: str) -> AbstractContextManager[tuple[screen.Step, screen.Update]]:
        return screen.progress(self.console, total, unit)


def new_run(
    kind: Kind, *, label: str | None, out: Path | None, command: str, url: str | None, server_cores: int | None
) -> Recorder:
    """Make the folder of a run."""
    local = url is None or is_loopback(url)
    info = RunInfo(
        kind=kind,
        label=label or ("this machine" if local else url or ""),
        began=now(),
        command=command,
        machine=describe_machine(),
        server_cores=server_cores or (len(cores()) if local else None),
    )
    return Recorder(out or unused_folder(Path("bench-results"), kind), info)


def conduct(recorder: Recorder, measure: Callable[[Lab], None]) -> int:
    """Measure, then show and draw what there is, also after Ctrl-C or a failure. Returns the exit code."""
    console = screen.console()
    failure: ConfigurationError | None = None
    code = 0
    with signals_as_ctrl_c():
        try:
            measure(Lab(recorder, console))
        except KeyboardInterrupt:
            code = INTERRUPTED
            recorder.note("Interrupted: these are the results up to then.")
        except ConfigurationError as error:
            failure = error
        try:
            if recorder.results:
                present(recorder, console)
            else:
                recorder.discard_if_empty()
        except KeyboardInterrupt:
            code = INTERRUPTED
            screen.remark(console, f"The report was not drawn. To draw it: envhive bench plot {recorder.folder}")
    if code == INTERRUPTED and not recorder.results:
        screen.remark(console, "Interrupted before the first result: nothing is kept.")
    if failure is not None:
        raise failure
    return code or (NOTHING_WORKED if _nothing_worked(recorder) else 0)


def _nothing_worked(recorder: Recorder) -> bool:
    """Whether no session of the whole run got through, which a script should not take for a measurement."""
    measured = [result for result in recorder.results if isinstance(result, (StormCell, SteadyWindow))]
    return bool(measured) and not any(result.success for result in measured)


def present(recorder: Recorder, console: Console) -> None:
    """The tables, what to beware of, and the report."""
    run = recorder.run()
    for text in warnings_of(run.results):
        recorder.note(text)
    for table in tables_of(run):
        screen.show(console, table)
    screen.remarks(console, recorder.info)

    from envhive.bench.report import write_report

    written = write_report([recorder.run()], recorder.folder)
    screen.remark(console, f"Results and report: {written}")
