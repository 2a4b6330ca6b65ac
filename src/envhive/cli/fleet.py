"""`envhive fleet`: several servers behind one address, that go on when the command has ended."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml

from envhive.cli.shared import parse_settings
from envhive.errors import ConfigurationError
from envhive.fleet.control import Control, fleets_folder
from envhive.fleet.envoy import config
from envhive.providers import PROVIDERS
from envhive.providers.base import Replica

_EPILOG = """\b
Examples:
  envhive fleet up echo --replicas 4
  envhive fleet up my-env:latest --provider docker --replicas 8 --port 9000 --name games
  envhive fleet status
  envhive fleet scale 2
  envhive fleet down
"""

_name_option = click.option("--name", default="default", show_default=True, help="The fleet's name.")


@click.group(epilog=_EPILOG)
def fleet() -> None:
    """Run several servers behind one address."""


@fleet.command(epilog="\b\nExample:\n  envhive fleet up echo --provider process --replicas 4 --max-sessions 1000")
@click.argument("what", metavar="TARGET|IMAGE|FOLDER")
@click.option("--provider", type=click.Choice(list(PROVIDERS)), default="process", show_default=True)
@click.option("--replicas", type=click.IntRange(min=1), default=2, show_default=True, help="How many servers.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes of each server.")
@click.option("--max-sessions", type=click.IntRange(min=1), help="Most sessions of each server.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that clients connect to.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--cpus", type=float, help="Cores for each server, where the provider can limit them.")
@click.option(
    "--memory", "memory_mb", type=click.IntRange(min=1), metavar="MB", help="Memory for each server, likewise."
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="An environment variable of the servers. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_settings,
    help="A keyword for the environment's constructor. Repeatable.",
)
@click.option(
    "--option",
    "extra",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_settings,
    help="An option of the provider, such as partition=gpu for slurm. Repeatable.",
)
@click.option("--token", envvar="ENVHIVE_TOKEN", help="Ask clients for this token.  [env: ENVHIVE_TOKEN]")
@click.option("--proxies", type=click.IntRange(min=1), help="Envoys before them.  [default: as many as sessions need]")
@_name_option
def up(
    what: str,
    provider: str,
    host: str,
    port: int,
    proxies: int | None,
    name: str,
    environment: tuple[str, ...],
    extra: dict[str, Any],
    **common: Any,
) -> None:
    """Start a fleet of servers, wait until they are healthy, and leave them running."""
    variables = dict(_pair(text) for text in environment)
    options = {key: value for key, value in common.items() if value not in (None, {})}
    orders = {
        "provider": provider,
        "what": what,
        "options": {**options, "environment": variables, **extra},
        "fleet": {"host": host, "port": port, "proxies": proxies},
    }
    status = _with_progress(lambda tell: Control(name).launch(orders, tell))
    _show(status)
    named = "" if name == "default" else f" --name {name}"
    click.echo(f"\nConnect to {status['url']}")
    click.echo(f"  look at it: envhive fleet status{named}    end it: envhive fleet down{named}")


@fleet.command(epilog="\b\nExample:\n  envhive fleet status --json")
@_name_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(name: str, as_json: bool) -> None:
    """Show the servers of a fleet, and how each is."""
    found = Control(name).ask("status")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _show(found)


@fleet.command(epilog="\b\nExample:\n  envhive fleet scale 8")
@click.argument("count", type=click.IntRange(min=1))
@_name_option
def scale(count: int, name: str) -> None:
    """Have COUNT servers. Those that go take no new sessions, and go when theirs have ended."""
    _show(_with_progress(lambda tell: Control(name).ask("scale", tell, count=count)))


@fleet.command(epilog="\b\nExample:\n  envhive fleet restart")
@_name_option
def restart(name: str) -> None:
    """Replace the servers one by one, each by a new one that is there first; sessions finish where they are."""
    _show(_with_progress(lambda tell: Control(name).ask("restart", tell)))


@fleet.command(epilog="\b\nExample:\n  envhive fleet logs --lines 20")
@_name_option
@click.option("--lines", type=click.IntRange(min=1), default=100, show_default=True, help="How many of each server.")
def logs(name: str, lines: int) -> None:
    """Show the last that the servers have said."""
    click.echo(Control(name).ask("logs", lines=lines)["logs"])


@fleet.command(epilog="\b\nExample:\n  envhive fleet down --drain 600")
@_name_option
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Let sessions finish first, for so long.",
)
def down(name: str, drain: float) -> None:
    """End a fleet."""
    _with_progress(lambda tell: Control(name).ask("down", tell, drain_s=drain))
    click.echo(f"The fleet {name!r} has ended.")


@fleet.command("list", epilog="\b\nExample:\n  envhive fleet list")
def list_fleets() -> None:
    """Name the fleets that are up."""
    folder = fleets_folder()
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    there = [name for name in names if Control(name).is_there]
    click.echo("\n".join(there) if there else "No fleet is up: `envhive fleet up TARGET` starts one.")


@fleet.command(epilog="\b\nExample:\n  envhive fleet envoy r1=http://node1:8000 r2=http://node2:8000 > envoy.yaml")
@click.argument("servers", nargs=-1, required=True, metavar="NAME=URL...")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address that Envoy listens on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
def envoy(servers: tuple[str, ...], host: str, port: int) -> None:
    """Print a configuration for an Envoy of your own.

    Each server must be started with `--replica NAME` of the same name, so that its sessions are found again.
    """
    replicas = [Replica(*_pair(text)) for text in servers]
    click.echo(yaml.safe_dump(config(host, port, replicas), sort_keys=False), nl=False)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"{text!r} is not NAME=VALUE.")
    return name, value


def _with_progress(job: Any) -> dict[str, Any]:
    """Run a job that says how far it is."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("") as shown:
        done: dict[str, Any] = job(shown.update if console.is_terminal else lambda sentence: None)
    return done


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{status['url']}: {status['replicas']} × {status['provider']}", title_justify="left")
    for heading in ("server", "address", "where", "status", "sessions"):
        table.add_column(heading, justify="right" if heading == "sessions" else "left")
    for member in status["members"]:
        sessions = f"{member['sessions']} of {member['max_sessions']}" if member["max_sessions"] else "-"
        table.add_row(member["name"], member["url"], member["where"], member["status"], sessions)
    Console().print(table)
