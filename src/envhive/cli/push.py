"""`envhive push`: an environment's folder becomes a Hugging Face Space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from envhive.hub import Upload, parse_setting, publish


def _settings(*, secret: bool) -> Any:
    def parse(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        return dict(parse_setting(each, from_environment=secret) for each in given)

    return parse


@click.command(
    epilog="\b\nExamples:\n"
    "  envhive push ./word-game --repo-id ada/word-game --dry-run\n"
    "  envhive push ./word-game --repo-id ada/word-game --private --secret API_KEY --variable LEVEL=3"
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--repo-id", required=True, metavar="USER/NAME", help="The Space; it is made if it is not there.")
@click.option("--private", is_flag=True, help="Make it one that only you see, if it is not there yet.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    callback=_settings(secret=True),
    help="A secret of the Space. Without a value, that of the environment variable NAME, which others on this machine "
    "cannot read off the command line. Repeatable.",
)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings(secret=False),
    help="A variable of the Space, such as MAX_CONCURRENT_ENVS=64. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded, and upload nothing.")
@click.option("--no-check", is_flag=True, help="Upload even if the static checks of `envhive validate` find errors.")
def push(
    folder: Path,
    repo_id: str,
    private: bool,
    secrets: dict[str, str],
    variables: dict[str, str],
    dry_run: bool,
    no_check: bool,
) -> None:
    """Publish FOLDER as a Hugging Face Space that runs its Dockerfile.

    You are who `hf auth login` or HF_TOKEN say you are. Files that tools leave behind (.venv, caches, dist) and those
    where people keep secrets (.env, *.pem, *.key) stay here.
    """
    if not no_check:
        _check(folder)
    upload = Upload.of(folder, repo_id, private=private, secrets=secrets, variables=variables)
    _show(upload)
    if dry_run:
        click.echo("Nothing was uploaded: --dry-run.")
        return
    address = publish(upload)
    click.echo(f"\nUploaded to {address}; the Space builds now. When it runs, try it:")
    click.echo(f"  envhive validate https://{repo_id.lower().replace('/', '-').replace('_', '-')}.hf.space")


def _check(folder: Path) -> None:
    from envhive.checks import Report  # late: --help need not wait for them
    from envhive.validation.static import check_folder

    report = Report(str(folder))
    check_folder(folder, report)
    errors = [finding for finding in report.findings if finding.level == "error"]
    if errors:
        lines = "\n".join(f"  {each.problem} {each.advice}" for each in errors)
        raise click.ClickException(f"{folder} would not run as a Space:\n{lines}\nMend it, or pass --no-check.")


def _show(upload: Upload) -> None:
    click.echo(f"Space {upload.repo_id}, sdk docker, {'private' if upload.private else 'public'}")
    for name in upload.secrets:
        click.echo(f"  secret    {name}")
    for name, value in upload.variables.items():
        click.echo(f"  variable  {name}={value}")
    for path, file in upload.files.items():
        click.echo(f"  {file.stat().st_size:>9,} B  {path}")
    click.echo(f"{len(upload.files)} files, {upload.size:,} B")
