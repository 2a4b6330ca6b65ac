"""What a server is told, resolved once at its start. The only reader of environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from envhive.errors import ConfigurationError
from envhive.server.auth import NO_TOKENS, TOKENS_VARIABLE, Tokens
from envhive.types import ConcurrencyConfig, ServerMode

DEFAULT_MAX_SESSIONS: Final = 1000
LOG_LEVELS: Final = ("critical", "error", "warning", "info", "debug")
LOG_FORMATS: Final = ("text", "json")
MOST_WORKERS: Final = 1024
OF_THE_PROCESS: Final = ("host", "port", "workers", "log_level", "log_format", "announce")
"""Options that are not an app's own affair."""
ISOLATIONS: Final = ("thread", "process")
_REPLICA: Final = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything a server can be told. `None` means: decide at start."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any that is free."""
    workers: int = 1
    max_sessions: int | None = None
    overruled_max_sessions: int | None = None
    """What an app's own code asked for, where the command line asks for something else."""
    session_timeout: float | None = None
    mode: ServerMode = ServerMode.SIMULATION
    log_level: str = "info"
    log_format: str = "text"
    """`text`, or `json`: one object a line."""
    ping_interval: float = 20.0
    """Seconds of silence after which a peer is asked whether it is still there."""
    ping_timeout: float = 120.0
    """Seconds a peer may take to answer. Generous: a trainer's loop may be busy for a while."""
    max_message_size: int = 100 * 1024 * 1024
    grace_period: float = 30.0
    """Seconds that running steps get to finish when the server is told to stop."""
    thread_stack_size: int = 8 * 1024 * 1024
    """What programs have on Linux. It is address space: memory is taken as it is used. With 1 MiB some recursions that
    never end, such as that of a key of `sorted`, killed the server before Python noticed them."""
    step_timeout: float | None = None
    """Seconds that a reset or step may take; clients of layer 2 may ask for less."""
    admission_timeout: float | None = None
    """Seconds that a newcomer to a full server waits for a place; None: it is refused at once."""
    lease: float = 60.0
    """Seconds that a session of layer 2 waits for its client after a lost connection; 0: not at all."""
    isolation: str | None = None
    """`thread` or `process`; if not given, the class's `ISOLATION`, else `thread`."""
    memory_limit: int | None = None
    """Megabytes that a session's process may take on top of what the server had loaded."""
    tokens: Tokens = NO_TOKENS
    """Who may use the server; with none, everybody may."""
    allow_origins: tuple[str, ...] = ()
    """Web pages that may use the server beside its own, as `https://host:port`; `*` stands for all."""
    require_reset: bool = False
    """Whether a session answers steps on its WebSocket with an error until its first reset."""
    expose_step: bool = False
    """Whether agents may step the environment, by a tool."""
    max_head_size: int = 64 * 1024
    """Bytes that a request's head may have."""
    head_timeout: float = 10.0
    """Seconds in which a connection must have sent a complete request head."""
    replica: str | None = None
    """Its name among several servers behind one address, where the ids of its sessions begin with it."""
    announce: Path | None = None
    """A file to write the server's address to when it is ready."""
    wants_page: bool = False
    """Whether OpenEnv's server would have a page to step the environment by hand."""
    max_pending_connections: int = 16384
    """Connections of a process that may be about to send a request head. Ten thousand sessions may begin at once."""

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None = None, **given: Any) -> ServerConfig:
        """What was given, then environment variables, then defaults; `None` counts as not given.

        Example:
            >>> ServerConfig.resolve({"PORT": "9000"}, host=None).port
            9000
        """
        found = _read_environment(os.environ if environ is None else environ)
        found.update((name, value) for name, value in given.items() if value is not None)
        return cls(**found)


_forced: dict[str, Any] = {}


@contextmanager
def forced(**options: Any) -> Iterator[None]:
    """While this lasts, apps are made with these options, whatever their own code says.

    `envhive serve` uses it so that a command-line option wins over what a module passes to `create_app`.
    """
    before = dict(_forced)
    _forced.update((name, value) for name, value in options.items() if value is not None)
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)


def config_for_app(
    max_concurrent_envs: int | None, concurrency_config: ConcurrencyConfig | None, mode: ServerMode | str | None
) -> ServerConfig:
    """The configuration of an app made by `create_app` with these arguments."""
    if max_concurrent_envs is not None and concurrency_config is not None:
        raise ValueError("Pass either max_concurrent_envs or concurrency_config, not both.")
    given: dict[str, Any] = {"max_sessions": max_concurrent_envs, "mode": None if mode is None else as_mode(mode)}
    if max_concurrent_envs is not None:
        _positive_int("max_concurrent_envs", str(max_concurrent_envs))
    if concurrency_config is not None:
        given["max_sessions"] = concurrency_config.max_concurrent_envs
        given["session_timeout"] = concurrency_config.session_timeout
    asked, got = given["max_sessions"], _forced.get("max_sessions")
    overruled = asked if got is not None and asked != got else None
    return replace(ServerConfig.resolve(**given), **_forced, overruled_max_sessions=overruled)


def mode_for_app(value: ServerMode | str) -> ServerMode:
    """The mode that an app's own code asks for, unless the command says otherwise."""
    forced_mode: ServerMode = _forced.get("mode", as_mode(value))
    return forced_mode


