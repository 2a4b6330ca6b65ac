"""`envhive deploy`: what a cluster must be told to run an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from envhive.cli.build import default_tag
from envhive.cli.completion import complete_target
from envhive.cli.shared import parse_settings
from envhive.providers.base import ServerSpec
from envhive.providers.manifests import LONGEST_NAME, manifests


def parse_variables(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE, as text."""
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        variables[name] = value
    return variables


class _Plain(yaml.SafeDumper):
    """Without references from one part to another, which people do not expect."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@click.group()
def deploy() -> None:
    """Print what a cluster must be told to run an environment."""


@deploy.command(
    epilog="\b\nExamples:\n"
    "  envhive deploy kubernetes ./word-game --replicas 4 | kubectl apply -f -\n"
    "  envhive deploy kubernetes --image registry.example.org/word-game:1.0 --cpus 2 --memory 4096\n"
    "  envhive deploy kubernetes echo --image envhive --max-sessions 512 > echo.yaml"
)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option("--image", help="What to run.  [default: what `envhive build` calls the image of the folder TARGET]")
@click.option("--name", help="What to call it all.  [default: the image's name]")
@click.option("--namespace", help="Where in the cluster.  [default: wherever it is applied]")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, help="How many pods.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes in each.")
@click.option("--max-sessions", type=click.IntRange(min=1), help="Most sessions at once in each.")
@click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="Cores for each, asked for and allowed.")
@click.option("--memory", "memory_mb", type=click.IntRange(min=1), metavar="MB", help="Memory for each, likewise.")
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_variables,
    help="A variable for the server. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parse_settings,
    help="Give the environment's constructor a keyword; needs a TARGET that is no folder. Repeatable.",
)
@click.option(
    "--token",
    envvar="ENVHIVE_TOKENS",
    show_envvar=True,
    help="Ask clients for this token; it becomes a Secret. Others on this machine can read command lines: better to "
    "use the variable.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Where it listens.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds that the sessions of a pod that is taken away may take to finish.",
)
def kubernetes(
    target: str | None,
    image: str | None,
    name: str | None,
    namespace: str | None,
    replicas: int,
    port: int,
    drain_timeout: float,
    **spec: Any,
) -> None:
    """Print the manifests of a Deployment and its Service, as YAML for `kubectl apply -f -`.

    TARGET is a folder, whose image `envhive build` has made; or what `envhive serve` is to serve in the image, if that
    has EnvHive in it. Without it, the image knows what to serve.
    """
    if target is not None and Path(target).is_dir():
        image, target = image or default_tag(Path(target)), None
    if image is None:
        raise click.UsageError("Say which image: --image, or the folder that it is built from.")
    documents = manifests(
        ServerSpec(target=target, image=image, **spec),
        name=name or _name_of(image),
        namespace=namespace,
        replicas=replicas,
        container_port=port,
        drain_timeout_s=drain_timeout,
    )
    click.echo(yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True), nl=False)


def _name_of(image: str) -> str:
    """`registry.example.org:5000/team/Word_Game:1.0` is called `word-game`."""
    last = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in last.lower())
    return plain[:LONGEST_NAME].strip("-") or "environment"
