"""`envhive serve`: put an environment on a port."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import logging
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from envhive.cli import shared
from envhive.cli.completion import complete_target
from envhive.errors import ConfigurationError, EnvironmentFactoryError
from envhive.server.auth import TOKENS_VARIABLE, Tokens
from envhive.server.config import (
    LOG_FORMATS,
    MOST_WORKERS,
    OF_THE_PROCESS,
    ServerConfig,
    as_mode,
    as_origin,
    as_replica,
    forced,
)
from envhive.server.logs import set_up_logging
from envhive.server.workers import Supervisor, can_run_workers

_EPILOG = """\b
Examples:
  envhive serve echo
  envhive serve my_package.game:GameEnvironment --set level=3
  envhive serve my_package.game:GameEnvironment --max-sessions 4096 --workers 2
  envhive serve my_package.server:app --port 9000
  envhive serve ./my_env          (a folder with an openenv.yaml)
"""


@click.command(epilog=_EPILOG)
@click.argument("target", shell_complete=complete_target)
@shared.settings
@click.option("--host", help="Address to listen on.  [env: HOST; default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [env: PORT; default: 8000]"
)
@click.option(
    "--workers", type=click.IntRange(1, MOST_WORKERS), help="Processes behind the port.  [env: WORKERS; default: 1]"
)
@click.option(
    "--max-sessions",
    type=click.IntRange(min=1),
    help="Most sessions at once, over all workers.  "
    "[env: MAX_CONCURRENT_ENVS; default: 1000 where the environment supports it, else 1]",
)
@shared.seconds(
    "--session-timeout",
    "Seconds after which an idle session expires.  [env: SESSION_TIMEOUT; default: never]",
)
@shared.seconds(
    "--step-timeout",
    "Seconds that a reset or step may take.  [env: ENVHIVE_STEP_TIMEOUT; default: as long as it takes]",
)
@shared.seconds(
    "--admission-timeout",
    "Seconds that a newcomer to a full server waits for a place.  "
    "[env: ENVHIVE_ADMISSION_TIMEOUT; default: refused at once]",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0),
    help="Seconds that a session waits for its client after a lost connection.  [env: ENVHIVE_LEASE; default: 60]",
)
@shared.seconds(
    "--ping-interval",
    "Seconds of silence after which a peer is pinged.  [env: ENVHIVE_PING_INTERVAL; default: 20]",
)
@shared.seconds(
    "--ping-timeout",
    "Seconds a peer may take to answer before it counts as gone.  [env: ENVHIVE_PING_TIMEOUT; default: 120]",
)
@shared.seconds(
    "--grace-period",
    "Seconds that running steps get to finish on SIGTERM.  [env: ENVHIVE_GRACE_PERIOD; default: 30]",
)
@shared.mode("production offers neither reset nor step nor state.")
@shared.isolation(
    "process gives each session's environment a process of its own, whose crash costs that session alone.",
    "the class's ISOLATION, else thread",
)
@click.option(
    "--memory-limit",
    type=click.IntRange(min=1),
    metavar="MB",
    help="Most memory a session's process may add; only with process isolation.  "
    "[env: ENVHIVE_MEMORY_LIMIT; default: none]",
)
@click.option(
    "--token",
    "tokens",
    multiple=True,
    metavar="TOKEN",
    callback=lambda context, parameter, given: Tokens.parse("--token", given) if given else None,
    help="Ask for this token: SECRET, NAME:SECRET or NAME:SECRET:QUOTA (most sessions at once), or @FILE with one a "
    "line. Repeatable. Others on this machine can read command lines: better to use @FILE or the variable.  "
    "[env: ENVHIVE_TOKENS, comma-separated; default: none, everybody may come in]",
)
@click.option(
    "--allow-origin",
    "allow_origins",
    multiple=True,
    metavar="ORIGIN",
    callback=lambda context, parameter, given: tuple(as_origin("--allow-origin", each) for each in given) or None,
    help="Let web pages of this origin (https://host, or * for all) use the server, beside its own. Repeatable.  "
    "[env: ENVHIVE_ALLOW_ORIGINS, comma-separated]",
)
@click.option(
    "--require-reset",
    is_flag=True,
    default=None,
    help="Answer a step before any reset with an error.  [env: ENVHIVE_REQUIRE_RESET]",
)
@shared.expose_step("Let agents step the environment: MCP has a tool `act` that takes its action.")
@shared.seconds(
    "--head-timeout",
    "Seconds in which a connection must send a request head.  [env: ENVHIVE_HEAD_TIMEOUT; default: 10]",
)
@click.option(
    "--max-pending-connections",
    type=click.IntRange(min=1),
    help="Most connections of a worker that have sent no request yet.  "
    "[env: ENVHIVE_MAX_PENDING_CONNECTIONS; default: 16384]",
)
@click.option(
    "--replica",
    metavar="NAME",
    callback=lambda context, parameter, given: None if given is None else as_replica("--replica", given),
    help="This server's name among several behind one address: its sessions' ids begin with NAME and a dot, so that a "
    "proxy finds their server.  [env: ENVHIVE_REPLICA]",
)
@click.option(
    "--announce",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the port and the process id, as JSON, to FILE when ready.  [env: ENVHIVE_ANNOUNCE]",
)
@shared.log_level
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    help="json writes one object a line.  [env: ENVHIVE_LOG_FORMAT; default: text]",
)
def serve(target: str, settings: dict[str, Any], **options: Any) -> None:
    """Serve the environment TARGET over WebSocket and HTTP.

    TARGET is the name of a shipped environment, package.module:EnvClass, package.module:app, or a folder with an
    openenv.yaml.
    """
    config = ServerConfig.resolve(**{**options, "mode": None if options["mode"] is None else as_mode(options["mode"])})
    options["tokens"] = config.tokens
    os.environ.pop(TOKENS_VARIABLE, None)  # what an environment starts, perhaps for its agent, is not to inherit it

    from envhive.server.leaving import leave
    from envhive.server.run import bind  # late: a bad option need not wait for FastAPI

    set_up_logging(config.log_level, config.log_format)
    logger = logging.getLogger("envhive.server")
    if not config.tokens and not _is_loopback(config.host):
        logger.warning(
            "Whoever can reach %s may use this server: set %s to ask them for a token", config.host, TOKENS_VARIABLE
        )
    why_not = can_run_workers() if config.workers > 1 else None
    if why_not is not None:
        logger.warning("Running one worker instead of %d: %s", config.workers, why_not)
    if config.workers == 1 or why_not is not None:
        leave(_serve_alone(target, settings, options, config))
    with bind(config.host, config.port) as listener:
        of_workers = {**options, "tokens": config.tokens.sealed(), "announce": None}
        orders = {"target": target, "settings": settings, "options": of_workers}
        announce = functools.partial(_announce, config=_where_it_listens(config, listener))
        sys.exit(Supervisor(listener, config.workers, orders, config.grace_period, on_ready=announce).run())


def _serve_alone(target: str, settings: dict[str, Any], options: dict[str, Any], config: ServerConfig) -> int:
    from envhive.server.run import Moments, bind, run_app
    from envhive.server.target import describe_target, load_target

    class Announcing(Moments):
        def ready(self) -> None:
            _announce(describe_target(loaded), _where_it_listens(config, listener))

    wanted = {name: value for name, value in options.items() if name not in OF_THE_PROCESS}
    try:
        with forced(**{**wanted, "mode": None if options["mode"] is None else config.mode}):
            loaded = load_target(target, settings)
    except EnvironmentFactoryError as error:
        raise ConfigurationError(str(error)) from error
    listener = bind(config.host, config.port)
    return run_app(loaded.app, config, [listener], Announcing())


def _where_it_listens(config: ServerConfig, listener: socket.socket) -> ServerConfig:
    return replace(config, port=listener.getsockname()[1])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _announce(about: dict[str, Any], config: ServerConfig) -> None:
    if config.announce is not None:
        _write_address(config.announce, config.port)
    host = "localhost" if config.host in ("0.0.0.0", "::", "127.0.0.1") else config.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
    workers = f", {config.workers} workers" if config.workers > 1 else ""
    with contextlib.suppress(OSError):  # a disk that is full, or a pipe that nobody reads, is no reason not to serve
        click.echo(f"EnvHive serves {about['name']} at {url}{workers}")
        if "limit" in about:
            click.echo(f"  {about['limit']}")
        if not about["has_environment"]:
            click.echo("  It is an app that makes no environment with create_app or HTTPEnvServer, served as it is:")
            click.echo(
                "  sessions, their limit, isolation, /health and /metrics are its own affair. Press Ctrl-C to stop"
            )
            sys.stdout.flush()
            return
        click.echo(f"  API documentation: {url}/docs    health: {url}/health    press Ctrl-C to stop")
        click.echo("\nTry it from another terminal, with Python:\n\n" + _snippet(url, about.get("action"), config))
        sys.stdout.flush()


def _write_address(path: Path, port: int) -> None:
    """Whoever waits for the file finds all of it, or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps({"port": port, "pid": os.getpid()}))
        draft.replace(path)
    except OSError as error:
        logging.getLogger("envhive.server").error("Cannot write the address to %s: %s", path, error)


def _snippet(url: str, action: Any, config: ServerConfig) -> str:
    token = ', token="..."' if config.tokens else ""
    lines = [
        "from envhive import GenericEnvClient",
        "",
        f'with GenericEnvClient("{url}"{token}).sync() as env:',
        "    print(env.reset())",
        *([] if action is None else [f"    print(env.step({action!r}))"]),
    ]
    return "".join(f"  {line}\n" if line else "\n" for line in lines)
