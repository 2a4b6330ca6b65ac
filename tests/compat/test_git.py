"""Repositories of a Gitea server: a stand-in for its API, and real git over HTTP to bare repositories beside it."""

from __future__ import annotations

import base64
import functools
import gc
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envhive.compat.git import GitServerClient, RepoInfo

USER, PASSWORD = "ada", "p@ss:word/1"


class Gitea(SimpleHTTPRequestHandler):
    """Lists repositories, and gives out their files, to who has the password."""

    listed: Any = None

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.path == "/":
            self.answer(200, "welcome")
        elif self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="Gitea"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/api/v1/user/repos":
            self.answer(200, self.listed)
        else:
            super().do_GET()

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Not on the tests' screen."""


def git(*arguments: str, cwd: Path) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *settings, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Origin:
    """A repository on the server, and a folder to commit from."""

    def __init__(self, folder: Path) -> None:
        self.bare = folder / "gitea" / USER / "game.git"
        self.work = folder / "author"
        self.bare.mkdir(parents=True)
        self.work.mkdir()
        git("init", "--bare", cwd=self.bare)
        git("init", cwd=self.work)
        self.first = self.commit("rules.txt", "one")
        self.second = self.commit("rules.txt", "two")

    def commit(self, name: str, text: str, branch: str = "main") -> str:
        (self.work / name).write_text(text)
        git("checkout", "-B", branch, cwd=self.work)
        git("add", ".", cwd=self.work)
        git("commit", "-m", text, cwd=self.work)
        git("push", "--force", str(self.bare), branch, cwd=self.work)
        git("update-server-info", cwd=self.bare)
        return git("rev-parse", "HEAD", cwd=self.work)


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "gitea").mkdir(exist_ok=True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(Gitea, directory=str(tmp_path / "gitea"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def client(origin: Origin, url: str, tmp_path: Path) -> GitServerClient:
    client = GitServerClient(url + "/", USER, PASSWORD, str(tmp_path / "workspace"))
    assert client.wait_for_ready(timeout=10)
    return client


def test_it_is_made_as_openenvs_is(url: str, tmp_path: Path) -> None:
    client = GitServerClient("http://gitea/", USER, PASSWORD, str(tmp_path / "a" / "b"))
    assert (client.gitea_url, client.domain, client.port, client.is_ready) == ("http://gitea", "gitea", 3000, False)
    assert (client.username, client.password, client.workspace_dir) == (USER, PASSWORD, tmp_path / "a" / "b")
    assert client.workspace_dir.is_dir()
    assert GitServerClient(url, USER, PASSWORD, str(tmp_path)).port == int(url.rpartition(":")[2])
    assert RepoInfo(name="game", url=url, commit="main", clone_url=url).name == "game"


def test_a_server_that_is_not_there_is_not_ready(tmp_path: Path) -> None:
    client = GitServerClient("http://127.0.0.1:9", USER, PASSWORD, str(tmp_path))
    assert not client.wait_for_ready(timeout=0)
    for call in (client.list_repositories, lambda: client.clone_to_workspace("game")):
        with pytest.raises(RuntimeError, match="is not ready: call wait_for_ready first"):
            call()


def test_repositories_are_listed(client: GitServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = {"name": "game", "full_name": "ada/game", "clone_url": "http://gitea/ada/game.git"}
    monkeypatch.setattr(Gitea, "listed", [{**repo, "id": 7}, {**repo, "description": "A game"}])
    assert client.list_repositories() == [{**repo, "description": ""}, {**repo, "description": "A game"}]
    for nonsense in ({"message": "no"}, [{"name": "game"}], 7, "text"):
        monkeypatch.setattr(Gitea, "listed", nonsense)
        assert client.list_repositories() == []
    client.password = "wrong"
    monkeypatch.setattr(Gitea, "listed", [repo])
    assert client.list_repositories() == []


def test_a_repository_is_cloned_with_the_clients_password(client: GitServerClient, origin: Origin) -> None:
    folder = Path(client.clone_to_workspace("game"))
    assert folder == client.workspace_dir / "game"
    assert ((folder / "rules.txt").read_text(), client.get_current_commit("game")) == ("two", origin.second)
    assert client.workspace_exists("game")
    assert not client.workspace_exists("other")


def test_a_clone_replaces_what_is_there_at_the_commit_that_is_wanted(client: GitServerClient, origin: Origin) -> None:
    (client.workspace_dir / "here").mkdir()
    (client.workspace_dir / "here" / "old.txt").touch()
    folder = Path(client.clone_to_workspace("game", "here", origin.first))
    assert [path.name for path in folder.iterdir() if path.name != ".git"] == ["rules.txt"]
    assert client.get_current_commit("here") == origin.first


@pytest.mark.parametrize("commit", ["main", "second", "side"])
def test_a_workspace_is_put_back(client: GitServerClient, origin: Origin, commit: str) -> None:
    folder = Path(client.clone_to_workspace("game"))
    side = origin.commit("rules.txt", "three", branch="side")  # new since the clone
    (folder / "rules.txt").write_text("cheated")
    (folder / "junk").mkdir()
    (folder / "junk" / "file").touch()
    expected = {"main": origin.second, "second": origin.second, "side": side}[commit]
    assert client.reset_workspace("game", origin.second if commit == "second" else commit)
    assert client.get_current_commit("game") == expected
    assert client.execute_git_command("status --porcelain --ignored", "game") == (0, "", "")
    assert (folder / "rules.txt").read_text() == ("three" if commit == "side" else "two")


def test_what_goes_wrong_is_told(client: GitServerClient, origin: Origin) -> None:
    with pytest.raises(RuntimeError, match=r"git clone failed: (?s:.*)nobody\.git"):
        client.clone_to_workspace("nobody")
    with pytest.raises(RuntimeError, match=r"git checkout failed: .*no-such-commit"):
        client.clone_to_workspace("game", commit="no-such-commit")
    with pytest.raises(RuntimeError, match=r"git checkout failed: .*no-such-commit"):
        client.reset_workspace("game", "no-such-commit")
    for call in (client.reset_workspace, client.get_current_commit):
        with pytest.raises(RuntimeError, match="There is no 'other' in the workspace"):
            call("other")


@pytest.mark.parametrize("name", ["..", "../author", ".", "/"])
def test_nothing_outside_of_the_workspace_is_deleted(client: GitServerClient, origin: Origin, name: str) -> None:
    with pytest.raises(RuntimeError, match="leads out of the workspace"):
        client.clone_to_workspace("game", name)
    assert (origin.work / "rules.txt").exists()
    assert client.workspace_dir.exists()


def test_git_commands_are_run_in_the_workspace(client: GitServerClient) -> None:
    client.clone_to_workspace("game")
    assert client.execute_git_command("log --format='%s %s' -1", "game") == (0, "two two\n", "")
    code, out, err = client.execute_git_command("log", "elsewhere")
    assert (code, out, "elsewhere does not exist" in err) == (1, "", True)
    code, out, err = client.execute_git_command("log 'unfinished")
    assert (code, out, "cannot be read" in err) == (1, "", True)
    code, _, err = client.execute_git_command("no-such-command", "game")
    assert (code, "is not a git command" in err) == (1, True)


def test_commits_are_the_clients_own(client: GitServerClient) -> None:
    client.clone_to_workspace("game")
    assert client.execute_git_command("commit --allow-empty -m more", "game")[0] == 0
    assert client.execute_git_command("log -1 --format='%an %ae'", "game")[1] == "ada ada@local.env\n"


def test_the_password_is_kept_from_others_and_forgotten_in_the_end(tmp_path: Path) -> None:
    client = GitServerClient("http://gitea:3000", USER, PASSWORD, str(tmp_path))
    folder = Path(client._git_env["GIT_CONFIG_GLOBAL"]).parent
    assert [path.stat().st_mode & 0o077 for path in (folder, folder / "credentials")] == [0, 0]
    del client
    gc.collect()
    assert not folder.exists()
