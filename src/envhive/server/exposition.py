"""The numbers of a server in the forms that Prometheus reads. Imported when they are asked for the first time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from envhive import __version__
from envhive.server.metrics import LAG_BOUNDS, WAIT_BOUNDS, WORK_BOUNDS

Report = dict[str, Any]

_HERE: Final = ("env", "worker")

_COUNTERS: Final = {
    "admissions": ("envhive_admissions", "Sessions that got a place."),
    "resumes": ("envhive_resumes", "Sessions that went on with a new connection."),
    "crashes": ("envhive_environment_crashes", "Processes of environments that ended by themselves."),
    "left_behind": ("envhive_left_behind", "Sessions that ended while their code could not be stopped."),
    "invalid_messages": ("envhive_invalid_messages", "Messages that were no valid request."),
}
_LABELLED_COUNTERS: Final = {
    "refusals": ("envhive_refusals", "Requests and sessions that were refused.", "reason"),
    "ended": ("envhive_sessions_ended", "Sessions that are over, and why.", "reason"),
}
_OUTCOMES: Final = {
    "steps": ("envhive_steps", "Steps, by what came of them."),
    "resets": ("envhive_resets", "Resets, by what came of them."),
}
_HISTOGRAMS: Final = {
    "steps": (
        "envhive_step_duration_seconds",
        "From start to reply, of one in eight of a session's steps that were ok.",
        WORK_BOUNDS,
    ),
    "resets": ("envhive_reset_duration_seconds", "From start to reply, of resets that were ok.", WORK_BOUNDS),
    "waits": ("envhive_admission_wait_seconds", "Time that newcomers spent in line.", WAIT_BOUNDS),
    "lag": ("envhive_event_loop_lag_seconds", "How late the event loop was, looked at once a second.", LAG_BOUNDS),
}
_GAUGES: Final = {
    "waiting": ("envhive_admission_waiting", "Newcomers in line."),
    "lag_max": ("envhive_event_loop_lag_max_seconds", "The longest of the last 30 event loop lags."),
    "draining": ("envhive_draining", "Whether new sessions are refused."),
}


def write(reports: dict[int, Report | None], accept: str) -> tuple[bytes, str]:
    """The reports of all workers as text, and its content type, by what the scraper accepts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Reports(reports))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Reports(Collector):
    """What the workers have reported, as metric families."""

    def __init__(self, reports: dict[int, Report | None]) -> None:
        self._reports = reports
        self._present = [((report["env"], str(w)), report) for w, report in reports.items() if report is not None]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "envhive_build",
            "The versions of EnvHive and Python.",
            {"version": __version__, "python": ".".join(map(str, sys.version_info[:3]))},
        )
        yield self._workers()
        yield from self._sessions()
        for name, (family_name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(family_name, text, labels=_HERE)
            for labels, report in self._present:
                gauge.add_metric(labels, float(report[name]))
            yield gauge
        for name, (family_name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(family_name, text, labels=_HERE)
            for labels, report in self._present:
                counter.add_metric(labels, report[name])
            yield counter
        for name, (family_name, text, label) in _LABELLED_COUNTERS.items():
            counter = CounterMetricFamily(family_name, text, labels=(*_HERE, label))
            for labels, report in self._present:
                for value, count in sorted(report[name].items()):
                    counter.add_metric((*labels, value), count)
            yield counter
        for name, (family_name, text) in _OUTCOMES.items():
            counter = CounterMetricFamily(family_name, text, labels=(*_HERE, "outcome"))
            for labels, report in self._present:
                for outcome, count in report[name]["outcomes"].items():
                    counter.add_metric((*labels, outcome), count)
            yield counter
        for name, (family_name, text, bounds) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(family_name, text, labels=_HERE)
            for labels, report in self._present:
                found = report[name].get("seconds", report[name])
                histogram.add_metric(labels, _buckets(bounds, found["counts"]), found["sum"])
            yield histogram
        yield from _processes({labels[1]: report["pid"] for labels, report in self._present})

    def _workers(self) -> Metric:
        up = GaugeMetricFamily("envhive_worker_up", "Whether a worker has answered.", labels=("worker",))
        for worker, report in self._reports.items():
            up.add_metric((str(worker),), report is not None)
        return up

    def _sessions(self) -> Iterator[Metric]:
        limit = GaugeMetricFamily("envhive_sessions_limit", "Most sessions at once, over all workers.", labels=("env",))
        for env, most in {labels[0]: report["limit"] for labels, report in self._present}.items():
            limit.add_metric((env,), most)
        yield limit
        sessions = GaugeMetricFamily("envhive_sessions", "Sessions, by what they are doing.", labels=(*_HERE, "state"))
        for labels, report in self._present:
            for state, count in report["sessions"].items():
                sessions.add_metric((*labels, state), count)
        yield sessions


def _buckets(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """The counts of Prometheus's buckets, each of which holds all that is in those before it."""
    buckets, total = [], 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _processes(pids: dict[str, int]) -> Iterator[Metric]:
    """Memory, CPU time and descriptors of each worker's process, under the names that Prometheus has for them."""
    families: dict[str, Metric] = {}
    for worker, pid in pids.items():
        for metric in ProcessCollector(registry=None, pid=lambda pid=pid: pid).collect():  # type: ignore[misc]
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
    yield from families.values()
