"""How a server is: what one process says of itself, and what that makes of all of them together."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final

from envhive.types import HealthStatus

LAG_DEGRADED: Final = 1.0
LAG_UNHEALTHY: Final = 10.0
FAILURES_UNHEALTHY: Final = 3
"""Environments that fail to be made in a row before a server calls itself unhealthy."""
FAILURES_FORGOTTEN_S: Final = 30.0
"""After so long without another attempt: nobody sends clients to an unhealthy server, so who else would find out?"""

_ORDER: Final = [HealthStatus.HEALTHY, HealthStatus.DEGRADED, HealthStatus.DRAINING, HealthStatus.UNHEALTHY]


@dataclass(frozen=True, slots=True)
class Health:
    """How a server, or one process of it, is."""

    status: HealthStatus
    reasons: list[str]
    active_sessions: int
    max_sessions: int
    loop_lag_ms: float
    uptime_s: float
    version: str
    workers: list[dict[str, Any]] = field(default_factory=list)


def judge(*, draining: bool, lag: float, window: float, failures_in_a_row: int) -> tuple[HealthStatus, list[str]]:
    """What a process's condition amounts to, and why."""
    verdicts: list[tuple[HealthStatus, str]] = []
    if draining:
        verdicts.append((HealthStatus.DRAINING, "the server takes no new sessions"))
    if lag > LAG_DEGRADED:
        blocked = f"the event loop was blocked for {lag:.1f} s within the last {window:.0f} s"
        verdicts.append((HealthStatus.UNHEALTHY if lag > LAG_UNHEALTHY else HealthStatus.DEGRADED, blocked))
    if failures_in_a_row:
        failing = failures_in_a_row >= FAILURES_UNHEALTHY
        failed = f"the last {failures_in_a_row} attempt(s) to make an environment failed"
        verdicts.append((HealthStatus.UNHEALTHY if failing else HealthStatus.DEGRADED, failed))
    return worst([status for status, _ in verdicts]), [reason for _, reason in verdicts]


def worst(statuses: list[HealthStatus]) -> HealthStatus:
    return max(statuses, key=_ORDER.index, default=HealthStatus.HEALTHY)


def report_of(health: Health) -> dict[str, Any]:
    """What a worker tells the others of itself."""
    return {
        "pid": os.getpid(),
        "status": health.status.value,
        "reasons": health.reasons,
        "sessions": health.active_sessions,
        "loop_lag_ms": health.loop_lag_ms,
        "uptime_s": health.uptime_s,
    }


_OUT_OF_SERVICE: Final = (HealthStatus.UNHEALTHY, HealthStatus.DRAINING)


def merged(own: Health, active_sessions: int, reports: dict[int, dict[str, Any] | None]) -> Health:
    """The health of the whole server: as bad as its worst worker, and degraded while one is missing."""
    reasons, statuses, workers = [], [], []
    for index, report in reports.items():
        if report is None:
            statuses.append(HealthStatus.DEGRADED)
            reasons.append(f"worker {index} is down or does not answer")
            workers.append({"worker": index, "status": "down"})
        else:
            statuses.append(HealthStatus(report["status"]))
            reasons += [f"worker {index}: {reason}" for reason in report["reasons"]]
            workers.append({"worker": index, **{k: report[k] for k in ("pid", "status", "sessions", "loop_lag_ms")}})
    present = [report for report in reports.values() if report is not None]
    status = worst(statuses)
    if status in _OUT_OF_SERVICE and not all(report["status"] in _OUT_OF_SERVICE for report in present):
        status = HealthStatus.DEGRADED  # a part of it still serves
    return Health(
        status=status,
        reasons=reasons,
        active_sessions=active_sessions,
        max_sessions=own.max_sessions,
        loop_lag_ms=max(report["loop_lag_ms"] for report in present),
        uptime_s=max(report["uptime_s"] for report in present),
        version=own.version,
        workers=workers,
    )
