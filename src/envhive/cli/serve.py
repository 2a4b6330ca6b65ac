"""`envhive serve`: put an environment on a port."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from envhive.errors import ConfigurationError, EnvironmentFactoryError
from envhive.samples import sample_instance
from envhive.server.config import LOG_LEVELS, ServerConfig, as_mode, forced

if TYPE_CHECKING:
    from envhive.server.target import Target

_EPILOG = """\b
Examples:
  envhive serve echo
  envhive serve my_package.game:GameEnvironment --max-sessions 256
  envhive serve my_package.server:app --port 9000
  envhive serve ./my_env          (a folder with an openenv.yaml)
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.option("--host", help="Address to listen on.  [env: HOST; default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.  [env: PORT; default: 8000]")
@click.option(
    "--max-sessions",
    type=click.IntRange(min=1),
    help="Most sessions at once.  [env: MAX_CONCURRENT_ENVS; default: 1000 where the environment supports it, else 1]",
)
@click.option(
    "--session-timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds after which an idle session expires.  [env: SESSION_TIMEOUT; default: never]",
)
@click.option(
    "--ping-interval",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds of silence after which a peer is pinged.  [env: ENVHIVE_PING_INTERVAL; default: 20]",
)
@click.option(
    "--ping-timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds a peer may take to answer before it counts as gone.  [env: ENVHIVE_PING_TIMEOUT; default: 120]",
)
@click.option(
    "--grace-period",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that running steps get to finish on SIGTERM.  [env: ENVHIVE_GRACE_PERIOD; default: 30]",
)
@click.option(
    "--mode",
    type=click.Choice(["simulation", "production"]),
    help="production offers neither reset nor step nor state.  [env: ENVHIVE_MODE; default: simulation]",
)
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), help="How much to log.  [env: ENVHIVE_LOG_LEVEL; default: info]"
)
def serve(target: str, **options: Any) -> None:
    """Serve the environment TARGET over WebSocket and HTTP.

    TARGET is the name of a shipped environment, package.module:EnvClass, package.module:app, or a folder with an
    openenv.yaml.
    """
    if options["mode"] is not None:
        options["mode"] = as_mode(options["mode"])
    config = ServerConfig.resolve(**options)
    _set_up_logging(config.log_level)

    from envhive.server.run import run_server  # after the options: a bad one must not wait for FastAPI to load
    from envhive.server.target import load_target

    try:
        with forced(**{name: value for name, value in options.items() if name not in ("host", "port", "log_level")}):
            loaded = load_target(target)
    except EnvironmentFactoryError as error:
        raise ConfigurationError(str(error)) from error
    sys.exit(run_server(loaded.app, config, on_ready=lambda: _announce(loaded, config)))


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    # uvicorn's own messages about starting and connecting say nothing that the announcement does not.
    logging.getLogger("uvicorn.error").setLevel("DEBUG" if level == "debug" else "WARNING")


def _announce(target: Target, config: ServerConfig) -> None:
    host = "localhost" if config.host in ("0.0.0.0", "::", "127.0.0.1") else config.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
    server = getattr(getattr(target.app, "state", None), "envhive", None)
    click.echo(f"EnvHive serves {target.name} at {url}")
    if server is not None:
        click.echo(f"  {server.hive.limit.sessions} session(s) at once, {server.hive.limit.reason}")
    click.echo(f"  API documentation: {url}/docs    health: {url}/health    press Ctrl-C to stop")
    action = None if server is None else _sample_action(server.hive.blueprint.action_cls)
    click.echo("\nTry it from another terminal, with Python:\n\n" + _snippet(url, action))
    sys.stdout.flush()


def _sample_action(action_cls: type[Any]) -> Any:
    """An action to show, if one can be made up."""
    try:
        return sample_instance(action_cls).model_dump(mode="json", exclude_unset=True)
    except (ValueError, TypeError, AttributeError):  # pydantic's refusal is a ValueError
        return None


def _snippet(url: str, action: Any) -> str:
    lines = [
        "from envhive import GenericEnvClient",
        "",
        f'with GenericEnvClient("{url}").sync() as env:',
        "    print(env.reset())",
        *([] if action is None else [f"    print(env.step({action!r}))"]),
    ]
    return "".join(f"  {line}\n" if line else "\n" for line in lines)
