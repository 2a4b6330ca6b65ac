"""An environment whose steps take as long as they are told to, to measure servers with."""

from envhive.envs.benchmark.environment import AsyncBenchmarkEnvironment, BenchmarkEnvironment
from envhive.envs.benchmark.models import BenchmarkAction, BenchmarkObservation

__all__ = ["AsyncBenchmarkEnvironment", "BenchmarkAction", "BenchmarkEnvironment", "BenchmarkObservation"]
