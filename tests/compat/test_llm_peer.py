"""Clients of language models: what they ask, and make of the answers, beside OpenEnv's own."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import both_installed, our_environ
from tests.integration.conftest import clean_environ

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("llm_script.py")

# OpenEnv does not bring Anthropic's package: this asks, as far as both clients use it, the same things over HTTP.
ANTHROPIC = """
import asyncio, json, types, urllib.request

class AsyncAnthropic:
    def __init__(self, *, base_url, api_key):
        self.url, self.key = base_url, api_key
        self.messages = self

    async def create(self, extra_body=None, **request):
        request |= extra_body or {}
        asked = urllib.request.Request(
            self.url + "/v1/messages", json.dumps(request).encode(), {"Authorization": "Bearer " + self.key}
        )
        with await asyncio.to_thread(urllib.request.urlopen, asked) as answer:
            blocks = json.load(answer)["content"]
        return types.SimpleNamespace(content=[types.SimpleNamespace(**block) for block in blocks])
"""


class Model(BaseHTTPRequestHandler):
    """Answers as the two APIs do, and notes what it was asked."""

    asked: list[Any]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append([self.path, self.headers["Authorization"], request])
        if self.path.endswith("/messages"):
            answer = {
                "content": [
                    {"type": "text", "text": "Well, "},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"far": 1}},
                    {"type": "text", "text": "hello"},
                ]
            }
        else:
            call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"far": 1}'}}
            calls = [call] if "tools" in request else None
            message = {"role": "assistant", "content": None if calls else "hello", "tool_calls": calls}
            answer = {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": request["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Not on the tests' screen."""


@pytest.fixture
def model() -> Iterator[tuple[str, list[Any]]]:
    """The address of a server of models, and what it was asked."""
    asked: list[Any] = []
    handler = type("Noting", (Model,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def run(python: Path, url: str, environ: dict[str, str], *arguments: str) -> dict[str, Any]:
    command = [python, SCRIPT, url, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_models_are_asked_and_understood_as_by_openenv(
    model: tuple[str, list[Any]], peer_python: Path, tmp_path: Path
) -> None:
    url, asked = model
    (tmp_path / "anthropic.py").write_text(ANTHROPIC)
    theirs = run(peer_python, url, clean_environ(PYTHONPATH=str(tmp_path), NO_PROXY="127.0.0.1"))
    asked_by_them = list(asked)
    asked.clear()
    environ = our_environ()
    environ |= {"PYTHONPATH": f"{environ['PYTHONPATH']}:{tmp_path}", "NO_PROXY": "127.0.0.1"}
    ours = run(both_installed(), url, environ, "envhive")
    assert len(asked) == 20
    assert asked == asked_by_them
    assert ours.keys() == theirs.keys()
    for what, expected in theirs.items():
        assert ours[what] == expected, what
    assert theirs["openai"][0] == "hello"
    assert theirs["anthropic"][2][1] == [["t1", "look", {"far": 1}]]
