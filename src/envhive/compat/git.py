"""OpenEnv's `GitServerClient`: repositories of a Gitea server, cloned into a workspace and put back as they were."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

_ANSWER_S: Final = 5.0
_PAUSE_S: Final = 0.2


@dataclass
class RepoInfo:
    """A repository, and where it stands."""

    name: str
    url: str
    commit: str
    clone_url: str


class GitServerClient:
    """A user's repositories on a Gitea server, and a folder with clones of them.

    Sessions may share the server; each should have a workspace of its own. Git runs with a configuration of the
    client's own, so the user's is neither read nor changed.

    Args:
        gitea_url: Where the server is: `http://gitea:3000`.
        username: Whose repositories.
        password: The user's.
        workspace_dir: The folder to clone into; made if it is not there.
    """

    def __init__(self, gitea_url: str, username: str, password: str, workspace_dir: str = "/workspace") -> None:
        self.gitea_url = gitea_url.rstrip("/")
        self.username = username
        self.password = password
        self.workspace_dir = Path(workspace_dir)
        self.is_ready = False
        parts = urlsplit(self.gitea_url)
        self.domain = parts.hostname or "localhost"
        self.port = parts.port or 3000
        self.workspace_dir.mkdir(parents=True, exist_ok=True)
        self._git_env = self._configured()

    def wait_for_ready(self, timeout: float = 30) -> bool:
        """Whether the server answers, within so many seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_ready:
            try:
                self._ask("/")
                self.is_ready = True
            except (OSError, http.client.HTTPException):
                if time.monotonic() + _PAUSE_S > deadline:
                    break
                time.sleep(_PAUSE_S)
        return self.is_ready

    def list_repositories(self) -> list[dict[str, str]]:
        """The user's repositories: `name`, `full_name`, `clone_url` and `description` of each."""
        self._must_be_ready()
        try:
            listed = json.loads(self._ask("/api/v1/user/repos"))
            return [
                {
                    "name": each["name"],
                    "full_name": each["full_name"],
                    "clone_url": each["clone_url"],
                    "description": each.get("description", ""),
                }
                for each in listed
            ]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return []  # refused, or not what Gitea answers

    def clone_to_workspace(self, repo_name: str, target_dir: str | None = None, commit: str = "main") -> str:
        """Clone a repository, in place of what is there, and check out a commit or branch. Returns the folder."""
        self._must_be_ready()
        folder = self._folder(target_dir or repo_name)
        if folder.exists():
            shutil.rmtree(folder)
        url = f"{self.gitea_url}/{self.username}/{repo_name}.git"
        self._must("clone", "git", "clone", url, str(folder))
        if commit != "main":
            self._must("checkout", "git", "checkout", commit, cwd=folder)
        return str(folder)

    def reset_workspace(self, repo_name: str, commit: str = "main") -> bool:
        """Put a clone back to a commit or branch, without what was changed or added since. Faster than a new clone."""
        folder = self._existing(repo_name)
        self._run("git", "fetch", "--all", cwd=folder)  # the commit may be new; if it is there, nothing is lost
        self._must("checkout", "git", "checkout", "--force", commit, cwd=folder)
        of_server = self._run("git", "rev-parse", "--verify", "--quiet", f"refs/remotes/origin/{commit}", cwd=folder)
        followed = commit != "main" and of_server.returncode == 0
        self._must("reset", "git", "reset", "--hard", f"origin/{commit}" if followed else commit, cwd=folder)
        self._must("clean", "git", "clean", "-fdx", cwd=folder)
        return True

    def execute_git_command(self, command: str, working_dir: str = "") -> tuple[int, str, str]:
        """Run a command (`status -s`, say) in a folder of the workspace; exit code, output and errors."""
        folder = self.workspace_dir / working_dir
        if not folder.exists():
            return 1, "", f"{folder} does not exist"
        try:
            arguments = shlex.split(command)
        except ValueError as error:
            return 1, "", f"{command!r} cannot be read: {error}"
        done = self._run("git", *arguments, cwd=folder)
        return done.returncode, done.stdout, done.stderr

    def get_current_commit(self, repo_name: str) -> str:
        """The hash of the commit that a clone stands at."""
        return self._must("rev-parse", "git", "rev-parse", "HEAD", cwd=self._existing(repo_name)).stdout.strip()

    def workspace_exists(self, repo_name: str) -> bool:
        """Whether there is a clone of that name."""
        return (self.workspace_dir / repo_name).exists()

    # How.

    def _configured(self) -> dict[str, str]:
        folder = Path(tempfile.mkdtemp(prefix="envhive-git-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        parts = urlsplit(self.gitea_url)
        secrets = folder / "credentials"
        secrets.touch(mode=0o600)
        user = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}"
        secrets.write_text(f"{parts.scheme}://{user}@{parts.netloc.rpartition('@')[2]}\n")
        config = folder / "config"
        settings = {
            "user.name": self.username,
            "user.email": f"{self.username}@local.env",
            "init.defaultBranch": "main",
            "credential.helper": f"store --file {shlex.quote(str(secrets))}",
        }
        for name, value in settings.items():
            subprocess.run(["git", "config", "--file", config, name, value], check=True)
        # A password that is wrong is an error, and not a question to whoever sits at the server.
        return {**os.environ, "GIT_CONFIG_GLOBAL": str(config), "GIT_TERMINAL_PROMPT": "0"}

    def _ask(self, path: str) -> bytes:
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        request = urllib.request.Request(self.gitea_url + path, headers={"Authorization": f"Basic {pair}"})
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            body: bytes = answer.read()
            return body

    def _must_be_ready(self) -> None:
        if not self.is_ready:
            raise RuntimeError(f"{self.gitea_url} is not ready: call wait_for_ready first")

    def _folder(self, name: str) -> Path:
        """A folder of the workspace, as what is there will be deleted."""
        folder = self.workspace_dir / name
        if self.workspace_dir.resolve() not in folder.resolve().parents:
            raise RuntimeError(f"{name!r} leads out of the workspace")
        return folder

    def _existing(self, repo_name: str) -> Path:
        folder = self._folder(repo_name)
        if not folder.exists():
            raise RuntimeError(f"There is no {repo_name!r} in the workspace: clone it first")
        return folder

    def _must(self, what: str, *command: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        done = self._run(*command, **kwargs)
        if done.returncode:
            raise RuntimeError(f"git {what} failed: {done.stderr.strip()}")
        return done

    def _run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd, env=self._git_env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
