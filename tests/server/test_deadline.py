"""Time limits of one request after the other, with a clock and timers of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from envhive.server.deadline import Deadline


class Timer:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Time:
    """An event loop as far as timers go, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        self.made = 0
        self.overdue_at: list[float] = []
        self.deadline = Deadline(
            cast("asyncio.AbstractEventLoop", self), lambda: self.now, lambda: self.overdue_at.append(self.now)
        )

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.made += 1
        self.timers.append(Timer(self.now + seconds, callback))
        return self.timers[-1]

    @property
    def waiting(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def begin(self, seconds: float) -> None:
        self.deadline.set(seconds, self.now)

    def pass_until(self, moment: float) -> None:
        while due := [timer for timer in self.waiting if timer.at <= moment]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = first.at
            first.callback()
        self.now = moment


def test_a_request_that_takes_too_long_is_overdue_once() -> None:
    time = Time()
    time.begin(2)
    time.pass_until(101.9)
    assert time.overdue_at == []
    time.pass_until(110)
    assert time.overdue_at == [102.0]
    assert time.deadline.seconds == 2
    assert time.waiting == []


def test_a_thousand_requests_within_their_limit_need_one_timer() -> None:
    time = Time()
    for _ in range(1000):
        time.begin(10)
        time.pass_until(time.now + 0.001)
        time.deadline.clear()
    assert time.made == 1
    time.pass_until(1000)
    assert time.overdue_at == []
    assert time.waiting == []


def test_the_last_of_many_requests_has_its_whole_limit() -> None:
    time = Time()
    for _ in range(5):
        time.begin(10)
        time.pass_until(time.now + 3)
        time.deadline.clear()
    time.begin(10)
    began = time.now
    time.pass_until(1000)
    assert time.overdue_at == [began + 10]


def test_a_shorter_limit_than_the_one_before_is_kept() -> None:
    time = Time()
    time.begin(60)
    time.deadline.clear()
    time.begin(1)
    time.pass_until(1000)
    assert time.overdue_at == [101.0]
    assert time.waiting == []


def test_a_limit_counts_from_when_the_request_began_even_if_it_is_set_later() -> None:
    time = Time()
    time.deadline.set(2, time.now - 0.5)
    time.pass_until(1000)
    assert time.overdue_at == [101.5]


def test_after_the_last_request_no_timer_is_left() -> None:
    time = Time()
    time.begin(60)
    time.deadline.stop()
    assert time.waiting == []
    time.pass_until(1000)
    assert time.overdue_at == []
