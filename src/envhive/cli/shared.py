"""Options that several commands have: they take the same everywhere, and each command tells their effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from envhive.server.config import ISOLATIONS, LOG_LEVELS

F = TypeVar("F", bound=Callable[..., Any])


def parse_settings(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE, where VALUE is JSON if it can be read so, and text if not."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def settings(command: F) -> F:
    """Keywords of the environment's constructor."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse_settings,
        help="Give the environment's constructor a keyword; VALUE is JSON, or else text. Repeatable.",
    )(command)


def log_level(command: F) -> F:
    return click.option(
        "--log-level", type=click.Choice(LOG_LEVELS), help="How much to log.  [env: ENVHIVE_LOG_LEVEL; default: info]"
    )(command)


def seconds(name: str, effect: str) -> Callable[[F], F]:
    """A time that is not zero."""
    return click.option(name, type=click.FloatRange(min=0, min_open=True), help=effect)


def mode(effect: str) -> Callable[[F], F]:
    return click.option(
        "--mode",
        type=click.Choice(["simulation", "production"]),
        help=f"{effect}  [env: ENVHIVE_MODE; default: simulation]",
    )


def isolation(effect: str, default: str) -> Callable[[F], F]:
    return click.option(
        "--isolation", type=click.Choice(ISOLATIONS), help=f"{effect}  [env: ENVHIVE_ISOLATION; default: {default}]"
    )


def expose_step(effect: str) -> Callable[[F], F]:
    return click.option("--expose-step", is_flag=True, default=None, help=f"{effect}  [env: ENVHIVE_EXPOSE_STEP]")
