"""The git environment: a repository to work on, and a task in it."""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any, ClassVar, Final

from envhive.environment import Environment
from envhive.envs.git.commands import REFUSED, head_of, problem_with, ref_of, run_git
from envhive.envs.git.depot import TASKS, Depot
from envhive.envs.git.models import GitAction, GitObservation, GitState

WRITTEN_MOST: Final = 16 << 20
"""Bytes that an episode may write with `write_file`."""

_Told = tuple[int, str, bool]


class GitEnvironment(Environment[GitAction, GitObservation, GitState]):
    """A work tree and a remote to push to; the reward is 1 when the remote is as the task wants it."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self, output_limit: int = 65_536, time_limit_s: float = 10.0) -> None:
        """Make one.

        Args:
            output_limit: Bytes that are kept of what git prints; the rest is thrown away.
            time_limit_s: Seconds that a command may take.
        """
        super().__init__()
        self._output_limit = output_limit
        self._time_limit_s = time_limit_s
        self._depot: Depot | None = Depot.shared()
        self._folder = Path(tempfile.mkdtemp(prefix="session-", dir=self._depot.folder)).resolve()
        self._state = GitState()
        self._goal = TASKS[0].goal
        self._written = 0
        self._pushed = ""

    @property
    def _work(self) -> Path:
        return self._folder / "work"

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: int | None = None, **kwargs: Any
    ) -> GitObservation:
        """Begin with the repository as it was. The seed chooses the task, unless its number is given."""
        if self._depot is None:
            raise RuntimeError("It is closed.")
        if task is not None and not 0 <= task < len(TASKS):
            raise ValueError(f"task must be from 0 to {len(TASKS) - 1}, not {task}")
        chosen = TASKS[random.Random(seed).randrange(len(TASKS)) if task is None else task]
        self._goal, self._written = chosen.goal, 0
        self._depot.discard(self._folder)
        shutil.copytree(self._depot.template, self._folder, symlinks=True)
        head = self._pushed = self._depot.tip
        self._state = GitState(episode_id=episode_id or str(uuid.uuid4()), task=chosen.text, head=head)
        return GitObservation(task=chosen.text, head=head)

    def step(self, action: GitAction, timeout_s: float | None = None, **kwargs: Any) -> GitObservation:
        if not self._state.head:
            raise RuntimeError("Call reset first.")
        self._state.step_count += 1
        if action.do == "git":
            code, output, truncated = self._git_or_refuse(action.arguments)
        elif action.do == "reset_to":
            code, output, truncated = self._git_or_refuse(
                ["reset", "--hard", *([action.commit] if action.commit else [])]
            )
        elif action.do == "write_file":
            code, output, truncated = self._write(action.path, action.content)
        else:
            code, output, truncated = self._read(action.path)
        self._state.head = head_of(self._work / ".git")
        solved = self._is_solved() if action.do == "git" else False
        return GitObservation(
            output=output,
            exit_code=code,
            truncated=truncated,
            head=self._state.head,
            reward=float(solved),
            done=solved,
        )

    def _git_or_refuse(self, arguments: list[str]) -> _Told:
        if problem := problem_with(arguments):
            return REFUSED, f"{problem}\n", False
        if arguments[0] == "clone":
            arguments = ["clone", *("../remote.git" if word == "origin" else word for word in arguments[1:])]
        return self._git(*arguments)

    def _git(self, *arguments: str, cwd: Path | None = None) -> _Told:
        return run_git(
            list(arguments),
            cwd=cwd or self._work,
            folder=self._folder,
            minute=self._state.step_count,
            limit=self._output_limit,
            time_s=self._time_limit_s,
        )

    def _is_solved(self) -> bool:
        """Whether the remote's main has the wanted files, and all that it had before behind it."""
        assert self._depot is not None
        remote = self._folder / "remote.git"
        if (main := ref_of(remote, "refs/heads/main")) == self._pushed:
            return False  # as it was when it was looked at last
        self._pushed = main
        code, tree, _ = self._git("rev-parse", "--verify", "--quiet", "refs/heads/main^{tree}", cwd=remote)
        if code != 0 or tree.strip() != self._depot.trees[self._goal]:
            return False
        return self._git("merge-base", "--is-ancestor", self._depot.tip, "refs/heads/main", cwd=remote)[0] == 0

    # Files.

    def _place(self, path: str) -> Path | None:
        """Where a file of the work tree is; none if it is not in it, or git's own."""
        if not path or "\0" in path:
            return None
        place = (self._work / path).resolve()
        if place == self._work or not place.is_relative_to(self._work):
            return None
        parts = [part.lower() for part in place.relative_to(self._work).parts]
        return None if ".git" in parts else place

    def _write(self, path: str, content: str) -> _Told:
        place = self._place(path)
        if place is None:
            return REFUSED, f"{path!r} is no file of the work tree.\n", False
        data = content.encode("utf-8", "surrogatepass")
        self._written += len(data)
        if self._written > WRITTEN_MOST:
            return REFUSED, f"An episode may write {WRITTEN_MOST:,} bytes.\n", False
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        except OSError as error:
            return REFUSED, f"{path!r} cannot be written: {error.strerror}.\n", False
        return 0, "", False

    def _read(self, path: str) -> _Told:
        place = self._place(path)
        if place is None:
            return REFUSED, f"{path!r} is no file of the work tree.\n", False
        try:
            with place.open("rb") as file:
                data = file.read(self._output_limit + 1)
        except OSError as error:
            return REFUSED, f"{path!r} cannot be read: {error.strerror}.\n", False
        return 0, data[: self._output_limit].decode("utf-8", "replace"), len(data) > self._output_limit

    @property
    def state(self) -> GitState:
        return self._state

    def close(self) -> None:
        if self._depot is not None:
            self._depot.discard(self._folder)
            self._depot = None
