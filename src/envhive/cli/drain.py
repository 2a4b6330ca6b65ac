"""`envhive drain`: let a server's sessions finish, and send newcomers elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Final

import click

_LOOK_S: Final = 0.5
_ANSWER_S: Final = 10.0


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
    url = url.rstrip("/")
    deadline = time.monotonic() + timeout
    health = _ask(url, "/drain", "POST")
    while health["active_sessions"] and not no_wait and time.monotonic() < deadline:
        click.echo(f"\r{health['active_sessions']} session(s) left ", nl=False)
        time.sleep(_LOOK_S)
        health = _ask(url, "/health", "GET")
    left = health["active_sessions"]
    click.echo(f"\r{url} takes no new sessions; {left or 'none'} left.")
    sys.exit(1 if left and not no_wait else 0)


def _ask(url: str, path: str, method: str) -> dict[str, Any]:
    token = os.environ.get("ENVHIVE_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            report: dict[str, Any] = json.load(answer)
            return report
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 503:
                drained: dict[str, Any] = json.load(error)  # which is how a draining server answers
                return drained
        hint = ": it wants a token that it knows; set ENVHIVE_TOKEN" if error.code == 401 else ""
        raise click.ClickException(f"{url}{path} answered {error.code} {error.reason}{hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise click.ClickException(f"{url} could not be asked: {reason}") from None
