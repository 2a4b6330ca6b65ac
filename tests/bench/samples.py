"""Results as a run would leave them, made up."""

from __future__ import annotations

from typing import Any

from envhive.bench.records import (
    Figure,
    Kind,
    Machine,
    Result,
    Run,
    RunInfo,
    SteadyWindow,
    StormCell,
    Verdict,
)
from envhive.bench.stats import Summary, summarise


def info(kind: Kind = "storm", label: str = "a <box>", server_cores: int | None = 2) -> RunInfo:
    machine = Machine(cores=2, python="3.11", system="Linux", packages={"envhive": "0"})
    return RunInfo(kind, label, "2026-01-01T00:00:00", "envhive bench", machine, server_cores, ["A note & more."])


def cell(sessions: int = 32, success: float = 1.0, wait_s: float = 1.0, **more: Any) -> StormCell:
    some = summarise([0.1, 0.2, 0.3]) if success else Summary()
    given: dict[str, Any] = {
        "mode": "ws",
        "repetition": 1,
        "wall_s": 2.0,
        "requests_per_s": 10.0,
        "concurrency": 5.0,
        "errors": {} if success == 1 else {"refused": 3},
        "load_cpu": 0.2,
        "load_processes": 1,
        "sessions_per_core": sessions / 2,
        **more,
    }
    step = summarise([wait_s + 0.1, wait_s + 0.2, wait_s + 0.3]) if success else Summary()
    phases = {"connect": some, "reset": some, "step": step, "whole": some}
    return StormCell(sessions=sessions, success=success, wait_s=wait_s, **{**phases, **given})


def window(sessions: int = 64, **more: Any) -> SteadyWindow:
    given: dict[str, Any] = {
        "opened": sessions,
        "rate": None,
        "think_s": 0.0,
        "repetition": 1,
        "seconds": 2.0,
        "steps": 1000,
        "latency": summarise([0.001, 0.002, 0.003]),
        "errors": {},
        "unanswered": 0,
        "load_cpu": 0.2,
        "load_processes": 1,
        "lag": Summary(),
        "opened_per_s": 500.0,
        "cpu_us_per_step": 20.0,
        "server_cpu": 0.5,
        **more,
    }
    return SteadyWindow(sessions=sessions, **given)


def figures() -> list[Result]:
    values = {"openenv sync": 200.0, "EnvHive sync": 20.0, "openenv async": 120.0, "EnvHive async": 10.0}
    found: list[Result] = [
        Figure(server, metric, value, 1)
        for server, value in {**values, "bare picows": 8.0}.items()
        for metric in ("CPU per step, 64 sessions", "CPU per step, 512 sessions", "memory per idle session")
    ]
    return [*found, Figure("openenv sync", "client import", 4.0, 1), Figure("EnvHive sync", "client import", 0.2, 1)]


def runs() -> list[Run]:
    """One of each kind."""
    storm = [cell(32), cell(128, 0.5), cell(512, 0.0, server_died=True), cell(32, wait_s=5.0)]
    verdict = Verdict("sessions", 64, 128, "p99 2.000 s > 0.25 s", "CPU", "the server used 0.99 of 1 core(s)")
    return [
        Run(info("storm"), [*storm]),
        Run(info("steady"), [window(64), window(512)]),
        Run(info("knee"), [window(64), window(128), verdict]),
        Run(info("compare"), figures()),
    ]
