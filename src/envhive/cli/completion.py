"""`envhive completion`: what a shell needs to complete commands, options and targets."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

_VARIABLE: Final = "_ENVHIVE_COMPLETE"
_WHERE: Final = {
    "bash": '~/.bashrc: eval "$(envhive completion bash)"',
    "zsh": '~/.zshrc: eval "$(envhive completion zsh)"',
    "fish": "~/.config/fish/config.fish: envhive completion fish | source",
}


def complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shipped environments, and folders."""
    from envhive.envs import SHIPPED

    names = [CompletionItem(name) for name in sorted(SHIPPED) if name.startswith(incomplete)]
    return [*names, CompletionItem(incomplete, type="dir")]


@click.command(
    epilog="\b\nExamples:\n"
    '  eval "$(envhive completion bash)"           (in ~/.bashrc)\n'
    '  eval "$(envhive completion zsh)"            (in ~/.zshrc)\n'
    "  envhive completion fish | source            (in config.fish)"
)
@click.argument("shell", type=click.Choice(sorted(_WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and targets of envhive."""
    made = get_completion_class(shell)
    assert made is not None
    script = made(context.find_root().command, {}, "envhive", _VARIABLE)
    click.echo(f"# For every new shell, put this into {_WHERE[shell]}")
    click.echo(script.source_template % script.source_vars())
