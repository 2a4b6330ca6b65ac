"""A server of a test's own, and what it serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.gates import Gate
from tests.support.envs import Counting, counting
from tests.support.servers import Running, serving


@pytest.fixture
def env() -> type[Counting]:
    return counting()


@pytest.fixture
def server(env: type[Counting]) -> Iterator[Running]:
    with serving(env, "fast") as server:
        yield server


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
