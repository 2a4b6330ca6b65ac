"""The scaling test on every infrastructure that can be had on one machine, drawn side by side.

Docker, Swarm, Slurm (two nodes) and Ray (three nodes) are those of the tests: started here, for this, and stopped. What
cannot be started is left out, and said. The results of each, and all of them together, go to a folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.dockerd import IMAGE, private_docker
from tests.support.ray_cluster import ray_cluster
from tests.support.slurm import slurm_cluster

TARGET = "benchmark-async"
Variables = dict[str, str]
Option = tuple[str, ...]


@contextmanager
def here() -> Iterator[Variables]:
    yield {}


@contextmanager
def docker() -> Iterator[Variables]:
    with private_docker() as running:
        yield {"DOCKER_HOST": running.host}


@contextmanager
def slurm() -> Iterator[Variables]:
    with slurm_cluster() as cluster:
        yield cluster.environ


@contextmanager
def ray() -> Iterator[Variables]:
    with ray_cluster() as cluster:
        yield {"RAY_ADDRESS": cluster.address}


def provided(kind: str, what: str, *more: str, replicas: int = 1, workers: int = 1) -> Option:
    return ("--serve", what, "--provider", kind, "--replicas", str(replicas), "--workers", str(workers), *more)


IN_IMAGE = ("--option", f"target={TARGET}", "--option", "pull=never")
BEDS: list[tuple[Callable[[], Any], dict[str, Option]]] = [
    (
        here,
        {
            "local, 2 workers": ("--serve", TARGET, "--workers", "2"),
            "local, 4 processes + Envoy": provided("process", TARGET, replicas=4),
        },
    ),
    (
        docker,
        {
            "Docker, 2 workers": provided("docker", IMAGE, *IN_IMAGE, workers=2),
            "Docker, 2 containers + Envoy": provided("docker", IMAGE, *IN_IMAGE, replicas=2),
            "Swarm, 2 tasks + Envoy": provided(
                "swarm", IMAGE, "--option", f"target={TARGET}", "--option", "init_swarm=true", replicas=2
            ),
        },
    ),
    (
        slurm,
        {
            "Slurm, 1 node": provided("slurm", TARGET, workers=2),
            "Slurm, 2 nodes + Envoy": provided("slurm", TARGET, replicas=2),
        },
    ),
    (ray, {"Ray, 3 nodes + Envoy": provided("ray", TARGET, replicas=3)}),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", default="512,2048")
    parser.add_argument("--waits", default="1")
    parser.add_argument("--repetitions", default="2")
    parser.add_argument("--out", type=Path, default=Path("bench-results/infrastructures"))
    options = parser.parse_args()
    grid = ["--sessions", options.sessions, "--waits", options.waits, "--repetitions", options.repetitions]
    runs: list[Path] = []
    for bed, infrastructures in BEDS:
        try:
            with bed() as variables:
                for label, option in infrastructures.items():
                    folder = options.out / f"run-{len(runs) + 1}"
                    command = ["envhive", "bench", "storm", *option, *grid, "--label", label, "--out", str(folder)]
                    if run(command, variables):
                        runs.append(folder)
        except pytest.skip.Exception as reason:
            print(f"{', '.join(infrastructures)}: left out, as {reason}", file=sys.stderr)
    return 0 if run(["envhive", "bench", "plot", *map(str, runs), "--out", str(options.out)], {}) else 1


def run(command: list[str], variables: Variables) -> bool:
    script = str(Path(sys.executable).with_name(command[0]))
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run([script, *command[1:]], env={**os.environ, **variables}).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
