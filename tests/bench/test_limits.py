"""How sessions are spread over processes, files and ports, and when that cannot be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhive.bench.limits import RESERVED_FILES, allot, is_loopback, local_ports, raise_file_limit
from envhive.errors import ConfigurationError


@given(
    sessions=st.integers(1, 60_000),
    files=st.integers(1024, 20_000),
    addresses=st.integers(0, 64),
    cores=st.integers(1, 64),
)
def test_every_session_has_a_file_and_a_port_or_the_plan_is_refused(
    sessions: int, files: int, addresses: int, cores: int
) -> None:
    ports = 28_232
    try:
        budget = allot(sessions, files=files, ports=ports, addresses=addresses, available_cores=cores)
    except ConfigurationError as refusal:
        assert len(str(refusal).splitlines()) == 1
        assert sessions > ports * max(addresses, 1) or sessions > max(cores, 4) * (files - RESERVED_FILES)
        return
    assert sum(budget.shares) == sessions
    assert min(budget.shares) >= 1
    assert max(budget.shares) - min(budget.shares) <= 1
    assert max(budget.shares) <= files - RESERVED_FILES
    assert sessions <= ports * max(len(budget.sources), 1)
    assert len(budget.sources) <= addresses
    assert len(set(budget.sources)) == len(budget.sources)


def test_few_sessions_need_one_process_and_no_address_of_their_own() -> None:
    budget = allot(64, files=20_000, ports=28_232, addresses=64, available_cores=8)
    assert (budget.shares, budget.sources) == ([64], [])


def test_many_sessions_use_every_core_and_several_addresses() -> None:
    budget = allot(16_384, files=20_000, ports=28_232, addresses=64, available_cores=2)
    assert budget.shares == [8192, 8192]
    assert budget.sources == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def test_more_processes_than_cores_are_started_when_files_demand_it() -> None:
    assert len(allot(4000, files=1280, ports=28_232, addresses=1, available_cores=1).shares) == 4


def test_a_number_of_processes_that_was_asked_for_is_kept() -> None:
    assert len(allot(8, files=1024, ports=28_232, addresses=1, processes=4).shares) == 4
    assert len(allot(2, files=1024, ports=28_232, addresses=1, processes=4).shares) == 2


@pytest.mark.parametrize(
    ("sessions", "options", "said"),
    [
        (5000, {"processes": 1}, "--processes 6"),
        (100, {"files": 120}, "leaves none for sessions"),
        (2000, {"server_processes": 1}, "give more --workers"),
        (30_000, {"addresses": 0, "files": 20_000}, "more ports than the 28232"),
        (900_000, {"files": 20_000}, "need 46 load processes"),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(sessions: int, options: dict[str, int], said: str) -> None:
    given = {"files": 1024, "ports": 28_232, "addresses": 64, "available_cores": 2, **options}
    with pytest.raises(ConfigurationError, match=said) as refusal:
        allot(sessions, **given)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    "url", ["http://localhost:8000", "http://127.0.0.1", "ws://127.0.0.9:1/ws", "http://[::1]:8000", "127.0.0.1:8000"]
)
def test_loopback_is_recognised(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize(
    "url", ["http://example.org", "http://10.0.0.1:8000", "10.0.0.1:8000", "http://localhost.example.org"]
)
def test_other_machines_are_not_taken_for_this_one(url: str) -> None:
    assert not is_loopback(url)


def test_the_limits_of_this_machine_make_sense() -> None:
    assert raise_file_limit() > RESERVED_FILES
    assert local_ports() > 1000
