"""What the same folder costs under OpenEnv and under EnvHive: server CPU per step, side by side.

    python benchmarks/folder.py FOLDER APP ACTION [--sessions 64] [--seconds 4] [--rounds 3]

FOLDER is an environment written for OpenEnv, APP what its author gives to uvicorn inside it, ACTION a JSON object. Both
servers get the same load in turn, round after round. OpenEnv is installed into a virtual environment of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("app")
    arguments.add_argument("action")
    arguments.add_argument("--sessions", type=int, default=64)
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    raise SystemExit(given)


if __name__ == "__main__":
    main()
