"""`envhive drain`: let a server's sessions finish, and send newcomers elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final

import click

from envhive.cli.asking import RunningServer

_LOOK_S: Final = 0.5


@click.command(epilog="\b\nExample:\n  envhive drain http://localhost:8000 --timeout 600 && echo empty")
@click.argument("url")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=300.0, show_default=True, help="Seconds to wait for sessions."
)
@click.option("--no-wait", is_flag=True, help="Only say so, and do not wait until the last session has ended.")
def drain(url: str, timeout: float, no_wait: bool) -> None:
    """Make the server at URL refuse new sessions, and wait until it has none.

    Newcomers get DRAINING, which says to try again elsewhere; /health answers 503. The server goes on running: stop
    it when this command has ended. The exit code is 1 if sessions are left after the time-out.
    """
    server = RunningServer(url)
    deadline = time.monotonic() + timeout
    health = server.ask("/drain", "POST")
    while health["active_sessions"] and not no_wait and time.monotonic() < deadline:
        click.echo(f"\r{health['active_sessions']} session(s) left ", nl=False)
        time.sleep(_LOOK_S)
        health = server.ask("/health")
    left = health["active_sessions"]
    click.echo(f"\r{server.url} takes no new sessions; {left or 'none'} left.")
    sys.exit(1 if left and not no_wait else 0)