def as_mode(value: ServerMode | str) -> ServerMode:
    try:
        return ServerMode(value.lower())
    except ValueError:
        choices = " or ".join(mode.value for mode in ServerMode)
        raise ConfigurationError(f"Invalid mode: {value!r}. It must be {choices}.") from None


def as_origin(name: str, text: str) -> str:
    """An origin as browsers send it, or `*`."""
    text = text.strip().lower().removesuffix("/")
    parts = urlsplit(text)
    if text != "*" and (not parts.netloc or text != f"{parts.scheme}://{parts.netloc}"):
        raise ConfigurationError(f"{name} must be an origin such as https://example.org, or *, not {text!r}.")
    return text


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, (field, parse) in _VARIABLES.items():
        text = environ.get(variable, "").strip()
        if text:
            found[field] = parse(variable, text)
    return found


def _positive_int(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigurationError(f"{name} must be a positive integer, not {text!r}.")
    return value


def _workers(name: str, text: str) -> int:
    if (count := _positive_int(name, text)) > MOST_WORKERS:
        raise ConfigurationError(f"{name} can be {MOST_WORKERS} at most, not {text!r}.")
    return count


def _positive_float(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} must be a positive number of seconds, not {text!r}.")
    return value


def _seconds(name: str, text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _positive_float(name, text)


def _port(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise ConfigurationError(f"{name} must be a port from 1 to 65535, or 0 for any, not {text!r}.")
    return int(text)


def as_replica(name: str, text: str) -> str:
    """A name that can stand in an address, before the dot that ends it."""
    if not _REPLICA.fullmatch(text):
        raise ConfigurationError(f"{name} must be lower-case letters, digits and dashes, at most 63, not {text!r}.")
    return text


def _log_level(name: str, text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ConfigurationError(f"{name} must be one of {', '.join(LOG_LEVELS)}, not {text!r}.")
    return text.lower()


def _log_format(name: str, text: str) -> str:
    if text.lower() not in LOG_FORMATS:
        raise ConfigurationError(f"{name} must be {' or '.join(LOG_FORMATS)}, not {text!r}.")
    return text.lower()


def as_isolation(name: str, text: str) -> str:
    if text not in ISOLATIONS:
        raise ConfigurationError(f"{name} must be {' or '.join(ISOLATIONS)}, not {text!r}.")
    return text


def _mode(name: str, text: str) -> ServerMode:
    try:
        return as_mode(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ConfigurationError(f"{name} must be 1 or 0, not {text!r}.")
    return text.lower() in ("1", "true")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _tokens(name: str, text: str) -> Tokens:
    return Tokens.parse(name, _words(text))


def _origins(name: str, text: str) -> tuple[str, ...]:
    return tuple(as_origin(name, word) for word in _words(text))


_VARIABLES: Final[dict[str, tuple[str, Callable[[str, str], Any]]]] = {
    "HOST": ("host", lambda name, text: text),
    "PORT": ("port", _port),
    "WORKERS": ("workers", _workers),
    "MAX_CONCURRENT_ENVS": ("max_sessions", _positive_int),
    "SESSION_TIMEOUT": ("session_timeout", _positive_float),
    "OPENENV_MODE": ("mode", _mode),
    "ENVHIVE_MODE": ("mode", _mode),
    "ENVHIVE_LOG_LEVEL": ("log_level", _log_level),
    "ENVHIVE_LOG_FORMAT": ("log_format", _log_format),
    "ENVHIVE_PING_INTERVAL": ("ping_interval", _positive_float),
    "ENVHIVE_PING_TIMEOUT": ("ping_timeout", _positive_float),
    "ENVHIVE_MAX_MESSAGE_SIZE": ("max_message_size", _positive_int),
    "ENVHIVE_GRACE_PERIOD": ("grace_period", _positive_float),
    "ENVHIVE_THREAD_STACK_SIZE": ("thread_stack_size", _positive_int),
    "ENVHIVE_STEP_TIMEOUT": ("step_timeout", _positive_float),
    "ENVHIVE_ADMISSION_TIMEOUT": ("admission_timeout", _positive_float),
    "ENVHIVE_LEASE": ("lease", _seconds),
    "ENVHIVE_ISOLATION": ("isolation", lambda name, text: as_isolation(name, text.lower())),
    "ENVHIVE_MEMORY_LIMIT": ("memory_limit", _positive_int),
    "ENVHIVE_REPLICA": ("replica", as_replica),
    "ENVHIVE_ANNOUNCE": ("announce", lambda name, text: Path(text)),
    TOKENS_VARIABLE: ("tokens", _tokens),
    "ENVHIVE_ALLOW_ORIGINS": ("allow_origins", _origins),
    "ENVHIVE_REQUIRE_RESET": ("require_reset", _flag),
    "ENVHIVE_EXPOSE_STEP": ("expose_step", _flag),
    "ENVHIVE_MAX_HEAD_SIZE": ("max_head_size", _positive_int),
    "ENVHIVE_HEAD_TIMEOUT": ("head_timeout", _positive_float),
    "ENABLE_WEB_INTERFACE": ("wants_page", lambda name, text: text.lower() in ("1", "true", "yes")),
    "ENVHIVE_MAX_PENDING_CONNECTIONS": ("max_pending_connections", _positive_int),
}
"""Later entries win over earlier ones for the same field."""
