"""`envhive top`: a server's sessions and figures, live in the terminal."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from envhive.cli.asking import RunningServer
from envhive.cli.doctor import duration

if TYPE_CHECKING:
    from rich.console import Group

_CHROME_LINES: Final = 14
"""Lines of the screen that are not sessions."""
_FEWEST: Final = 5


@dataclass(frozen=True, slots=True)
class Look:
    """What a server said at one moment."""

    at: float
    health: dict[str, Any]
    sessions: list[dict[str, Any]]
    counts: dict[str, float]
    """Of each metric, summed over workers; `name{label}` where a label tells kinds apart."""
    buckets: dict[float, float]
    """Steps that took no longer than so many seconds."""

    @classmethod
    def at_server(cls, server: RunningServer, now: float) -> Look:
        counts, buckets = parse_metrics(server.read("/metrics").decode())
        return cls(now, server.ask("/health"), server.ask("/sessions"), counts, buckets)


@dataclass(slots=True)
class Pace:
    """How fast things go, between two looks."""

    now: Look
    before: Look

    @property
    def seconds(self) -> float:
        return max(1e-9, self.now.at - self.before.at)

    def rate(self, name: str) -> float:
        """How often a second. A worker that was replaced counts from nothing, which is no negative pace."""
        return max(0.0, self.now.counts.get(name, 0.0) - self.before.counts.get(name, 0.0)) / self.seconds

    def quantile(self, share: float) -> float | None:
        """The time that this share of the steps stayed within, as well as the histogram tells; None without steps."""
        before, now = self.before.buckets, sorted(self.now.buckets.items())
        within = {bound: count - before.get(bound, 0.0) for bound, count in now}
        total = max(within.values(), default=0.0)
        if total <= 0:
            return None
        return next(bound for bound, count in within.items() if count >= share * total)


def parse_metrics(text: str) -> tuple[dict[str, float], dict[float, float]]:
    """The counts of Prometheus's text form, summed over workers, and the buckets of step times.

    Example:
        >>> text = 'envhive_steps_total{worker="0",outcome="ok"} 3\\nenvhive_steps_total{worker="1",outcome="ok"} 4\\n'
        >>> parse_metrics(text)
        ({'envhive_steps_total{ok}': 7.0}, {})
    """
    from prometheus_client.parser import text_string_to_metric_families  # late: only this command needs it

    counts: defaultdict[str, float] = defaultdict(float)
    buckets: defaultdict[float, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "envhive_step_duration_seconds_bucket":
                buckets[float(sample.labels["le"])] += sample.value
            elif not sample.name.endswith("_bucket"):
                kind = next(
                    (sample.labels[label] for label in ("outcome", "reason", "state") if label in sample.labels), ""
                )
                counts[f"{sample.name}{{{kind}}}" if kind else sample.name] += sample.value
    return dict(counts), dict(buckets)


@click.command(epilog="\b\nExample:\n  envhive top http://localhost:8000")
@click.argument("url")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Print one interval, and end. So it is where the output is no terminal.")
def top(url: str, interval: float, once: bool) -> None:
    """Watch the server at URL: its sessions, its pace, its failures. Ctrl-C ends it.

    Where the server asks for a token, set ENVHIVE_TOKEN; one sees the sessions of that token.
    """
    from rich.console import Console
    from rich.live import Live

    server, console = RunningServer(url), Console()
    before = Look.at_server(server, time.monotonic())
    time.sleep(interval)
    look, trouble = Look.at_server(server, time.monotonic()), ""
    if once or not console.is_terminal:
        console.print(picture(server.url, Pace(look, before), most=len(look.sessions)))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            most = max(_FEWEST, console.height - _CHROME_LINES - len(look.health["workers"]))
            live.update(picture(server.url, Pace(look, before), most, trouble), refresh=True)
            try:
                time.sleep(interval)
                before, look, trouble = look, Look.at_server(server, time.monotonic()), ""
            except click.ClickException as error:
                trouble = error.message
            except KeyboardInterrupt:
                return


def picture(url: str, pace: Pace, most: int, trouble: str = "") -> Group:
    """What is shown: a summary, the workers, and the sessions that have been busy for longest."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    look = pace.now
    health = look.health
    status = f"does not answer, was {health['status']}" if trouble else health["status"]
    style = {"healthy": "green", "degraded": "yellow", "draining": "yellow"}.get(status, "red")
    head = Text.assemble(
        (url, "bold"),
        "  ",
        (status, style),
        f"  up {duration(health['uptime_s'])}  EnvHive {health['version']}",
    )
    parts: list[Any] = [head, *(Text(f"  {reason}", style="yellow") for reason in health["reasons"])]
    if trouble:
        parts.append(Text(f"  {trouble}", style="red"))
    parts += [_summary(pace), Text()]
    if health["workers"]:
        workers = Table("worker", "pid", "status", "sessions", "lag ms", box=None, pad_edge=False)
        for worker in health["workers"]:
            columns = ("worker", "pid", "status", "sessions", "loop_lag_ms")
            workers.add_row(*(str(worker.get(column, "-")) for column in columns))
        parts += [workers, Text()]
    sessions = Table("session", "owner", "age", "steps", "doing", "for", box=None, pad_edge=False)
    ordered = sorted(look.sessions, key=lambda each: (-each["busy_s"], each["idle_s"]))
    for each in ordered[:most]:
        stuck = each["doing"].startswith("stuck")
        sessions.add_row(
            each["session_id"],
            each["owner"] or "-",
            duration(each["age_s"]),
            str(each["steps"]),
            Text(each["doing"], style="red" if stuck else ""),
            duration(each["busy_s"] or each["idle_s"]),
        )
    parts.append(sessions)
    if len(ordered) > most:
        parts.append(Text(f"and {len(ordered) - most} more", style="dim"))
    return Group(*parts)


def _summary(pace: Pace) -> Any:
    from rich.table import Table

    health, counts = pace.now.health, pace.now.counts
    failed = sum(
        pace.rate(f"envhive_steps_total{{{kind}}}") for kind in ("invalid", "env_error", "timeout", "infra_error")
    )
    refused = sum(pace.rate(name) for name in counts if name.startswith("envhive_refusals_total"))
    half, most = (_time(pace.quantile(share)) for share in (0.5, 0.99))
    table = Table.grid(padding=(0, 3))
    table.add_row(
        f"sessions {health['active_sessions']}/{health['max_sessions']}",
        f"in line {counts.get('envhive_admission_waiting', 0):g}",
        f"detached {counts.get('envhive_sessions{detached}', 0):g}",
        f"stuck {counts.get('envhive_sessions{stuck}', 0):g}",
        f"loop lag {health['loop_lag_ms']:g} ms",
    )
    table.add_row(
        f"steps/s {pace.rate('envhive_steps_total{ok}'):,.1f}",
        f"failed/s {failed:,.1f}",
        f"refused/s {refused:,.1f}",
        f"resets/s {pace.rate('envhive_resets_total{ok}'):,.1f}",
        f"step p50 ≤ {half}, p99 ≤ {most}",
    )
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds == float("inf"):
        return "∞"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"
