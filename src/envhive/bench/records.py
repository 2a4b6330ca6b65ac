"""What a run leaves behind: a folder with what was asked (run.json) and each result as it came (results.jsonl)."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

import msgspec

from envhive import __version__
from envhive.bench.room import Room
from envhive.bench.stats import Summary
from envhive.errors import ConfigurationError

Kind = Literal["storm", "steady", "compare", "knee"]

RUN_FILE: Final = "run.json"
RESULTS_FILE: Final = "results.jsonl"


class Machine(msgspec.Struct, frozen=True):
    """Where the load ran, and the server too unless it was elsewhere."""

    cores: int
    python: str
    system: str
    packages: dict[str, str]


class RunInfo(msgspec.Struct, frozen=True):
    """What a run was about."""

    kind: Kind
    label: str
    """The infrastructure, as the person calls it who measured."""
    began: str
    command: str
    machine: Machine
    server_cores: int | None
    """Cores of the server's machine, if they are known."""
    notes: list[str] = []
    """What to beware of."""
    facts: list[str] = []
    """What else is worth knowing."""


class StormCell(msgspec.Struct, tag="storm", frozen=True):
    """One repetition of one cell of the grid."""

    sessions: int
    wait_s: float
    mode: str
    repetition: int
    success: float
    connect: Summary
    reset: Summary
    step: Summary
    whole: Summary
    wall_s: float
    requests_per_s: float
    concurrency: float
    """Effective: what the waiting alone would have taken, one after the other, over what it took."""
    errors: dict[str, int]
    load_cpu: float
    load_processes: int
    sessions_per_core: float | None = None
    server_cpu_s: float | None = None
    other_cpu: float | None = None
    """Cores that other programs used on this machine meanwhile, if the server is here."""
    server_memory: int | None = None
    server_died: bool = False
    said: dict[str, str] = {}
    """The server's own words for each kind of error."""


class SteadyWindow(msgspec.Struct, tag="steady", frozen=True):
    """One window over sessions that stay."""

    sessions: int
    """Asked for."""
    opened: int
    rate: float | None
    think_s: float
    repetition: int
    seconds: float
    steps: int
    """Answered well, within the window."""
    latency: Summary
    errors: dict[str, int]
    unanswered: int
    load_cpu: float
    load_processes: int
    lag: Summary
    """How late the load generator was, in the open loop; it is part of the latency."""
    opened_per_s: float
    cpu_us_per_step: float | None = None
    server_cpu: float | None = None
    """Cores that the server used."""
    machine_cpu: float | None = None
    """Cores that everything on this machine used, if the server is here."""
    server_processes: int | None = None
    memory_per_session: float | None = None
    server_memory: int | None = None
    server_threads: int | None = None
    server_files: int | None = None
    server_file_limit: int | None = None
    memory_left: Room | None = None
    """While the sessions were open."""
    killed_for_memory: bool = False
    """Whether this machine's kernel killed a process meanwhile to have its memory."""
    server_died: bool = False
    cut_short: bool = False
    """Whether Ctrl-C ended it, after `seconds`."""
    well: int | None = None
    """Steps due in the window, or under way in it, that were answered well in the end; runs of old do not tell."""
    failed: int = 0
    """Those that were answered with an error."""
    lost: int = 0
    """Sessions that were opened, and lost by the end of the window."""
    said: dict[str, str] = {}
    """The server's own words for each kind of error."""

    @property
    def other_cpu(self) -> float | None:
        """Cores that other programs used on this machine meanwhile, if the server is here."""
        if self.machine_cpu is None or self.server_cpu is None:
            return None
        return max(self.machine_cpu - self.server_cpu - self.load_cpu * self.load_processes, 0.0)

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def success(self) -> float:
        """The share of sessions that opened, times the share of the steps due at them that were answered well.

        In the closed loop no step is due at a session that was lost, so those that lasted count there.
        """
        well = self.steps if self.well is None else self.well
        due = well + self.failed + self.unanswered
        there = self.opened - self.lost if self.rate is None or not due else self.opened
        return max(there, 0) / self.sessions * (well / due if due else 1.0)


class Figure(msgspec.Struct, tag="figure", frozen=True):
    """One figure of one server in one round of a comparison."""

    server: str
    metric: str
    value: float
    round: int


class Verdict(msgspec.Struct, tag="verdict", frozen=True):
    """Where a ramp broke, and for want of what."""

    ramp: Literal["sessions", "rate"]
    held: float
    """The largest level that held; 0 if none did."""
    broke: float | None
    """The smallest level that did not; None if all held."""
    why: str
    resource: str
    evidence: str
    p99_limit_s: float | None = None


