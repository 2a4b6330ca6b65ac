"""`envhive list`: the environments that come with EnvHive."""

from __future__ import annotations

import json

import click

from envhive.envs import SHIPPED


@click.command("list", epilog="\b\nExample:\n  envhive list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_environments(as_json: bool) -> None:
    """List the environments that come with EnvHive, what each needs, and whether that is installed."""
    if as_json:
        listed = [
            {"name": name, "summary": each.summary, "missing": each.missing(), "install": each.hint()}
            for name, each in sorted(SHIPPED.items())
        ]
        click.echo(json.dumps(listed, indent=2))
        return
    width = max(map(len, SHIPPED))
    for name, each in sorted(SHIPPED.items()):
        hint = each.hint()
        click.echo(f"{name:{width}}  {each.summary}" + (f"\n{'':{width}}    to install: {hint}" if hint else ""))
    click.echo("\nServe one with: envhive serve NAME")
