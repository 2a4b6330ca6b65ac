"""Servers of a project with packages of its own: a folder or a git repository, in a virtual environment made for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, Unpack
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envhive import __version__
from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import CommonOptions, Progress
from envhive.providers.guarded import Guarded, tail
from envhive.providers.process import ProcessProvider

_REQUIREMENTS: Final = ("requirements.txt", "server/requirements.txt")
_GIT_SCHEMES: Final = ("git+", "https://", "http://", "ssh://", "git://", "file://", "git@")


class UVProvider(ProcessProvider):
    """Installs a project and runs it here, with `uv` where it is to be had, else with `venv` and `pip`.

    Args:
        project_path: A folder, or the URL of a git repository, with `@REVISION` at its end if not the newest.
        target: What to serve of it; by default the folder, whose `openenv.yaml` says.
        requirements: More packages to install.
        uv: Where uv is; by default it is looked for. Empty: use pip.
        install_timeout_s: How long fetching and installing may take.
    """

    kind = "uv"

    def __init__(
        self,
        project_path: str | Path,
        *,
        target: str | None = None,
        requirements: Sequence[str] = (),
        uv: str | None = None,
        install_timeout_s: float = 900.0,
        replicas: int = 1,
        host: str = "127.0.0.1",
        start_timeout_s: float = 60.0,
        drain_timeout_s: float = 300.0,
        progress: Progress | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self._source = str(project_path)
        self._is_remote = self._source.startswith(_GIT_SCHEMES)
        folder = Path(self._source).resolve()
        if not self._is_remote and not folder.is_dir():
            raise ConfigurationError(f"{self._source} is neither a folder nor the URL of a git repository.")
        super().__init__(
            target or str(folder),
            replicas=replicas,
            host=host,
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
            progress=progress,
            **common,
        )
        self._target = target
        self._project = folder
        self._requirements = list(requirements)
        self._uv = find_uv() if uv is None else uv
        self._install_timeout_s = install_timeout_s

    def _prepare(self) -> None:
        super()._prepare()
        assert self._folder is not None
        if self._is_remote:
            self._project = self._folder / "project"
            self._fetch(self._project)
        venv = self._folder / "venv"
        self._python = str(venv / "bin" / "python")
        self._install(venv)

    def _arguments(self) -> list[str]:
        given = self.spec.arguments()
        return [self._target or str(self._project), *given[1:]]

    def _fetch(self, folder: Path) -> None:
        if shutil.which("git") is None:
            raise ConfigurationError("git is not installed, and the project is a git repository.")
        url, revision = _split_revision(self._source.removeprefix("git+"))
        self._tell(f"fetching {url}")
        command = ["git", "clone", "--quiet", "--depth", "1"]
        if revision is None:
            self._run([*command, "--", url, str(folder)])
            return
        self._run(["git", "init", "--quiet", str(folder)])
        self._run(["git", "-C", str(folder), "fetch", "--quiet", "--depth", "1", "--", url, revision])
        self._run(["git", "-C", str(folder), "checkout", "--quiet", "FETCH_HEAD"])

    def _install(self, venv: Path) -> None:
        project = self._project
        wanted = [own_requirement(), *self._requirements]
        if (project / "pyproject.toml").exists() or (project / "setup.py").exists():
            wanted.append(str(project))
        for name in _REQUIREMENTS:
            if (project / name).exists():
                wanted += ["-r", str(project / name)]
        if self._uv:
            self._tell("installing the project with uv")
            self._run([self._uv, "venv", "--quiet", "--python", sys.executable, str(venv)])
            self._run([self._uv, "pip", "install", "--quiet", "--python", self._python, *wanted])
        else:
            self._tell("installing the project with pip (uv would be quicker: pip install uv)")
            self._run([sys.executable, "-m", "venv", str(venv)])
            self._run([self._python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])

    def _run(self, command: list[str]) -> None:
        """Run a command that ends with us; raises with the last it said if it fails."""
        assert self._folder is not None
        log = self._folder / "install.log"
        process = Guarded(command, log, remove=self._folder)
        try:
            code = process.wait(self._install_timeout_s)
        except subprocess.TimeoutExpired:
            raise ProviderError(f"{command[0]} took longer than {self._install_timeout_s:g} s.") from None
        finally:
            process.stop()
        if code:
            raise ProviderError(f"`{' '.join(command[:3])} ...` failed. The last it said:\n{tail(log, 15)}")


def find_uv() -> str:
    """Where uv is; empty if it is not to be had."""
    try:
        from uv import find_uv_bin  # type: ignore[import-not-found, unused-ignore]

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv") or ""


def own_requirement() -> str:
    """How to install this very EnvHive into another environment: from the folder it came from, or by its version."""
    try:
        origin = json.loads(distribution("envhive").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    parts = urlsplit(origin.get("url", ""))
    folder = Path(url2pathname(parts.path)) if parts.scheme == "file" else None
    return str(folder) if folder is not None and folder.exists() else f"envhive=={__version__}"


def _split_revision(url: str) -> tuple[str, str | None]:
    """The address, and what follows an @ behind its last slash."""
    head, slash, last = url.rpartition("/")
    name, at, revision = last.partition("@")
    return (f"{head}{slash}{name}", revision) if at and revision else (url, None)
