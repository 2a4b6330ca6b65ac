"""`envhive list`: the environments that come with EnvHive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shutil import which

import click

from envhive.envs import SHIPPED, Shipped


@click.command("list", epilog="\b\nExample:\n  envhive list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_environments(as_json: bool) -> None:
    """List the environments that come with EnvHive, what each needs, and whether that is installed."""
    if as_json:
        listed = [
            {
                "name": name,
                "summary": each.summary,
                "needs": each.needs(),
                "missing": each.missing(),
                "install": each.hint(),
            }
            for name, each in sorted(SHIPPED.items())
        ]
        click.echo(json.dumps(listed, indent=2))
        return
    width = max(map(len, SHIPPED))
    for name, each in sorted(SHIPPED.items()):
        click.echo(f"{name:{width}}  {each.summary}")
        for line in _about(each):
            click.echo(f"{'':{width}}    {line}")
    click.echo("\nServe one with: envhive serve NAME")


def _about(shipped: Shipped) -> Iterator[str]:
    """What it needs, and whether that is there."""
    if needs := ", ".join(shipped.needs()):
        missing = ", ".join(shipped.missing())
        yield f"needs {needs}: " + (f"missing {missing}. {shipped.hint()}" if missing else "installed")
    if shipped.better_with:
        yield f"better with {shipped.better_with}: " + ("installed" if which(shipped.better_with) else "not installed")
