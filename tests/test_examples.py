"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ServerProcess, envhive_serve

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def treasure() -> Iterator[ServerProcess]:
    with envhive_serve("treasure:Treasure", cwd=EXAMPLES) as server:
        yield server


def run(name: str, server: ServerProcess) -> str:
    code = (EXAMPLES / name).read_text().replace("localhost:8000", f"localhost:{server.port}")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_agent_finds_the_treasure(treasure: ServerProcess) -> None:
    output = run("treasure_agent.py", treasure)
    assert output.startswith("dig: Dig at a square")
    assert output.strip().endswith("found")


def test_a_trainer_is_rewarded_for_it(treasure: ServerProcess) -> None:
    lines = run("treasure_trainer.py", treasure).splitlines()
    assert len(lines) == 3
    assert all(line.endswith("1.0]") for line in lines)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 100
