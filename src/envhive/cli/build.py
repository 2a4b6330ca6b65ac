"""`envhive build`: a Docker image of an environment's folder."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from envhive.errors import ConfigurationError, TargetError


@click.command(
    context_settings={"ignore_unknown_options": False},
    epilog="\b\nExamples:\n"
    "  envhive build ./word-game\n"
    "  envhive build ./word-game --tag registry.example.org/word-game:1.0 --dry-run\n"
    "  envhive build ./word-game -- --no-cache --platform linux/amd64     (the rest goes to docker build)",
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.argument("docker_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--tag", help="What to call the image.  [default: the manifest's name, :latest]")
@click.option("--dry-run", is_flag=True, help="Print the command, and run nothing.")
def build(folder: Path, docker_options: tuple[str, ...], tag: str | None, dry_run: bool) -> None:
    """Build a Docker image with the Dockerfile of FOLDER. It writes nothing into the folder."""
    tag = tag or default_tag(folder)
    command = ["docker", "build", "--tag", tag, "--file", str(_dockerfile(folder)), *docker_options, str(folder)]
    if dry_run:
        click.echo(shlex.join(command))
        return
    _require_docker()
    code = subprocess.run(command).returncode
    if code:
        click.echo(f"envhive: docker build ended with code {code}; its last lines say why.", err=True)
        sys.exit(1)
    click.echo(f"\nBuilt {tag}. Next:\n  docker run --rm -p 8000:8000 {tag}")


def default_tag(folder: Path) -> str:
    """The manifest's name, or the folder's, as Docker allows it."""
    from envhive.server.target import read_manifest  # late: --help need not wait for a server's libraries

    try:
        name = str(read_manifest(folder).get("name") or "")
    except TargetError:
        name = ""
    name = re.sub(r"[^a-z0-9]+", "-", (name or folder.resolve().name).lower()).strip("-")
    return f"{name or 'environment'}:latest"


def _dockerfile(folder: Path) -> Path:
    for path in (folder / "Dockerfile", folder / "server" / "Dockerfile"):
        if path.is_file():
            return path
    raise ConfigurationError(f"There is no Dockerfile in {folder}. `envhive init NAME` writes one that you can copy.")


def _require_docker() -> None:
    if shutil.which("docker") is None:
        raise ConfigurationError(
            "docker is not installed: see https://docs.docker.com/get-docker/. --dry-run prints the command to run "
            "elsewhere."
        )
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True)
    if asked.returncode:
        said = (asked.stderr.strip().splitlines() or ["it does not say why"])[-1]
        raise ConfigurationError(
            f"Docker is installed, but its daemon does not answer ({said}). Start Docker Desktop, or: "
            f"sudo systemctl start docker"
        )
