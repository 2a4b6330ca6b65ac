"""The coding environment: runs Python in a sandbox and rewards it by tests."""

from __future__ import annotations

import secrets
import uuid
from typing import Any, ClassVar, Final, Literal, get_args

from envhive.environment import Transform
from envhive.envs.coding.models import CodingAction, CodingObservation, CodingState, Namespace, TestOutcome
from envhive.envs.coding.sandbox import (
    NO_SANDBOX,
    PATIENCE_S,
    Sandbox,
    counts_processes,
    working_bubblewrap,
)
from envhive.envs.trying import TriedEnvironment

MEGABYTE: Final = 1 << 20


class CodingEnvironment(TriedEnvironment[CodingAction, CodingObservation, CodingState]):
    """Runs Python and tells what came of it; the reward is the share of tests that pass."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(
        self,
        namespace: Namespace = "fresh",
        time_limit_s: float = 5.0,
        memory_limit_mb: int = 512,
        disk_limit_mb: int = 64,
        process_limit: int = 256,
        output_limit: int = 65_536,
        packages: bool = False,
        sandbox: Literal["auto", "required", "off"] = "auto",
        transform: Transform[CodingObservation] | None = None,
    ) -> None:
        """Make one.

        Args:
            namespace: `persistent` keeps variables from step to step, `fresh` does not.
            time_limit_s: Seconds that the code and its tests may take together.
            memory_limit_mb: For each process of the code, and for all together.
            disk_limit_mb: For the working folder; without bubblewrap, for each file in it.
            process_limit: Processes that the code may have at a time.
            output_limit: Bytes that are kept of stdout, and of stderr; the rest is thrown away.
            packages: Whether the code may import what is installed beside EnvHive.
            sandbox: `required` refuses to run without bubblewrap, `off` does without it.
            transform: Changes observations on their way out.
        """
        super().__init__(transform)
        if namespace not in get_args(Namespace):
            raise ValueError(f"namespace must be fresh or persistent, not {namespace!r}")
        if sandbox not in ("auto", "required", "off"):
            raise ValueError(f"sandbox must be auto, required or off, not {sandbox!r}")
        walled = sandbox != "off" and bool(working_bubblewrap())
        if sandbox == "required" and not walled:
            raise RuntimeError(f"sandbox=required, but {NO_SANDBOX}")
        self._time_limit_s = float(time_limit_s)
        self._sandbox = Sandbox(walled=walled, disk_bytes=disk_limit_mb * MEGABYTE, packages=packages)
        self._limits: dict[str, Any] = {
            "namespace": namespace,
            "memory_bytes": memory_limit_mb * MEGABYTE,
            "disk_bytes": disk_limit_mb * MEGABYTE,
            "processes": process_limit,
            "counts_processes": walled and counts_processes(),
            "output_bytes": output_limit,
        }
        self._state = CodingState(namespace=namespace, sandboxed=walled)
        self._tests: list[str] = []
        self._seed = 0
        self._warned = walled

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        tests: list[str] | None = None,
        **kwargs: Any,
    ) -> CodingObservation:
        """Begin with an empty folder and no variables. `tests` are run after the code of every step."""
        if tests is not None and not (isinstance(tests, list) and all(isinstance(test, str) for test in tests)):
            raise ValueError(f"tests must be a list of texts, each Python that raises if it fails, not {tests!r}")
        self._tests = tests or []
        self._seed = secrets.randbits(32) if seed is None else seed
        self._begin()
        self._state = CodingState(
            episode_id=episode_id or str(uuid.uuid4()),
            namespace=self._limits["namespace"],
            sandboxed=self._sandbox.walled,
        )
        observation = CodingObservation()
        if not self._warned:
            observation.metadata["warning"] = NO_SANDBOX
            self._warned = True
        return self._apply_transform(observation)

    def step(self, action: CodingAction, timeout_s: float | None = None, **kwargs: Any) -> CodingObservation:
        if self._state.episode_id is None:
            raise RuntimeError("There is no episode yet: reset first.")
        self._state.step_count += 1
        tests = self._tests if action.tests is None else action.tests
        time_s = self._time_limit_s if timeout_s is None else min(self._time_limit_s, timeout_s)
        if not self._sandbox.is_running:
            self._begin()
        order = {"do": "run", "code": action.code, "tests": tests, "time_s": time_s, "step": self._state.step_count}
        result = self._sandbox.ask(order, time_s + PATIENCE_S)
        observation = self._observed(result, tests)
        self._state.last_exit_code = observation.exit_code
        return self._apply_transform(observation)

    def _begin(self) -> None:
        folder = self._sandbox.folder
        place = {"folder": folder, "remove": self._sandbox.outside}
        self._sandbox.ask({"do": "begin", **place, "seed": self._seed, **self._limits})

    @staticmethod
    def _observed(result: dict[str, Any], tests: list[str]) -> CodingObservation:
        outcomes = result.pop("tests", [])
        # Code that ends its process takes its tests with it: they count as failed.
        outcomes += [(False, "it was not run")] * (len(tests) - len(outcomes))
        told = [
            TestOutcome(test=test, passed=passed, message=message)
            for test, (passed, message) in zip(tests, outcomes, strict=False)
        ]
        passed = sum(outcome.passed for outcome in told)
        return CodingObservation(
            **result,
            tests=told,
            reward=passed / len(told) if told else None,
            done=bool(told) and passed == len(told),
        )

    @property
    def state(self) -> CodingState:
        return self._state

    def close(self) -> None:
        self._sandbox.close()
