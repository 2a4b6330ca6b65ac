"""Which git commands are allowed, and how they run: no shell, no hooks, no network, no path out of the work tree."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final

REFUSED: Final = 128
BEGINNING: Final = 1_700_000_000
"""The time of the first commit. Each step is a minute, so that the same steps make the same commit ids."""

ALLOWED: Final = frozenset(
    (
        *("add", "blame", "branch", "cat-file", "checkout", "cherry-pick", "clean", "clone", "commit", "diff", "fetch"),
        *("grep", "log", "ls-files", "ls-tree", "merge", "merge-base", "mv", "pull", "push", "rebase", "reset"),
        *("restore", "rev-parse", "revert", "rm", "shortlog", "show", "stash", "status", "switch", "tag"),
    )
)
_RUN_OR_WRITE: Final = (
    *("--exec", "--upload-pack", "--receive-pack", "--ext-diff", "--textconv", "--filters", "--open-files-in-pager"),
    *("--config", "--template", "--separate-git-dir", "--reference", "--reference-if-able", "--output", "--no-index"),
    *("--output-directory", "--recurse-submodules", "--upload-archive", "--batch-command", "--server-option"),
)
"""Options that run programs, read settings or write files. git takes any beginning of them that is unique."""
_SHORT: Final = {"rebase": "x", "grep": "O", "clone": "cu"}
_OUTSIDE: Final = re.compile(r"(?:^|=|^-[A-Za-z]+)[/~]|(?:^|[/=])\.\.(?:/|$)|^-[A-Za-z]+\.\./|::|://")
_TEXT: Final = ("-m", "--message", "--grep", "--author")
"""Their values are text, not paths."""

_SETTINGS: Final = {
    "advice.detachedHead": "false",
    "commit.gpgSign": "false",
    "core.fsmonitor": "false",
    "core.fsync": "none",
    "core.hooksPath": os.devnull,
    "gc.auto": "0",
    "init.defaultBranch": "main",
    "init.templateDir": "",
    "maintenance.auto": "false",
    "pull.rebase": "false",
    "safe.directory": "*",
}
"""Set for each command, over what the repository's own settings say."""


def problem_with(arguments: list[str]) -> str:
    """Why a command is refused; empty if it is not."""
    if not arguments:
        return "There is no command. Say, for example, ['status']."
    command, *rest = arguments
    if command not in ALLOWED:
        return f"git {command} is not allowed here. Allowed: {', '.join(sorted(ALLOWED))}."
    before = ""
    for argument in rest:
        if "\0" in argument:
            return "An argument has a zero byte in it."
        is_text = before in _TEXT or argument.startswith(tuple(f"{option}=" for option in _TEXT if option != "-m"))
        before = argument
        if is_text:
            continue
        if _is_forbidden(command, argument):
            return f"The option {argument} is not allowed here."
        if _OUTSIDE.search(argument):
            return f"{argument} leads out of the work tree."
    return ""


def _is_forbidden(command: str, argument: str) -> bool:
    if argument.startswith("--") and len(argument) > 2:
        name = argument.split("=", 1)[0]
        return any(option == name or (len(name) > 3 and option.startswith(name)) for option in _RUN_OR_WRITE)
    letters = _SHORT.get(command, "")
    return argument.startswith("-") and any(letter in argument[1:] for letter in letters)


def environment(folder: Path, minute: int) -> dict[str, str]:
    """All the environment variables that git gets."""
    when = f"{BEGINNING + 60 * minute} +0000"
    settings = {f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(_SETTINGS)}
    settings |= {f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_SETTINGS.values())}
    return {
        **settings,
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_AUTHOR_DATE": when,
        "GIT_AUTHOR_EMAIL": "agent@example.org",
        "GIT_AUTHOR_NAME": "Agent",
        "GIT_CEILING_DIRECTORIES": str(folder),
        "GIT_COMMITTER_DATE": when,
        "GIT_COMMITTER_EMAIL": "agent@example.org",
        "GIT_COMMITTER_NAME": "Agent",
        "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_EDITOR": "true",
        "GIT_MERGE_AUTOEDIT": "no",
        "GIT_PAGER": "cat",
        "GIT_SEQUENCE_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "PATH": os.environ.get("PATH", os.defpath),
        "TZ": "UTC",
    }


def run_git(
    arguments: list[str], *, cwd: Path, folder: Path, minute: int = 0, limit: int = 65_536, time_s: float = 10.0
) -> tuple[int, str, bool]:
    """git's exit code, what it printed, and whether it printed more than `limit` bytes."""
    process = subprocess.Popen(
        ["git", *arguments],
        cwd=cwd,
        env=environment(folder, minute),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    ended_late = threading.Event()

    def end() -> None:
        ended_late.set()
        _kill_group(process)

    timer = threading.Timer(time_s, end)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout as output:
            kept = output.read(limit)
            truncated = False
            while output.read(1 << 16):
                truncated = True
        code = process.wait()
    finally:
        timer.cancel()
        _kill_group(process)
        process.wait()
    text = kept.decode("utf-8", "replace")
    return (
        (REFUSED, f"{text}It took longer than {time_s:g} s.\n", truncated)
        if ended_late.is_set()
        else (code, text, truncated)
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def head_of(repository: Path) -> str:
    """The commit that a work tree stands on. Read from the files, which takes a hundredth of asking git."""
    try:
        text = (repository / "HEAD").read_text().strip()
    except OSError:
        return ""
    return ref_of(repository, text.removeprefix("ref: ")) if text.startswith("ref: ") else text


def ref_of(repository: Path, name: str) -> str:
    """The commit of a branch; empty if there is no such branch."""
    with contextlib.suppress(OSError):
        return (repository / name).read_text().strip()
    with contextlib.suppress(OSError):
        for line in (repository / "packed-refs").read_text().splitlines():
            commit, _, found = line.partition(" ")
            if found == name:
                return commit
    return ""
