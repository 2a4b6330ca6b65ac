"""Where a ramp breaks, and for want of what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhive.bench.knee import Ramp, Surroundings, diagnose, what_broke
from envhive.bench.plan import KneePlan
from envhive.bench.room import Room
from envhive.bench.stats import summarise
from tests.bench import samples

ROOMY = Surroundings(cores=2, thread_limit=30_000, server_workers=1)


def climb(ramp: Ramp, capacity: float) -> list[float]:
    levels = []
    for level in ramp:
        levels.append(level)
        ramp.tell(level, held=level <= capacity)
    return levels


def test_a_ramp_doubles_until_it_breaks_and_then_closes_in() -> None:
    ramp = Ramp(32, 16_384, refinements=2)
    assert climb(ramp, 100) == [32, 64, 128, 96, 112]
    assert (ramp.held, ramp.broke) == (96, 112)


def test_a_ramp_ends_at_its_limit() -> None:
    ramp = Ramp(32, 100, refinements=2)
    assert climb(ramp, 10_000) == [32, 64, 100]
    assert (ramp.held, ramp.broke) == (100, None)


def test_a_ramp_that_breaks_at_once_does_not_go_on() -> None:
    ramp = Ramp(32, 100, refinements=2)
    assert climb(ramp, 1) == [32]
    assert (ramp.held, ramp.broke) == (0, 32)


@given(st.integers(1, 1000), st.integers(1, 100_000), st.integers(0, 5), st.integers(1, 200_000))
def test_every_ramp_ends_with_the_knee_between_what_held_and_what_did_not(
    start: int, limit: int, refinements: int, capacity: int
) -> None:
    ramp = Ramp(start, max(limit, start), refinements)
    assert len(climb(ramp, capacity)) <= 20 + refinements
    assert ramp.held <= capacity
    assert ramp.broke is None or ramp.broke > capacity


def test_either_limit_breaks_a_level() -> None:
    plan = KneePlan(p99_limit_s=0.25)
    assert what_broke(plan, samples.window()) is None
    assert "p99" in (what_broke(plan, samples.window(latency=summarise([0.3]))) or "")
    assert "success" in (what_broke(plan, samples.window(opened=10)) or "")
    assert "died" in (what_broke(plan, samples.window(server_died=True)) or "")


@pytest.mark.parametrize(
    ("window", "around", "resource"),
    [
        ({"server_cpu": 0.97}, {}, "CPU"),
        ({"server_cpu": 0.97}, {"server_workers": 2}, "unknown"),
        ({"server_cpu": 1.8}, {"server_workers": 8}, "CPU"),
        ({"load_cpu": 0.95}, {}, "load generator"),
        ({"server_cpu": 0.97, "load_cpu": 0.95}, {}, "CPU"),
        ({"server_cpu": None, "load_cpu": 0.95}, {}, "load generator"),
        ({"server_cpu": 0.3, "machine_cpu": 1.95}, {}, "CPU"),
        ({"errors": {"CAPACITY_REACHED": 5}}, {}, "session limit"),
        ({"errors": {"no port left here": 5}}, {}, "load generator"),
        ({"server_files": 990, "server_file_limit": 1000}, {}, "file descriptors"),
        ({"server_threads": 29_900}, {}, "threads"),
        ({"memory_left": Room(10**8, 10**10, "this machine")}, {}, "memory"),
        ({"memory_left": Room(10**9, 10**10, "this machine")}, {}, "unknown"),
        ({"server_died": True, "killed_for_memory": True}, {}, "memory"),
        ({"failed": 3, "errors": {"EXECUTION_ERROR": 3}, "said": {"EXECUTION_ERROR": "MemoryError"}}, {}, "memory"),
        ({"errors": {"RESOURCES": 3}, "said": {"RESOURCES": "can't start new thread"}}, {}, "threads"),
        ({"opened": 0, "steps": 0, "errors": {"HTTP 401": 64}}, {}, "nothing"),
        ({"server_died": True, "server_cpu": 0.0, "machine_cpu": 1.95}, {}, "unknown"),
        ({}, {}, "unknown"),
    ],
)
def test_the_resource_that_ran_out_is_named(window: dict[str, Any], around: dict[str, Any], resource: str) -> None:
    import msgspec

    found, evidence = diagnose(samples.window(**window), msgspec.structs.replace(ROOMY, **around))
    assert found == resource
    assert evidence
