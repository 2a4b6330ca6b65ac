"""A server of a target, on a port of its own, for as long as it is needed."""

from __future__ import annotations

import os
import sys
from typing import Final

from envhive.bench.servers import Recipe, RunningServer

_INHERITED: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX")


def local_server(target: str, *options: str) -> RunningServer:
    """`envhive serve TARGET`, with its defaults, whatever this process's environment variables say."""

    def command(port: int) -> list[str]:
        own = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        return [sys.executable, "-m", "envhive", "serve", target, *own, *options]

    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return RunningServer(Recipe(f"`envhive serve {target}`", command, kept))
