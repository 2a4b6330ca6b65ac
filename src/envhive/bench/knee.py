"""The knee: more and more load until p99 or success breaks, and then for want of what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from envhive.bench import procfs
from envhive.bench.limits import ServerFilesError, cores, raise_file_limit
from envhive.bench.load import BUSY, DIED, LoadFleet
from envhive.bench.plan import KneePlan, SteadyPlan
from envhive.bench.records import Recorder, SteadyWindow, Verdict
from envhive.bench.steady import measure_window
from envhive.bench.subject import GONE, Subject
from envhive.bench.tables import ENOUGH_FOR_P99, share
from envhive.errors import ConfigurationError

_SATURATED: Final = 0.85
"""A server's process that uses so much of a core has no more to give: its event loop has other waits too."""
_NEARLY_ALL: Final = 0.95

OnLevel = Callable[[float], None]
OnProgress = Callable[[int, int], None]


class Surroundings(msgspec.Struct, frozen=True):
    """What the machine has, as far as it is known."""

    cores: int
    thread_limit: int | None = None
    load_file_limit: int | None = None
    server_workers: int = 1
    """Processes of the server that serve sessions."""

    @staticmethod
    def here(workers: int, server: int | None) -> Surroundings:
        return Surroundings(
            cores=len(cores()),
            thread_limit=procfs.thread_limit(server),
            load_file_limit=raise_file_limit(),
            server_workers=workers,
        )


def what_broke(plan: KneePlan, window: SteadyWindow) -> str | None:
    """Which of the two limits a window is beyond, in words; None if it held."""
    if window.server_died:
        return "the server died"
    if window.success < plan.success_goal:
        return f"success {share(window.success)} < {plan.success_goal:.0%}"
    if window.latency.p99 > plan.p99_limit_s:
        of = "" if window.latency.count >= ENOUGH_FOR_P99 else f" (the slowest of {window.latency.count} steps)"
        return f"p99 {window.latency.p99:.3f} s > {plan.p99_limit_s:g} s{of}"
    return None


def diagnose(window: SteadyWindow, around: Surroundings, obituary: str = "") -> tuple[str, str]:
    """Which resource ran out, and what shows it. The first that fits: from what is certain to what is likely."""
    errors = " ".join(window.errors)
    if "no file descriptor left here" in errors or "no port left here" in errors or DIED in errors:
        return "load generator", f"it could not open more: {errors}"
    if (found := _in_the_servers_words(window)) is not None:
        return found
    refusals = [kind for kind in window.errors if kind in window.said and kind != "CAPACITY_REACHED"]
    if window.failed and refusals:
        return "nothing", f"steps were answered with {', '.join(refusals)}"
    if "CAPACITY_REACHED" in errors:
        return "session limit", "the server answered CAPACITY_REACHED: it is configured for no more sessions"
    if (
        window.server_files
        and window.server_file_limit
        and (window.server_files >= _NEARLY_ALL * window.server_file_limit)
    ):
        return "file descriptors", f"a server process has {window.server_files} of {window.server_file_limit} open"
    if window.server_threads and around.thread_limit and window.server_threads >= _NEARLY_ALL * around.thread_limit:
        return "threads", f"the server has {window.server_threads} of {around.thread_limit} threads"
    if window.killed_for_memory:
        return "memory", "the kernel killed a process for want of it" + (f" ({obituary})" if obituary else "")
    if (room := window.memory_left) is not None and room.share < 1 - _NEARLY_ALL:
        return "memory", f"{room.left / 1e6:,.0f} MB of the {room.total / 1e6:,.0f} MB of {room.limit} were left"
    if window.opened == 0 and window.errors:
        return "nothing", f"no session could be opened: {', '.join(window.errors)}"
    if window.server_died:
        return "unknown", f"the server died ({obituary}), and no limit that can be seen from here was near"
    return _diagnose_cpu(window, around)


def _in_the_servers_words(window: SteadyWindow) -> tuple[str, str] | None:
    """What Python says where it gets no more of something."""
    for sign, resource in (("MemoryError", "memory"), ("can't start new thread", "threads")):
        for text in window.said.values():
            if sign in text:
                return resource, f"in the server's words: {text}"
    return None


