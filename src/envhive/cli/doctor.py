"""`envhive doctor`: what a server's sessions are doing, and where those that do not answer are stuck."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from envhive.cli.asking import RunningServer

_WAITING: Final = ("idle", "over", "waiting for its client", "waiting for its first request")


@click.command(
    epilog="\b\nExamples:\n"
    "  envhive doctor http://localhost:8000\n"
    "  envhive doctor http://localhost:8000 --slow 60 --json\n"
    "  envhive doctor http://localhost:8000 --kill 3f1c0b52-..."
)
@click.argument("url")
@click.option(
    "--slow",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds after which a request that still runs is looked into.",
)
@click.option("--kill", metavar="ID", help="End this session, whatever it is doing. The id may be shortened.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def doctor(url: str, slow: float, kill: str | None, as_json: bool) -> None:
    """Look into the server at URL: how it is, what each session does, and the Python stack of those that are stuck.

    The exit code is 1 if something is wrong: a session is stuck or slow, or the server is not well. Where the server
    asks for a token, set ENVHIVE_TOKEN; one sees the sessions of that token.
    """
    server = RunningServer(url)
    if kill is not None:
        _kill(server, kill)
        return
    health = server.ask("/health")
    sessions = sorted(server.ask("/sessions"), key=lambda each: (-each["busy_s"], each["session_id"]))
    suspects = [_look_into(server, each) for each in sessions if _is_suspect(each, slow)]
    if as_json:
        click.echo(json.dumps({"health": health, "sessions": sessions, "suspects": suspects}, indent=2))
    else:
        _print_report(server, health, sessions, suspects, slow)
    sys.exit(1 if suspects or health["status"] != "healthy" else 0)


def _is_suspect(session: dict[str, Any], slow: float) -> bool:
    doing = session["doing"]
    return doing.startswith("stuck") or (doing not in _WAITING and session["busy_s"] >= slow)


def _look_into(server: RunningServer, session: dict[str, Any]) -> dict[str, Any]:
    try:
        looked: dict[str, Any] = server.ask(f"/sessions/{session['session_id']}")
    except click.ClickException as error:  # it has ended since, or its worker does not answer
        return {**session, "stack": [], "note": error.message}
    return looked


def _print_report(
    server: RunningServer,
    health: dict[str, Any],
    sessions: list[dict[str, Any]],
    suspects: list[dict[str, Any]],
    slow: float,
) -> None:
    click.echo(
        f"{server.url} is {health['status']}: {health['active_sessions']} of {health['max_sessions']} sessions, "
        f"up for {duration(health['uptime_s'])}, event loop blocked for {health['loop_lag_ms']:g} ms at most"
    )
    for reason in health["reasons"]:
        click.echo(f"  {reason}")
    if sessions:
        width = max(len(each["session_id"]) for each in sessions)
        click.echo(f"\n{'session':{width}}  {'age':>8}  {'steps':>7}  {'owner':10}  doing")
        for each in sessions:
            doing = each["doing"] + (f" for {duration(each['busy_s'])}" if each["busy_s"] else "")
            click.echo(
                f"{each['session_id']:{width}}  {duration(each['age_s']):>8}  {each['steps']:>7}  "
                f"{each['owner'] or '-':10}  {doing}"
            )
    for each in suspects:
        where = f"process {each['env_pid']}" if "env_pid" in each else f"worker process {each['pid']}"
        click.echo(f"\n{each['session_id']}: {each['doing']} for {duration(each['busy_s'])}, in {where}")
        for frame in each["stack"]:
            click.echo(f"  {frame['file']}:{frame['line']} in {frame['function']}\n      {frame['code']}")
        if not each["stack"]:
            click.echo(f"  {each.get('note', 'its Python stack cannot be had')}")
        if each["doing"].startswith("stuck"):
            click.echo("  A thread cannot be stopped. Its place is free; --isolation process would end it for good.")
        else:
            click.echo(f"  To end it: envhive doctor {server.url} --kill {each['session_id'][:8]}")
    if not suspects:
        click.echo(f"\nNo request has been running for {slow:g} s or more.")


def _kill(server: RunningServer, wanted: str) -> None:
    known = [each["session_id"] for each in server.ask("/sessions") if each["session_id"].startswith(wanted)]
    if len(known) != 1:
        found = "no session" if not known else f"{len(known)} sessions"
        raise click.ClickException(f"{found} of this server begins with {wanted!r}; `envhive doctor` lists them")
    left = server.ask(f"/sessions/{known[0]}", "DELETE")
    if left["doing"].startswith("stuck"):
        click.echo(f"{known[0]} is over and its place is free, but its thread runs on: {left['doing']}.")
    else:
        click.echo(f"{known[0]} is over.")


def duration(seconds: float) -> str:
    """How long, for a person.

    Example:
        >>> [duration(seconds) for seconds in (0.25, 9.9, 75, 7300, 200000)]
        ['0.2s', '9.9s', '1m15s', '2h01m', '2d07h']
    """
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02}h"
