"""The steady state: sessions that stay, in a closed loop or at a fixed rate, and what the server spends on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from envhive.bench.jobs import clock
from envhive.bench.load import DriveOutcome, LoadFleet, OpenOutcome
from envhive.bench.plan import SteadyPlan
from envhive.bench.procfs import Usage, machine_cpu_seconds
from envhive.bench.records import Recorder, SteadyWindow
from envhive.bench.room import kills_for_memory
from envhive.bench.stats import summarise
from envhive.bench.subject import GONE, Subject

OnProgress = Callable[[int, int], None]

_WARM_UP_LIMIT_S: Final = 60.0
_ENOUGH_TO_WEIGH: Final = 32
"""Fewer sessions weigh less than what a server's memory changes by on its own."""


class Reading(msgspec.Struct, frozen=True):
    """CPU seconds at a moment: of the server, and of the whole machine."""

    at: float
    server: float | None
    machine: float | None

    @staticmethod
    def of(subject: Subject) -> Reading:
        here = subject.pid is not None
        return Reading(clock(), subject.cpu_s(), machine_cpu_seconds() if here else None)


class Readings(msgspec.Struct):
    """Taken at the two ends of a window, with the moments at which that was really done.

    What comes of them are shares of time, so that a reading a few milliseconds late does no harm.
    """

    begin: Reading | None = None
    end: Reading | None = None

    @property
    def server(self) -> float | None:
        """Cores that the server used meanwhile."""
        return self._cores(lambda reading: reading.server)

    @property
    def machine(self) -> float | None:
        """Cores that the whole machine used meanwhile."""
        return self._cores(lambda reading: reading.machine)

    def _cores(self, of: Callable[[Reading], float | None]) -> float | None:
        if self.begin is None or self.end is None or self.end.at <= self.begin.at:
            return None
        before, after = of(self.begin), of(self.end)
        if before is None or after is None or after < before:
            return None
        return (after - before) / (self.end.at - self.begin.at)


def run_steady(
    plan: SteadyPlan,
    subject: Subject,
    fleet: LoadFleet,
    recorder: Recorder,
    processes: int | None,
    on_window: Callable[[int, int], None],
    on_progress: OnProgress,
) -> None:
    """The windows of a plan, one after the other; each is recorded before the next begins."""
    for sessions in plan.sessions:
        subject.budget(sessions, processes)
    empty = warmed_up(subject, fleet)
    if subject.pid is not None and not subject.is_ours:
        recorder.note(
            "Memory per session counts from what the server used before: one that has had sessions keeps memory for "
            "the next, which then seem to need less."
        )
    for sessions in sorted(plan.sessions):
        for repetition in range(1, plan.repetitions + 1):
            if (said := subject.revive()) is not None:
                recorder.note(said)
                empty = warmed_up(subject, fleet)
            on_window(sessions, repetition)
            window = measure_window(plan, sessions, repetition, subject, fleet, processes, on_progress, empty)
            recorder.add(window)
            if window.cut_short:
                raise KeyboardInterrupt
            if window.server_died and subject.is_lost:
                recorder.note(GONE)
                return
    if (said := subject.epitaph()) is not None:
        recorder.note(said)


def warmed_up(subject: Subject, fleet: LoadFleet) -> Usage | None:
    """What the server uses when it has served a session and has none: what the first loads is nobody else's price."""
    if subject.pid is None:
        return None
    fleet.open(subject.url, subject.budget(1, 1), 1, _WARM_UP_LIMIT_S, lambda done, failed: None)
    fleet.close()
    return subject.usage()


def measure_window(
    plan: SteadyPlan,
    sessions: int,
    repetition: int,
    subject: Subject,
    fleet: LoadFleet,
    processes: int | None,
    on_progress: OnProgress,
    empty: Usage | None = None,
) -> SteadyWindow:
    """Open the sessions, look at the memory, step them for a window, close them.

    `empty` is what the server used before it had sessions: one that had some keeps memory for the next.
    """
    budget = subject.budget(sessions, processes)
    opened = fleet.open(subject.url, budget, plan.at_once, plan.timeout_s, lambda done, failed: None)
    idle = subject.usage()
    readings, busy, room, killed = Readings(), [idle], [subject.memory_left()], kills_for_memory()

    def at_begin() -> None:
        readings.begin = Reading.of(subject)

    def at_end() -> None:
        readings.end = Reading.of(subject)
        busy[0], room[0] = subject.usage(), subject.memory_left() or room[0]

    driven = fleet.drive(
        plan.action, plan.warm_up_s, plan.seconds, on_progress, at_begin, at_end, plan.think_s, plan.rate
    )
    died = subject.died(suspected=bool(opened.errors or driven.errors))
    fleet.close()
    window = _as_window(
        plan, sessions, repetition, len(budget.shares), opened, driven, readings, empty, idle, busy[0], died
    )
    return msgspec.structs.replace(window, memory_left=room[0], killed_for_memory=kills_for_memory() > killed)


def _as_window(
    plan: SteadyPlan,
    sessions: int,
    repetition: int,
    processes: int,
    opened: OpenOutcome,
    driven: DriveOutcome,
    readings: Readings,
    empty: Usage | None,
    idle: Usage | None,
    busy: Usage | None,
    died: bool,
) -> SteadyWindow:
    errors = dict(opened.errors)
    for kind, count in driven.errors.items():
        errors[kind] = errors.get(kind, 0) + count
    cores = readings.server or None  # of a process that used nothing nothing is known: it is not the server's
    grown = None
    if idle is not None and empty is not None and idle.processes and opened.opened >= _ENOUGH_TO_WEIGH:
        grown = max(idle.memory - empty.memory, 0) or None  # less than before is no weight of theirs
    return SteadyWindow(
        sessions=sessions,
        opened=opened.opened,
        rate=plan.rate,
        think_s=plan.think_s,
        repetition=repetition,
        seconds=driven.seconds,
        cut_short=driven.cut_short,
        steps=driven.steps,
        latency=summarise(driven.latencies),
        errors=errors,
        well=driven.well,
        failed=driven.failed,
        unanswered=driven.unanswered,
        lost=driven.lost,
        said=driven.said | opened.said,
        load_cpu=driven.load_cpu,
        load_processes=processes,
        lag=summarise(driven.lag),
        opened_per_s=opened.opened / opened.wall_s,
        cpu_us_per_step=cores * driven.seconds / driven.steps * 1e6 if cores is not None and driven.steps else None,
        server_cpu=cores,
        machine_cpu=readings.machine,
        server_processes=busy.processes if busy is not None else None,
        memory_per_session=grown / opened.opened if grown is not None and opened.opened else None,
        server_memory=busy.memory if busy is not None else None,
        server_threads=busy.threads if busy is not None else None,
        server_files=busy.files if busy is not None else None,
        server_file_limit=busy.file_limit if busy is not None else None,
        server_died=died,
    )