def _diagnose_cpu(window: SteadyWindow, around: Surroundings) -> tuple[str, str]:
    usable = min(around.server_workers, around.cores)
    load = f"the load generator's busiest process used {window.load_cpu:.0%} of a core"
    server = "the server's CPU time is not known: --pid tells where to read it"
    if window.server_cpu is not None:
        server = f"the server used {window.server_cpu:.2f} of the {usable} core(s) its workers can use"
    if window.server_cpu is not None and window.server_cpu >= _SATURATED * usable:
        return "CPU", f"{server}; {load}"
    if window.load_cpu > BUSY:
        return "load generator", load
    whole = (window.server_cpu or 0) + window.load_cpu * window.load_processes
    if whole >= _SATURATED * around.cores:
        return "CPU", f"load and server together used {whole:.2f} of {around.cores} core(s): they share the machine"
    if window.machine_cpu is not None and window.machine_cpu >= _SATURATED * around.cores:
        return "CPU", (
            f"this machine's {around.cores} core(s) were {window.machine_cpu / around.cores:.0%} busy: {server}, "
            f"{load}, and other programs used {window.other_cpu or 0:.2f} core(s)"
        )
    return "unknown", f"{server}; {load}; no limit that can be seen from here was near"


class Ramp:
    """The levels to try: doubled while they hold, then between the last that held and the first that broke."""

    def __init__(self, start: float, limit: float, refinements: int) -> None:
        self._limit = limit
        self._refinements = refinements
        self._next = start
        self.held = 0.0
        self.broke: float | None = None

    def __iter__(self) -> Iterator[float]:
        tried: set[float] = set()
        while True:
            level = self._choose()
            if level is None or level in tried:
                return
            tried.add(level)
            yield level

    def tell(self, level: float, held: bool) -> None:
        """What came of a level."""
        if held:
            self.held = max(self.held, level)
        else:
            self.broke = level if self.broke is None else min(self.broke, level)

    def _choose(self) -> float | None:
        if self.broke is None:
            level = self._next
            self._next = min(level * 2, self._limit)
            return level if self.held < self._limit else None
        if self._refinements == 0 or self.held == 0:
            return None
        self._refinements -= 1
        return float(math.floor((self.held + self.broke) / 2))


def run_knee(
    plan: KneePlan,
    subject: Subject,
    fleet: LoadFleet,
    recorder: Recorder,
    processes: int | None,
    workers: int,
    on_level: OnLevel,
    on_progress: OnProgress,
) -> None:
    """Climb, and record each level and the verdict."""
    ramp = Ramp(plan.start, plan.limit, plan.refinements)
    verdict: Verdict | None = None
    for level in ramp:
        if (said := subject.revive()) is not None:
            recorder.note(said)
        on_level(level)
        try:
            window = _measure(plan, level, 1, subject, fleet, processes, on_progress)
            recorder.add(window)
            if what_broke(plan, window) is not None and not window.server_died:
                # Once is chance: whatever else the machine did may have broken it.
                window = _measure(plan, level, 2, subject, fleet, processes, on_progress)
                recorder.add(window)
        except ConfigurationError as error:
            if not recorder.results:
                raise
            resource = "file descriptors" if isinstance(error, ServerFilesError) else "load generator"
            verdict = _verdict(plan, ramp, f"a load of {level:g} could not be made", (resource, str(error)))
            break
        reason = what_broke(plan, window)
        ramp.tell(level, held=reason is None)
        if reason is not None:
            around = Surroundings.here(workers, subject.pid)
            found = diagnose(window, around, subject.obituary() if window.server_died else "")
            verdict = _verdict(plan, ramp, reason, found)
        if window.server_died and subject.is_lost:
            recorder.note(GONE)
            break
    if verdict is None:
        verdict = _verdict(plan, ramp, "nothing", ("nothing", f"all levels up to {ramp.held:g} held"))
    recorder.add(msgspec.structs.replace(verdict, held=ramp.held, broke=ramp.broke))


def _measure(
    plan: KneePlan,
    level: float,
    repetition: int,
    subject: Subject,
    fleet: LoadFleet,
    processes: int | None,
    on_progress: OnProgress,
) -> SteadyWindow:
    of_rates = plan.ramp == "rate"
    steady = SteadyPlan(
        rate=level if of_rates else None,
        think_s=0.0 if of_rates else plan.think_s,
        seconds=plan.seconds,
        timeout_s=plan.timeout_s,
        action=plan.action,
        warm_up_s=min(max(plan.think_s, 0.5), plan.seconds),
    )
    sessions = plan.sessions if of_rates else int(level)
    window = measure_window(steady, sessions, repetition, subject, fleet, processes, on_progress)
    if window.cut_short:
        raise KeyboardInterrupt  # half a level says nothing of the whole
    return window


def _verdict(plan: KneePlan, ramp: Ramp, why: str, found: tuple[str, str]) -> Verdict:
    resource, evidence = found
    return Verdict(
        ramp="rate" if plan.ramp == "rate" else "sessions",
        held=ramp.held,
        broke=ramp.broke,
        why=why,
        resource=resource,
        evidence=evidence,
        p99_limit_s=plan.p99_limit_s,
    )
