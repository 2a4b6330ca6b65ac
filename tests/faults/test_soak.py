"""`scripts/soak` in its shortest form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]


def test_a_short_soak_leaves_nothing_behind_and_says_so() -> None:
    command = [sys.executable, "-m", "tests.faults.soak", "--minutes", "0.1"]
    soak = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert "faults |" in soak.stdout
    assert soak.stdout.endswith("Nothing is left behind.\n")
