"""A disk with no room for logs: the server starts, serves and stops as ever."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest

from envhive import GenericEnvClient
from envhive.errors import ExecutionError
from tests.support.belongings import nothing_left_behind
from tests.support.processes import envhive_serve

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
FULL: Final = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--isolation", "process")], ids=" ".join)
def test_a_server_that_cannot_log_serves_as_ever(options: tuple[str, ...]) -> None:
    target = ("tests.support.wild:Wild", "--max-sessions", "4", "--log-level", "debug", *options)
    with envhive_serve(*target, cwd=ROOT, log=FULL) as server:
        with nothing_left_behind(server, f"a full disk for logs {' '.join(options)}".strip()) as tally:
            for _ in range(10):
                with GenericEnvClient(server.url).sync() as env:
                    env.reset(seed=0)
                    for number in range(1, 6):
                        with pytest.raises(ExecutionError):
                            env.step({"do": "no such deed"})  # its traceback is logged
                        tally.failed("ExecutionError")
                        assert env.step({"do": "add"}).observation["total"] == number
                        tally.answered()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(15) == 0
