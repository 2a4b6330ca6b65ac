"""The load processes: started when they are needed, given jobs, heard, and ended whatever happens."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Final, Self, TypeVar, cast

from envhive.bench.jobs import Closed, Driven, Job, Opened, Progress, Stop, Stormed, clock, decode_answer, encode_job
from envhive.errors import ConfigurationError

_SLACK_S: Final = 30.0
_START_S: Final = 30.0
_STOP_S: Final = 3.0

T = TypeVar("T", Stormed, Opened, Driven, Closed)
OnProgress = Callable[[int, int], None]
Moment = tuple[float, Callable[[], None]]
"""Something to do at a time, while the processes work."""


class Member:
    """One load process, and the pipe to it."""

    def __init__(self, core: int | None) -> None:
        self.pipe, theirs = Pipe()
        self.progress = Progress(0, 0)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "envhive.bench.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches only the lab, which keeps what was measured
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
            )

    def wait_until_awake(self) -> None:
        try:
            if self.pipe.poll(_START_S):
                self.pipe.recv_bytes()  # its first word
                return
        except (EOFError, OSError):
            pass
        raise ConfigurationError("A load process did not start.")

    def give(self, job: Job) -> None:
        self.progress = Progress(0, 0)
        with contextlib.suppress(OSError):  # its end shows when it is listened to
            self.pipe.send_bytes(encode_job(job))

    def end(self) -> None:
        """Without its pipe a load process ends by itself; one that does not is killed."""
        self.pipe.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crew:
    """Load processes that do the same job at the same time. A context manager."""

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self._cores = list(cores)
        self._members: dict[int, Member] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for place in list(self._members):
            self._dismiss(place)

    def muster(self, number: int) -> None:
        """See that so many processes are there, and awake: their start must not be part of what is measured."""
        fresh = [place for place in range(number) if place not in self._members]
        for place in fresh:
            self._members[place] = Member(self._cores[place % len(self._cores)] if self._cores else None)
        for place in fresh:
            self._members[place].wait_until_awake()

    def run(
        self,
        jobs: Sequence[Job],
        kind: type[T],
        until: float,
        on_progress: OnProgress,
        moments: Sequence[Moment] = (),
        on_interrupt: Callable[[], Job | None] = lambda: None,
    ) -> list[T | None]:
        """Give each process its job and gather the results; None from one that died or never answered.

        When Ctrl-C comes, `on_interrupt` may say how to come to an end sooner; a second one does not ask.
        """
        self.muster(len(jobs))
        results: list[T | None] = [None] * len(jobs)
        for place, job in enumerate(jobs):
            self._members[place].give(job)
        waiting, left, give_up_at = set(range(len(jobs))), list(moments), until + _SLACK_S
        try:
            while (waiting or left) and clock() < give_up_at:
                try:
                    next_at = left[0][0] if left else math.inf
                    self._hear(waiting, results, kind, max(min(next_at - clock(), 0.25), 0))
                    while left and clock() >= left[0][0]:
                        left.pop(0)[1]()
                    told = [self._members[place].progress for place in range(len(jobs)) if place in self._members]
                    on_progress(sum(each.done for each in told), sum(each.failed for each in told))
                except KeyboardInterrupt:
                    sooner, on_interrupt = on_interrupt(), lambda: None
                    if sooner is None:
                        raise
                    for place in waiting:
                        self._members[place].give(sooner)
                    left = [(0.0, moment) for _, moment in left]  # it is time for all of them
        except BaseException:  # Ctrl-C most likely: what runs is stopped, and no late answer is taken for another's
            for place in waiting:
                self._members[place].give(Stop())
            raise
        finally:
            for place in waiting:
                self._dismiss(place)
        return results

    def _hear(self, waiting: set[int], results: list[T | None], kind: type[T], timeout_s: float) -> None:
        """Take in what the processes say within so long."""
        places = {self._members[place].pipe: place for place in waiting}
        for ready in wait(list(places), timeout_s):
            pipe = cast("Connection", ready)
            place = places[pipe]
            try:
                answer = decode_answer(pipe.recv_bytes())
            except (EOFError, OSError):
                waiting.discard(place)
                self._dismiss(place)
                continue
            if isinstance(answer, Progress):
                self._members[place].progress = answer
            elif isinstance(answer, kind):
                results[place] = answer
                waiting.discard(place)

    def _dismiss(self, place: int) -> None:
        self._members.pop(place).end()