Result = StormCell | SteadyWindow | Figure | Verdict

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Result).decode


class Run(msgspec.Struct, frozen=True):
    """A run that is finished, or as far as it came."""

    info: RunInfo
    results: list[Result]

    def cells(self) -> list[StormCell]:
        return [result for result in self.results if isinstance(result, StormCell)]

    def windows(self) -> list[SteadyWindow]:
        return [result for result in self.results if isinstance(result, SteadyWindow)]

    def figures(self) -> list[Figure]:
        return [result for result in self.results if isinstance(result, Figure)]

    def verdicts(self) -> list[Verdict]:
        return [result for result in self.results if isinstance(result, Verdict)]


class Recorder:
    """Writes a run down while it goes: each result is on disk before the next is measured."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.folder = folder
        self.info = info
        self.results: list[Result] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / RESULTS_FILE).exists():
                raise _taken(folder)
            (folder / RUN_FILE).touch(exist_ok=False)  # whoever makes it has the folder, also if two begin at once
            self._write_info()
        except FileExistsError:
            raise _taken(folder) from None
        except OSError as error:
            raise self._cannot_write(error) from None

    def add(self, result: Result) -> None:
        """Keep a result; raises if it cannot be written, and has it all the same."""
        self.results.append(result)
        try:
            with (self.folder / RESULTS_FILE).open("ab") as file:
                file.write(_encode(result) + b"\n")
        except OSError as error:
            raise self._cannot_write(error) from None

    def note(self, text: str) -> None:
        """Something a reader of the results must know; said once."""
        if text not in self.info.notes:
            self.info = msgspec.structs.replace(self.info, notes=[*self.info.notes, text])
            with contextlib.suppress(OSError):  # where nothing can be written, the results say so
                self._write_info()

    def fact(self, text: str) -> None:
        """Something worth knowing that takes nothing from the results."""
        self.info = msgspec.structs.replace(self.info, facts=[*self.info.facts, text])
        with contextlib.suppress(OSError):
            self._write_info()

    def discard_if_empty(self) -> None:
        """A run without a result leaves nothing behind."""
        if not self.results:
            (self.folder / RUN_FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # there is something else in it
                self.folder.rmdir()

    def run(self) -> Run:
        return Run(self.info, self.results)

    def _cannot_write(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"Cannot write to {self.folder}: {error.strerror}.")

    def _write_info(self) -> None:
        (self.folder / RUN_FILE).write_bytes(msgspec.json.format(_encode(self.info), indent=2) + b"\n")


def _taken(folder: Path) -> ConfigurationError:
    return ConfigurationError(f"{folder} holds a run already: give another --out.")


def unused_folder(parent: Path, kind: Kind) -> Path:
    """A folder named by the time, and made here, so that another run of the same second gets another."""
    name = f"{now().replace(':', '')}-{kind}"
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigurationError(f"Cannot write to {folder}: {error.strerror}.") from None
        return folder
    raise AssertionError("there is always another number")


def load_run(folder: Path, label: str | None = None) -> Run:
    """Read a run again, perhaps under another name; a last line that was cut off is left out."""
    try:
        info = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunInfo)
    except FileNotFoundError:
        raise ConfigurationError(f"{folder} is not the folder of a run: it has no {RUN_FILE}.") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{folder / RUN_FILE} cannot be read: {error}") from None
    if label is not None:
        info = msgspec.structs.replace(info, label=label)
    return Run(info, list(_read_results(folder / RESULTS_FILE)))


def told_apart(runs: Sequence[Run], folders: Sequence[Path]) -> list[Run]:
    """The same runs, with the names of their folders, or else numbers, beside labels that several of them have."""
    times, found = Counter(run.info.label for run in runs), Counter[str]()

    def named(run: Run, folder: Path) -> Run:
        label = f"{run.info.label} ({folder.resolve().name})" if times[run.info.label] > 1 else run.info.label
        found[label] += 1
        numbered = f"{label} #{found[label]}" if found[label] > 1 else label
        return Run(msgspec.structs.replace(run.info, label=numbered), run.results)

    return [named(run, folder) for run, folder in zip(runs, folders, strict=True)]


def _read_results(path: Path) -> Iterator[Result]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                yield _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number < len(lines):
                raise ConfigurationError(f"{path}, line {number}: {error}") from None


def describe_machine() -> Machine:
    names = ("picows", "uvloop", "msgspec", "pydantic")
    packages = {"envhive": __version__}
    for name in names:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=packages,
    )


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")
