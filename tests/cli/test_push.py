"""`envhive push`: what would be uploaded, and what is, to a stand-in for the Hub."""

from __future__ import annotations

import base64
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envhive.hub import Upload, files_to_upload
from envhive.scaffold.project import Project, write_project
from tests.support.processes import ENVHIVE, plain_environ

SECRET = "not-for-anybody-to-read"
REGULAR = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}


class Hub:
    """As much of the Hub's API as an upload needs. It keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.refusal: int | None = None
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the library's name for it
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = hub.answer(self.path, body)
                payload = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *arguments: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if self.refusal is not None:
            return self.refusal, {"error": "not you"}
        if path.endswith("/commit/main"):
            lines = [json.loads(line) for line in body.splitlines()]
            files = {line["value"]["path"]: line["value"]["content"] for line in lines if line["key"] == "file"}
            self.heard.append((path, files))
            return 200, {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.url}/spaces/ada/game/commit/0"}
        document = json.loads(body)
        self.heard.append((path, document))
        if path.endswith("/preupload/main"):
            return 200, {"files": [{"path": f["path"], **REGULAR} for f in document["files"]]}
        return 200, {"url": f"{self.url}/spaces/ada/game"} if path == "/api/repos/create" else {}

    def told(self, path: str) -> Any:
        (found,) = [document for heard, document in self.heard if heard == path]
        return found


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_project(tmp_path / "game", Project.named("game", "basic").files())
    return tmp_path / "game"


def push(*arguments: str, endpoint: str = "http://127.0.0.1:9", **environ: str) -> subprocess.CompletedProcess[str]:
    settings = {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_token", "HF_HUB_DISABLE_TELEMETRY": "1", **environ}
    return subprocess.run(
        [ENVHIVE, "push", *arguments], env=plain_environ(**settings), capture_output=True, text=True, timeout=60
    )


def test_a_dry_run_shows_the_upload_and_no_secret(folder: Path) -> None:
    settings = ["--private", "--secret", f"KEY={SECRET}", "--secret", "FROM_HERE", "--variable", "LEVEL=3"]
    done = push(str(folder), "--repo-id", "ada/game", "--dry-run", *settings, FROM_HERE=SECRET)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert "Space ada/game, sdk docker, private" in done.stdout
    assert ["secret", "KEY"] in lines
    assert ["secret", "FROM_HERE"] in lines
    assert ["variable", "LEVEL=3"] in lines
    for path, file in files_to_upload(folder).items():
        assert [f"{file.stat().st_size:,}", "B", path] in lines
    assert SECRET not in done.stdout
    assert SECRET not in repr(Upload.of(folder, "ada/game", secrets={"KEY": SECRET}))


def test_what_tools_and_people_leave_in_a_folder_stays_there(folder: Path, tmp_path: Path) -> None:
    for path in (".env", ".env.local", "key.pem", ".venv/lib/a.py", "game/__pycache__/a.pyc", ".git/config", "dist/a"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")
    (tmp_path / "outside.txt").write_text("x")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("x")
    assert set(files_to_upload(folder)) == {*Project.named("game", "basic").files(), "data/words.txt"}


def test_a_dockerfile_of_the_servers_is_put_where_a_space_looks(folder: Path) -> None:
    (folder / "server").mkdir()
    (folder / "Dockerfile").rename(folder / "server" / "Dockerfile")
    assert files_to_upload(folder)["Dockerfile"].parent.name == "server"


def test_the_upload_is_what_the_dry_run_showed(folder: Path, hub: Hub) -> None:
    settings = ["--private", "--secret", f"KEY={SECRET}", "--variable", "LEVEL=3"]
    done = push(str(folder), "--repo-id", "ada/game", *settings, endpoint=hub.url)
    assert done.returncode == 0, done.stderr
    made = hub.told("/api/repos/create")
    assert (made["name"], made["organization"], made["type"], made["sdk"]) == ("game", "ada", "space", "docker")
    assert made.get("visibility") == "private" or made.get("private") is True
    assert hub.told("/api/spaces/ada/game/secrets") == {"key": "KEY", "value": SECRET}
    assert hub.told("/api/spaces/ada/game/variables") == {"key": "LEVEL", "value": "3"}
    uploaded = hub.told("/api/spaces/ada/game/commit/main")
    expected = {path: file.read_bytes() for path, file in files_to_upload(folder).items()}
    assert {path: base64.b64decode(content) for path, content in uploaded.items()} == expected
    assert "envhive validate https://ada-game.hf.space" in done.stdout
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("status", "said"), [(401, "run `hf auth login`, or set HF_TOKEN"), (403, "--repo-id of your own")]
)
def test_a_refusal_says_what_to_do(status: int, said: str, folder: Path, hub: Hub) -> None:
    hub.refusal = status
    done = push(str(folder), "--repo-id", "ada/game", endpoint=hub.url)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_without_a_way_to_the_hub_it_is_said_in_one_line(folder: Path) -> None:
    done = push(str(folder), "--repo-id", "ada/game")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "The Hub could not be reached" in done.stderr


def test_without_the_library_it_is_said_what_to_install(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none" / "huggingface_hub").mkdir(parents=True)
    (tmp_path / "none" / "huggingface_hub" / "__init__.py").write_text("raise ImportError")
    path = f"{tmp_path / 'none'}:{plain_environ().get('PYTHONPATH', '')}"
    done = push(str(folder), "--repo-id", "ada/game", PYTHONPATH=path)
    assert done.returncode == 2
    assert "pip install 'envhive[hub]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--repo-id", "game"], "write USER/NAME"),
        (["--repo-id", "ada/game", "--secret", "KEY"], "or set the environment variable KEY"),
        (["--repo-id", "ada/game", "--variable", "1=2"], "write NAME=VALUE"),
        ([], "Missing option '--repo-id'"),
    ],
)
def test_a_command_that_cannot_be_done_is_said(arguments: list[str], said: str, folder: Path) -> None:
    done = push(str(folder), "--dry-run", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_folder_that_would_not_run_is_not_uploaded(folder: Path, hub: Hub) -> None:
    (folder / "README.md").write_text("# Game\n")
    done = push(str(folder), "--repo-id", "ada/game", endpoint=hub.url)
    assert (done.returncode, done.stdout, hub.heard) == (1, "", [])
    assert "Put these lines first" in done.stderr
    assert push(str(folder), "--repo-id", "ada/game", "--dry-run", "--no-check").returncode == 0
