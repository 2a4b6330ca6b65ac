"""The git environment."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive import GenericEnvClient, check_environment
from envhive.envs.git import GitAction, GitEnvironment, GitObservation
from envhive.envs.git.depot import TASKS
from tests.support.processes import envhive_serve
from tests.support.servers import eventually

UNDO = 3

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def env() -> Iterator[GitEnvironment]:
    env = GitEnvironment()
    env.reset(seed=1)
    yield env
    env.close()


def git(env: GitEnvironment, *arguments: str) -> GitObservation:
    return env.step(GitAction(arguments=list(arguments)))


def read(env: GitEnvironment, path: str) -> GitObservation:
    return env.step(GitAction(do="read_file", path=path))


def write(env: GitEnvironment, path: str, content: str) -> GitObservation:
    return env.step(GitAction(do="write_file", path=path, content=content))


def test_it_keeps_the_contract() -> None:
    assert check_environment(GitEnvironment, action=GitAction(arguments=["log", "--stat"])).findings == []


def test_seeds_choose_among_all_tasks() -> None:
    env = GitEnvironment()
    assert {env.reset(seed=seed).task for seed in range(60)} == {task.text for task in TASKS}
    env.close()


@pytest.mark.parametrize("task", range(UNDO))
def test_a_scripted_policy_merges(env: GitEnvironment, task: int) -> None:
    branch = env.reset(task=task).task.split()[3]
    assert git(env, "merge", f"origin/{branch}").reward == 0.0
    pushed = git(env, "push", "origin", "main")
    assert (pushed.reward, pushed.done) == (1.0, True)


@pytest.mark.parametrize("task", range(UNDO, len(TASKS)))
def test_a_scripted_policy_undoes(env: GitEnvironment, task: int) -> None:
    subject = env.reset(task=task).task.split("'")[1]
    commit = git(env, "log", "--format=%H", "--grep", subject).output.strip()
    assert git(env, "revert", "--no-edit", commit).reward == 0.0
    assert git(env, "push").reward == 1.0


def test_history_that_is_rewritten_earns_nothing(env: GitEnvironment) -> None:
    env.reset(task=UNDO)
    tip = env.state.head
    git(env, "revert", "--no-edit", ":/Paint")
    git(env, "reset", "--soft", "HEAD~3")
    git(env, "commit", "-m", "All at once")
    forced = git(env, "push", "--force", "origin", "main")
    assert (forced.exit_code, forced.reward) == (0, 0.0)
    git(env, "reset", "--hard", tip)
    git(env, "revert", "--no-edit", ":/Paint")
    assert git(env, "push", "--force", "origin", "main").reward == 1.0


def test_a_random_policy_never_breaks_it(env: GitEnvironment) -> None:
    dice = random.Random(5)
    words = [
        "status",
        "commit",
        "-m",
        "HEAD~1",
        "--hard",
        "reset",
        "rebase",
        "stash",
        "pull",
        "main",
        "--",
        "é",
        "-",
        "",
    ]
    for _ in range(40):
        seen = git(env, *dice.choices(words, k=dice.randint(1, 4)))
        assert seen.reward == 0.0
    env.reset(seed=1)
    assert git(env, "status", "--porcelain").output == ""


def test_a_reset_starts_no_process_and_clears_all(env: GitEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    git(env, "clone", "origin", "copy")
    git(env, "checkout", "-b", "side")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", None)  # what would make of the milliseconds it takes tens of them
        env.reset(seed=1)
    assert git(env, "status", "--porcelain", "--branch").output == "## main...origin/main\n"


def test_a_commit_is_gone_back_to_with_one_command_of_git(env: GitEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    first = env.state.head
    write(env, "new.txt", "new\n")
    git(env, "add", "new.txt")
    second = git(env, "commit", "-m", "New").head
    assert "+new" in git(env, "diff", first, second).output
    asked: list[list[str]] = []

    def counted(command: list[str], **options: Any) -> Any:
        asked.append(command)
        return popen(command, **options)

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", counted)
    back = env.step(GitAction(do="reset_to", commit=first))
    assert asked == [["git", "reset", "--hard", first]]
    assert (back.exit_code, back.head) == (0, first)
    assert read(env, "new.txt").exit_code == 128


def test_files_are_written_and_read(env: GitEnvironment) -> None:
    assert write(env, "deep/er/file.txt", "words\n").exit_code == 0
    assert read(env, "deep/er/file.txt").output == "words\n"
    assert "deep/" in git(env, "status", "--porcelain").output
    assert read(env, "missing").output == "'missing' cannot be read: No such file or directory.\n"
    assert read(env, "deep").exit_code == 128


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/etc/passwd",
        ".git/config",
        ".GIT/hooks/pre-commit",
        "a/../../x",
        "",
        ".",
        "a\0b",
        "copy/.git/config",
    ],
)
def test_no_path_leads_out(env: GitEnvironment, path: str) -> None:
    assert read(env, path).exit_code == 128
    assert "no file of the work tree" in write(env, path, "x").output


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "alias.x=!id", "x"],
        ["config", "core.editor", "id"],
        ["rebase", "-x", "touch ran", "HEAD~1"],
        ["rebase", "-ix", "touch ran", "HEAD~1"],
        ["rebase", "--exe", "touch ran", "HEAD~1"],
        ["grep", "-Oid", "a"],
        ["clone", "-c", "core.hooksPath=.", "origin", "x"],
        ["clone", "/etc", "x"],
        ["clone", "file:///etc", "x"],
        ["clone", "--upload-pack=id", "origin", "x"],
        ["clone", "origin", "../x"],
        ["fetch", "ext::sh -c id"],
        ["fetch", "https://example.org/x.git"],
        ["fetch", "--upload-pack", "id", "origin"],
        ["push", "--receive-pack=id", "origin"],
        ["push", "--exec=id", "origin"],
        ["diff", "--no-index", "README.md", "/etc/passwd"],
        ["log", "--output=.git/config"],
        ["log", "--outp=.git/config"],
        ["commit", "-F/etc/passwd"],
        ["commit", "--file=/etc/passwd"],
        ["commit", "-F", "../../x"],
        ["add", "--pathspec-from-file=/etc/passwd"],
        ["show", "~/x"],
        ["submodule", "foreach", "id"],
        ["daemon"],
        [],
    ],
)
def test_what_could_run_programs_or_leave_the_tree_is_refused(env: GitEnvironment, arguments: list[str]) -> None:
    before = sorted(os.listdir(env._work))
    seen = git(env, *arguments)
    assert seen.exit_code == 128
    assert "not allowed" in seen.output or "leads out" in seen.output or "no command" in seen.output
    assert sorted(os.listdir(env._work)) == before


def test_ranges_and_messages_are_no_paths(env: GitEnvironment) -> None:
    assert git(env, "log", "--oneline", "HEAD~2..HEAD").output.count("\n") == 2
    assert git(env, "diff", "--stat", "HEAD~2...HEAD").exit_code == 0
    assert git(env, "commit", "--allow-empty", "-m", "see ../x and /etc: it's fine").exit_code == 0
    assert git(env, "show", "HEAD:README.md").output.startswith("# Tide tables")


def test_hooks_do_not_run(env: GitEnvironment) -> None:
    hook = env._work / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch ran\nexit 1\n")
    hook.chmod(0o755)
    assert git(env, "commit", "--allow-empty", "-m", "x").exit_code == 0
    assert not (env._work / "ran").exists()


def test_an_address_that_got_through_would_not_be_fetched(env: GitEnvironment) -> None:
    code, output, _ = env._git("fetch", "https://127.0.0.1:1/x.git")
    assert (code, "transport 'https' not allowed" in output) == (128, True)


def test_much_output_is_cut(env: GitEnvironment) -> None:
    small = GitEnvironment(output_limit=100)
    small.reset(seed=1)
    seen = git(small, "log", "--stat")
    small.close()
    assert (len(seen.output), seen.truncated) == (100, True)


def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env = GitEnvironment(time_limit_s=0.2)
    env.reset(seed=1)
    (tmp_path / "git").write_text("#!/bin/sh\necho begun\nsleep 600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = git(env, "log")
    env.close()
    assert (seen.exit_code, seen.output) == (128, "begun\nIt took longer than 0.2 s.\n")


def test_an_episode_may_not_write_without_end(env: GitEnvironment) -> None:
    seen = [write(env, "big", "x" * 1_000_000).exit_code for _ in range(18)]
    assert seen == [0] * 16 + [128] * 2


def test_sessions_have_remotes_of_their_own(env: GitEnvironment) -> None:
    other = GitEnvironment()
    other.reset(seed=1)
    git(env, "push", "origin", "main:mine")
    git(other, "fetch", "origin")
    assert "mine" not in git(other, "branch", "-a").output
    other.close()


def test_a_closed_one_leaves_no_folder_and_is_not_used_again() -> None:
    env = GitEnvironment()
    depot = env._folder.parent
    env.reset(seed=1)
    env.reset(seed=2)
    env.close()
    env.close()
    eventually(lambda: not env._folder.exists() and not list(depot.glob("old-*")))
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_server_that_ends_leaves_no_folder(isolation: str, tmp_path: Path) -> None:
    with envhive_serve("git", "--isolation", isolation, environ={"TMPDIR": str(tmp_path)}) as server:
        with GenericEnvClient(server.url).sync() as client:
            client.reset(seed=1)
            assert client.step({"arguments": ["status"]}).observation["exit_code"] == 0
            assert list(tmp_path.glob("envhive-git-*"))
        eventually(lambda: server.health()["active_sessions"] == 0)
    eventually(lambda: not list(tmp_path.glob("envhive-git-*")))
