"""Every command's help has examples, and shells can complete them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import click
import pytest

from envhive.cli import main
from tests.support.processes import ENVHIVE, plain_environ


def commands(command: click.Command, name: str = "envhive") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from commands(each, f"{name} {each.name}")
    else:
        yield name, command


@pytest.mark.parametrize(
    ("name", "command"), list(commands(main)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_help_has_examples_that_can_be_parsed(name: str, command: click.Command) -> None:
    shown = command.get_help(click.Context(command, info_name=name))
    examples = [line.strip() for line in shown.partition("Example")[2].splitlines()[1:] if line.strip()]
    assert any(name in example for example in examples), shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    done = subprocess.run(
        [ENVHIVE, "completion", shell], capture_output=True, text=True, env=plain_environ(), timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_ENVHIVE_COMPLETE={shell}_complete" in done.stdout


def completed(*words: str) -> list[str]:
    environ = plain_environ(
        _ENVHIVE_COMPLETE="bash_complete", COMP_WORDS=" ".join(("envhive", *words)), COMP_CWORD=str(len(words))
    )
    done = subprocess.run([ENVHIVE], capture_output=True, text=True, env=environ, timeout=60)
    return done.stdout.split()


def test_commands_options_and_targets_are_completed() -> None:
    assert completed("val") == ["plain,validate"]
    assert completed("init", "--ki") == ["plain,--kind"]
    assert completed("serve", "ec") == ["plain,echo", "dir,ec"]


def test_python_dash_m_is_the_same_command() -> None:
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "envhive", "--version"], capture_output=True, text=True, env=plain_environ(), timeout=60
    )
    assert done.stdout.startswith("envhive, version ")
