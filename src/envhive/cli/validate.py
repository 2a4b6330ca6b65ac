"""`envhive validate`: whether an environment keeps its promises, and what to do where it does not."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from envhive.cli.completion import complete_target
from envhive.validation.outcome import STAGES, StageName, Validation


def parse_actions(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> list[dict[str, Any]]:
    """Actions as they stand on a command line."""
    actions = []
    for text in given:
        try:
            action = json.loads(text)
        except ValueError as error:
            raise click.BadParameter(
                f"{text!r} is not JSON ({error}). Quote it: --action '{{\"number\": 7}}'"
            ) from None
        if not isinstance(action, dict):
            raise click.BadParameter(f"{text!r} is no JSON object. An action has fields: '{{\"number\": 7}}'")
        actions.append(action)
    return actions


@click.command(
    epilog="\b\nExamples:\n"
    "  envhive validate ./word-game\n"
    "  envhive validate my_package.game:GameEnvironment --action '{\"number\": 7}'\n"
    "  envhive validate http://localhost:8000 --sessions 64\n"
    "  envhive validate ./word-game --strict --json > report.json     (for CI)"
)
@click.argument("subject", metavar="FOLDER|TARGET|URL", shell_complete=complete_target)
@click.option("--no-live", is_flag=True, help="Start no server: only the static checks and the contract.")
@click.option(
    "--sessions", type=click.IntRange(min=1), default=8, show_default=True, help="Sessions to open at the same time."
)
@click.option(
    "--action",
    "actions",
    multiple=True,
    metavar="JSON",
    callback=parse_actions,
    help="An action to step with. Repeatable: they are taken in turn.  [default: made up from the schema]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds that any one thing the environment does may take.",
)
@click.option(
    "--openenv-python",
    metavar="PYTHON",
    help="A Python that has OpenEnv, to try its client with.  [default: this one, if it has]",
)
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def validate(
    subject: str,
    no_live: bool,
    sessions: int,
    actions: list[dict[str, Any]],
    timeout: float,
    openenv_python: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Check an environment: a folder, anything that `envhive serve` takes, or the URL of a running server.

    First what can be told from the files, then the contract in a process of its own, then a live server with
    concurrent sessions, seeds, bad actions and, where it is installed, OpenEnv's own client.

    The exit code is 0 if nothing is wrong, 1 if something is, 2 if the command was not understood.
    """
    from envhive.bench.servers import signals_as_ctrl_c
    from envhive.validation.validate import Wishes, validate  # late: --help need not wait for a client and a server

    wishes = Wishes(not no_live, sessions, actions, timeout, openenv_python)
    on_stage = _quiet if as_json or not sys.stderr.isatty() else _say_stage
    with signals_as_ctrl_c():
        validation = validate(subject, wishes, on_stage)
    if as_json:
        click.echo(json.dumps(validation.as_json(strict=strict), indent=2))
    else:
        _print_report(validation, strict)
    sys.exit(0 if validation.ok(strict=strict) else 1)


def _quiet(stage: StageName) -> None: ...


def _say_stage(stage: StageName) -> None:
    click.echo(f"{stage}: {STAGES[stage]} ...", err=True)


def _print_report(validation: Validation, strict: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for name, report in validation.stages.items():
        console.print(Text.assemble((name, "bold"), f"  {STAGES[name]}"))
        for title in report.passed:
            console.print(Text.assemble("  ", ("ok", "green"), f"       {title}"))
        for note in report.skipped:
            console.print(Text.assemble("  ", ("skipped", "dim"), f"  {note}"))
        for finding in report.findings:
            style = "bold red" if finding.level == "error" else "yellow"
            console.print(Text.assemble("  ", (f"{finding.level:7}", style), f"  {finding.check}"))
            console.print(Text(f"           {finding.problem}"))
            console.print(Text.assemble("           ", ("To do: ", "bold"), finding.advice))
        console.print()
    counts = validation.as_json(strict=strict)
    verdict = "is as it should be" if counts["ok"] else "is not as it should be"
    console.print(f"{validation.subject} {verdict}: {counts['errors']} error(s), {counts['warnings']} warning(s)")
