"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.envs import Hanging

HERE = Path(__file__).parent
SLOW = (HERE / "client", HERE / "cli", HERE / "envs" / "test_shipped.py", HERE / "faults", HERE / "test_docs.py")
"""Tests that start hundreds of servers between them, or whole processes. `scripts/check` leaves them out."""


LONG = ("test_docker.py", "test_validate.py", "test_folders.py", "test_ray.py", "test_mcp_clients.py", "test_swarm.py")
"""Integration tests that take minutes. They come first: with one of them last, one worker would have nothing to do.
Docker and Swarm share a daemon, so that the second, begun too early, would wait for the first."""


def pytest_configure() -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # in the background of some shell: what tests start would, too
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    for item in items:
        if any(item.path.is_relative_to(place) for place in SLOW):
            item.add_marker("slow")


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.released.set()
