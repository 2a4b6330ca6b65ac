"""The `envhive` command."""

from __future__ import annotations

import sys

import click

from envhive import __version__
from envhive.cli.bench import bench
from envhive.cli.build import build
from envhive.cli.completion import completion
from envhive.cli.deploy import deploy
from envhive.cli.doctor import doctor
from envhive.cli.drain import drain
from envhive.cli.fleet import fleet
from envhive.cli.init import init
from envhive.cli.listing import list_environments
from envhive.cli.mcp import mcp
from envhive.cli.play import play
from envhive.cli.push import push
from envhive.cli.serve import serve
from envhive.cli.top import top
from envhive.cli.validate import validate
from envhive.errors import ConfigurationError, ProviderError


class _Group(click.Group):
    """Bad configuration is one line on stderr and exit code 2, servers that do not start exit code 1: no traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            click.echo(f"envhive: {error}", err=True)
            sys.exit(2)
        except ProviderError as error:
            click.echo(f"envhive: {error}", err=True)
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="envhive")
def main() -> None:
    """EnvHive serves reinforcement-learning environments to training runs."""


main.add_command(bench)
main.add_command(build)
main.add_command(completion)
main.add_command(deploy)
main.add_command(doctor)
main.add_command(drain)
main.add_command(fleet)
main.add_command(list_environments)
main.add_command(mcp)
main.add_command(init)
main.add_command(play)
main.add_command(push)
main.add_command(serve)
main.add_command(top)
main.add_command(validate)
