"""A server of a target, on a port of its own, for as long as it is needed."""

from __future__ import annotations

import os
import sys
from typing import Final

from envhive.bench.servers import Recipe, RunningServer

_INHERITED: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX")


def is_url(subject: str) -> bool:
    """Whether a running server is meant, not something to serve."""
    return subject.startswith(("http://", "https://", "ws://", "wss://"))


def http_url(url: str) -> str:
    """The address of a server's HTTP endpoints, whichever of its addresses is given.

    Example:
        >>> http_url("wss://games.example.org/")
        'https://games.example.org'
    """
    return (url.replace("ws", "http", 1) if url.startswith("ws") else url).rstrip("/")


def local_server(target: str, *options: str) -> RunningServer:
    """`envhive serve TARGET`, with its defaults, whatever this process's environment variables say."""

    def command(port: int) -> list[str]:
        own = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        return [sys.executable, "-m", "envhive", "serve", target, *own, *options]

    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return RunningServer(Recipe(f"`envhive serve {target}`", command, kept))
