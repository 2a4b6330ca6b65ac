"""`envhive init`: the folder of a new environment, which runs as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from envhive.scaffold.project import DEFAULT_GYM_ID, KINDS, Project, write_project


@click.command(
    epilog="\b\nExamples:\n"
    "  envhive init word-game && envhive validate word-game && envhive serve word-game\n"
    "  envhive init shop --kind mcp\n"
    "  envhive init pole --kind gymnasium --gym-id CartPole-v1\n"
    "  envhive init arena --with-server"
)
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="basic",
    show_default=True,
    help="basic is a small game with typed models; mcp has tools for agents; gymnasium wraps an environment of theirs.",
)
@click.option("--gym-id", help=f"Which environment --kind gymnasium wraps.  [default: {DEFAULT_GYM_ID}]", metavar="ID")
@click.option(
    "--with-server",
    is_flag=True,
    help="Add server/app.py in OpenEnv's layout, for routes of your own. `envhive serve` needs none.",
)
@click.option("--force", is_flag=True, help="Write into a folder that is not empty, over files of the same names.")
def init(name: str, kind: Any, gym_id: str | None, with_server: bool, force: bool) -> None:
    """Make the folder NAME with a small environment in it, which runs, tests and lints as it stands.

    NAME may be a path; its last part is the environment's name.
    """
    if gym_id is not None and kind != "gymnasium":
        raise click.UsageError("--gym-id goes with --kind gymnasium.")
    folder = Path(name)
    project = Project.named(folder.name, kind, gym_id or DEFAULT_GYM_ID, with_server)
    contents = project.files()
    write_project(folder, contents, force=force)
    click.echo(f"Made {folder}:")
    for path in contents:
        click.echo(f"  {path}")
    typed = shlex.quote(str(folder))
    click.echo(
        f"\nNext:\n"
        f"  envhive validate {typed}     does it keep its promises?\n"
        f"  envhive serve {typed}        on http://localhost:8000\n"
        f"  envhive play {typed}         step it by hand\n"
        f"  {folder / project.package / 'environment.py'} is where to begin to make it yours."
    )
