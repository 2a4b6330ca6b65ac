"""The environments that ship with EnvHive: `envhive serve NAME`."""

from __future__ import annotations

from typing import Final

SHIPPED: Final = {
    "benchmark": "envhive.envs.benchmark:BenchmarkEnvironment",
    "benchmark-async": "envhive.envs.benchmark:AsyncBenchmarkEnvironment",
    "echo": "envhive.envs.echo:EchoEnvironment",
}
"""What each name stands for, in the form that `envhive serve` takes."""
