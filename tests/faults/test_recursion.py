"""Recursion without end is the environment's failure, and its session's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from envhive import GenericEnvClient
from envhive.errors import ExecutionError
from tests.support.processes import envhive_serve

pytestmark = pytest.mark.integration

DEEP = """
from functools import lru_cache
from envhive import Action, Environment, Observation, State

class Go(Action):
    how: str

def by_key(n):
    return sorted([n], key=lambda _: by_key(n + 1))

@lru_cache
def by_cache(n):
    return by_cache(n + 1)

class Nested(list):
    def __repr__(self):
        return repr(Nested())

class Deep(Environment[Go, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()
    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation()
    def step(self, action, **kwargs):
        {"key": by_key, "cache": by_cache, "repr": lambda n: repr(Nested())}[action.how](0)
"""


def test_recursion_without_end_is_an_error_of_the_environments(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    with (
        envhive_serve("deep:Deep", cwd=tmp_path, log=tmp_path / "log") as server,
        GenericEnvClient(server.url).sync() as env,
        GenericEnvClient(server.url).sync() as bystander,
    ):
        env.reset()
        bystander.reset()
        for how in ("key", "cache", "repr"):
            with pytest.raises(ExecutionError, match="recursion"):
                env.step({"how": how})
        bystander.reset()
