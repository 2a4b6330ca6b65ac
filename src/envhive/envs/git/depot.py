"""The repository that all sessions of a process begin with, and the tasks in it."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from envhive.envs.git.commands import BEGINNING, environment, run_git

Files = dict[str, str]

_FIRST: Final[Files] = {
    "README.md": "# Tide tables\n\nTimes of high water for a made-up harbour.\n",
    "harbour.txt": "name: Grey Quay\nberths: 12\nlight: green\ndepth: 9\npilot: yes\n",
    "tides.csv": "day,high\nmonday,03:10\ntuesday,04:02\nwednesday,04:55\n",
    "crew.txt": "Ada\nBjorn\nChidi\n",
}
_CHANGES: Final[list[tuple[str, Files]]] = [
    ("Add Thursday", {"tides.csv": _FIRST["tides.csv"] + "thursday,05:47\n"}),
    ("Paint the light red", {"harbour.txt": _FIRST["harbour.txt"].replace("light: green", "light: red")}),
    ("Greet the reader", {"README.md": _FIRST["README.md"] + "\nWelcome.\n"}),
    ("Empty the crew list", {"crew.txt": ""}),
    ("Name the editor", {"editor.txt": "Noor\n"}),
]
_BRANCHES: Final[dict[str, tuple[str, Files]]] = {
    "friday": ("Add the notes for Friday", {"friday.txt": "Slack water at noon.\n"}),
    "map": ("Add a map", {"map.txt": "north: sea\nsouth: town\n"}),
    "licence": ("Add a licence", {"LICENCE": "Use it as you like.\n"}),
}


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done, and the files that the remote's main branch then has."""

    text: str
    goal: str
    """Name of the goal; its tree is known once the repository is made."""
    files: tuple[tuple[str, str], ...]


def _tip() -> Files:
    files = dict(_FIRST)
    for _, change in _CHANGES:
        files |= change
    return files


def _tasks() -> list[Task]:
    tip = _tip()
    made = [
        Task(f"Merge the branch {name} of the remote into main, and push main.", f"merge-{name}", _sorted(tip | change))
        for name, (_, change) in _BRANCHES.items()
    ]
    undone = {
        "Paint the light red": {"harbour.txt": _FIRST["harbour.txt"]},
        "Greet the reader": {"README.md": _FIRST["README.md"]},
        "Empty the crew list": {"crew.txt": _FIRST["crew.txt"]},
    }
    for number, (subject, change) in enumerate(undone.items()):
        text = f"Undo what the commit '{subject}' did, in a new commit on main, and push main."
        made.append(Task(text, f"undo-{number}", _sorted(tip | change)))
    return made


def _sorted(files: Files) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(files.items()))


TASKS: Final = _tasks()


class Depot:
    """A folder with the repository, and a remote and a work tree to copy for each episode. Made once a process."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _current: ClassVar[Depot | None] = None

    def __init__(self) -> None:
        self._old: list[Path] = []
        self._remover: threading.Thread | None = None
        self._pid = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="envhive-git-"))
        self.template = self.folder / "template"
        try:
            self._fill()
        except BaseException:  # Ctrl-C too: what is half made is not left behind
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _fill(self) -> None:
        origin = self.folder / "origin.git"
        self._git("init", "--quiet", "--bare", str(origin), cwd=self.folder)
        subprocess.run(
            ["git", "fast-import", "--quiet"],
            cwd=origin,
            env=environment(self.folder, 0),
            input=_history().encode(),
            check=True,
            timeout=60,
        )
        goals = [f"refs/goals/{task.goal}^{{tree}}" for task in TASKS]
        trees = self._git("rev-parse", "refs/heads/main", *goals, cwd=origin).split()
        self.tip, self.trees = trees[0], dict(zip((task.goal for task in TASKS), trees[1:], strict=True))
        self.template.mkdir()
        # Both share the objects of the first, so a copy is a few small files.
        self._git("clone", "--quiet", "--bare", "--shared", "../origin.git", "remote.git", cwd=self.template)
        self._git("clone", "--quiet", "--shared", "remote.git", "work", cwd=self.template)
        self._git("remote", "set-url", "origin", "../remote.git", cwd=self.template / "work")
        objects = f"{origin / 'objects'}\n"
        for place in ("remote.git/objects", "work/.git/objects"):
            (self.template / place / "info" / "alternates").write_text(objects)

    def _git(self, *arguments: str, cwd: Path) -> str:
        code, output, _ = run_git(list(arguments), cwd=cwd, folder=self.folder, time_s=60)
        if code != 0:
            raise RuntimeError(f"git {arguments[0]} failed: {output.strip()}")
        return output

    @classmethod
    def shared(cls) -> Depot:
        """The one of this process. It is removed when the process ends."""
        with cls._lock:
            if cls._current is None or cls._current._pid != os.getpid():
                cls._current = Depot()
                atexit.register(cls._current._remove)
            return cls._current

    def discard(self, folder: Path) -> None:
        """Have a folder out of the way at once, and remove it by and by: that took 80 ms where a copy took 2."""
        old = self.folder / f"old-{uuid.uuid4().hex}"
        try:
            folder.rename(old)
        except FileNotFoundError:
            return
        with self._lock:
            self._old.append(old)
            if self._remover is None:
                self._remover = threading.Thread(target=self._remove_old, name="envhive-git-remover", daemon=True)
                self._remover.start()

    def _remove_old(self) -> None:
        while True:
            with self._lock:
                if not self._old:
                    self._remover = None
                    return
                old = self._old.pop()
            shutil.rmtree(old, ignore_errors=True)

    def _remove(self) -> None:
        if os.getpid() != self._pid:
            return  # a copy of it, in a process that was forked
        with self._lock:
            self._old.clear()
            remover = self._remover
        if remover is not None:
            remover.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def _history() -> str:
    """The repository, as `git fast-import` reads it."""
    lines = [_commit("refs/heads/main", "Begin", _FIRST, 1, "")]
    for minute, (subject, change) in enumerate(_CHANGES, 2):
        lines.append(_commit("refs/heads/main", subject, change, minute, ""))
    for minute, (name, (subject, change)) in enumerate(_BRANCHES.items(), 20):
        lines.append(_commit(f"refs/heads/{name}", subject, change, minute, f":{len(_CHANGES) - 2}"))
    for minute, task in enumerate(TASKS, 30):
        lines.append(_commit(f"refs/goals/{task.goal}", "Goal", dict(task.files), minute, ""))
    return "".join(lines)


def _commit(ref: str, subject: str, files: Files, minute: int, parent: str) -> str:
    who = f"Harbour Master <harbour@example.org> {BEGINNING - 3600 + 60 * minute} +0000"
    text = f"commit {ref}\nmark :{minute}\nauthor {who}\ncommitter {who}\n{_data(subject)}"
    text += f"from {parent}\n" if parent else ""
    return text + "".join(f"M 100644 inline {path}\n{_data(content)}" for path, content in files.items()) + "\n"


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"
