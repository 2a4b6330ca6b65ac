"""The scaling test: storms of growing size, each repeated, and the largest batch that the server bears."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from envhive.bench import procfs
from envhive.bench.jobs import clock
from envhive.bench.load import DIED, LoadFleet, StormOutcome
from envhive.bench.plan import Cell, StormPlan
from envhive.bench.records import Recorder, StormCell
from envhive.bench.stats import max_batch, summarise
from envhive.bench.subject import GONE, Subject

OnCell = Callable[[Cell], None]
OnProgress = Callable[[int, int], None]


def run_storms(
    plan: StormPlan,
    subject: Subject,
    fleet: LoadFleet,
    recorder: Recorder,
    processes: int | None,
    on_cell: OnCell,
    on_progress: OnProgress,
) -> None:
    """Make the storms of a plan one after the other; each is recorded before the next begins."""
    for sessions in plan.sessions:
        subject.budget(sessions, processes)  # what cannot be opened is said before the first storm, not after hours
    for cell in plan.cells():
        if (said := subject.revive()) is not None:
            recorder.note(said)
        on_cell(cell)
        result = _storm(plan, cell, subject, fleet, recorder.info.server_cores, processes, on_progress)
        recorder.add(result)
        if result.server_died and subject.is_lost:
            recorder.note(GONE)
            return
    if (said := subject.epitaph()) is not None:
        recorder.note(said)


def _storm(
    plan: StormPlan,
    cell: Cell,
    subject: Subject,
    fleet: LoadFleet,
    server_cores: int | None,
    processes: int | None,
    on_progress: OnProgress,
) -> StormCell:
    budget = subject.budget(cell.sessions, processes)
    fleet.muster(len(budget.shares))  # or the start of the load processes would count as others' work
    before, machine_before, began = subject.cpu_s(), procfs.machine_cpu_seconds(), clock()
    outcome = fleet.storm(
        subject.url, budget, plan.action_for(cell.wait_s), plan.mode, plan.timeout_s, cell.wait_s, on_progress
    )
    ended, machine_after, after = clock(), procfs.machine_cpu_seconds(), subject.usage()
    died = subject.died(suspected=bool(outcome.errors))
    result = _as_cell(plan, cell, outcome, len(budget.shares), server_cores)
    if before is None or after is None or not after.processes:
        return msgspec.structs.replace(result, server_died=died)
    spent = after.cpu_s - before
    others = None
    if machine_before is not None and machine_after is not None:
        others = max(machine_after - machine_before - spent - outcome.load_cpu_s, 0.0) / (ended - began)
    return msgspec.structs.replace(
        result, server_cpu_s=spent, server_memory=after.memory, other_cpu=others, server_died=died
    )


def _as_cell(plan: StormPlan, cell: Cell, outcome: StormOutcome, processes: int, server_cores: int | None) -> StormCell:
    succeeded, step = len(outcome.whole), summarise(outcome.step)
    return StormCell(
        sessions=cell.sessions,
        wait_s=cell.wait_s,
        mode=plan.mode,
        repetition=cell.repetition,
        success=succeeded / cell.sessions,
        connect=summarise(outcome.connect),
        reset=summarise(outcome.reset),
        step=step,
        whole=summarise(outcome.whole),
        wall_s=outcome.wall_s,
        requests_per_s=2 * succeeded / outcome.wall_s,  # a reset and a step each
        concurrency=succeeded * min(cell.wait_s, step.p50) / outcome.wall_s,
        errors=outcome.errors,
        said=outcome.said,
        load_cpu=outcome.load_cpu,
        load_processes=processes,
        sessions_per_core=None if server_cores is None else succeeded / server_cores,
    )


def max_batches(cells: Iterable[StormCell]) -> dict[tuple[str, float], int]:
    """The largest batch borne in every repetition, for each mode and wait."""
    rates: dict[tuple[str, float], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        of_size = rates[cell.mode, cell.wait_s][cell.sessions]
        if DIED not in cell.errors:  # else it tells nothing of the server
            of_size.append(cell.success)
    return {key: max_batch(success) for key, success in rates.items()}
