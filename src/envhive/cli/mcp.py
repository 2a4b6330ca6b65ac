"""`envhive mcp`: an environment's tools for one agent, over standard input and output."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from envhive.cli import shared
from envhive.errors import ConfigurationError, EnvironmentFactoryError
from envhive.server.config import ServerConfig, as_mode, forced
from envhive.server.logs import set_up_logging

if TYPE_CHECKING:
    from envhive.server.stdio import Pipes

_EPILOG = """\b
Examples:
  envhive mcp my_package.game:GameEnvironment --stdio
  envhive mcp echo --stdio --expose-step

In a desktop client's configuration:
\b
  {"mcpServers": {"game": {"command": "envhive", "args": ["mcp", "my_package.game:GameEnvironment", "--stdio"]}}}
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@shared.settings
@click.option("--stdio", is_flag=True, help="Speak JSON-RPC on standard input and output, one message a line.")
@shared.expose_step("Let the agent step the environment, with a tool `act` that takes its action.")
@shared.mode("Which tools there are, where they differ.")
@shared.seconds(
    "--step-timeout", "Seconds that a call may take.  [env: ENVHIVE_STEP_TIMEOUT; default: as long as it takes]"
)
@shared.isolation("process runs the environment in a process of its own.", "thread")
@shared.log_level
def mcp(target: str, settings: dict[str, Any], stdio: bool, **options: Any) -> None:
    """Offer the tools of TARGET to one agent, through the Model Context Protocol.

    TARGET is what `envhive serve` takes. There is one session, which lasts as long as the command. Whatever the
    environment prints goes to standard error.
    """
    if not stdio:
        raise click.UsageError(
            f"There is only --stdio: envhive mcp {target} --stdio. "
            f"For clients over HTTP, `envhive serve {target}` has the same tools at /mcp."
        )
    from envhive.server.leaving import leave
    from envhive.server.stdio import Pipes  # late: a bad option need not wait for it

    pipes = Pipes()  # first of all: what the target prints while it is imported must not get among the messages
    mode = None if options["mode"] is None else as_mode(options["mode"])
    config = ServerConfig.resolve(**{**options, "mode": mode, "max_sessions": 1})
    set_up_logging(config.log_level, config.log_format)
    asyncio.run(_serve(target, settings, {**options, "mode": mode, "max_sessions": 1}, pipes))
    leave(0)


async def _serve(target: str, settings: dict[str, Any], options: dict[str, Any], pipes: Pipes) -> None:
    from envhive.server.stdio import serve_pipes
    from envhive.server.target import load_target

    try:
        with forced(**{name: value for name, value in options.items() if name != "log_level"}):
            app = load_target(target, settings).app
    except EnvironmentFactoryError as error:
        raise ConfigurationError(str(error)) from error
    server = getattr(getattr(app, "state", None), "envhive", None)
    if server is None:
        raise ConfigurationError(f"{target} is an app that was not made by envhive.create_app, so it has no tools.")
    async with app.router.lifespan_context(app):
        await serve_pipes(server.hive, pipes)
