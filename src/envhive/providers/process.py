"""Servers as processes of this machine, run by this Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Unpack

from envhive.errors import ProviderError
from envhive.providers.base import CommonOptions, Progress, Replica, ServerSpec
from envhive.providers.guarded import Guarded, tail
from envhive.providers.placing import PlacingProvider

_SETTINGS: Final = {"HOST", "PORT", "WORKERS", "MAX_CONCURRENT_ENVS", "SESSION_TIMEOUT", "ENABLE_WEB_INTERFACE"}
_SETTING_PREFIXES: Final = ("ENVHIVE_", "OPENENV_", "UVICORN_")


_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to reach a server that listens on all addresses."""


class ProcessProvider(PlacingProvider):
    """Runs `envhive serve TARGET` here, on ports that are free.

    Example:
        with ProcessProvider("echo") as provider:
            print(provider.base_url)

    Args:
        target: A shipped name, `package.module:Class`, or a folder.
        host: The address to listen on.
        python: The Python that runs it, with EnvHive installed.
    """

    kind = "process"

    def __init__(
        self,
        target: str,
        *,
        replicas: int = 1,
        host: str = "127.0.0.1",
        python: str = sys.executable,
        start_timeout_s: float = 60.0,
        drain_timeout_s: float = 300.0,
        stop_timeout_s: float = 5.0,
        progress: Progress | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(
            ServerSpec(target=target, **common),
            replicas=replicas,
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
            progress=progress,
        )
        self._host = host
        self._python = python
        self._stop_timeout_s = stop_timeout_s
        self._folder: Path | None = None
        self._processes: dict[str, Guarded] = {}

    def _prepare(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="envhive-"))

    def _arguments(self) -> list[str]:
        """What follows `envhive serve`."""
        return self.spec.arguments()

    def _place(self, name: str) -> None:
        assert self._folder is not None
        where = ["--host", self._host, "--port", "0", "--announce", str(self._folder / name), "--replica", name]
        command = [self._python, "-m", "envhive", "serve", *where, *self._arguments()]
        try:
            self._processes[name] = Guarded(
                command,
                self._folder / f"{name}.log",
                environment={**without_settings(), **self.spec.variables()},
                grace_s=self._stop_timeout_s,
                remove=self._folder,
            )
        except OSError as error:
            raise ProviderError(f"No process could be started: {error}.") from error

    def _locate(self, name: str) -> Replica | None:
        assert self._folder is not None
        try:
            announced = json.loads((self._folder / name).read_text())
        except (OSError, ValueError):
            return None
        host = _EVERYWHERE.get(self._host, self._host)
        host = f"[{host}]" if ":" in host else host
        return Replica(name, f"http://{host}:{announced['port']}", f"process {announced['pid']}")

    def _ended(self, name: str) -> str | None:
        process = self._processes.get(name)
        code = 0 if process is None else process.exit_code
        return None if code is None else f"ended with code {code}"

    def _remove(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None:
            process.stop()
            self._processes.pop(name, None)

    def _said(self, name: str, lines: int) -> str:
        return "" if self._folder is None else tail(self._folder / f"{name}.log", lines)

    def _clean_up(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def without_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's variables without those that a server takes its settings from: they are ours, not its."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _SETTINGS and not name.startswith(_SETTING_PREFIXES)
    }
