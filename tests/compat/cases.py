"""What each folder is asked, over the WebSocket and over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import connect

FOLDERS: Final = Path(__file__).parent / "folders"
REPLY_S: Final = 20.0

Frame = dict[str, Any] | str
Request = tuple[str, str, Any]


def step(**action: Any) -> Frame:
    return {"type": "step", "data": action}


def reset(**keywords: Any) -> Frame:
    return {"type": "reset", "data": keywords}


STATE: Final[Frame] = {"type": "state"}


@dataclass(frozen=True, eq=False)
class Case:
    """A folder, how its author runs it, and what it is asked."""

    folder: str
    app: str
    """What the author gives to uvicorn."""
    frames: list[Frame]
    requests: list[Request] = field(default_factory=list)
    as_package: bool = False
    prefix: str = ""

    @property
    def path(self) -> Path:
        return FOLDERS / self.folder


CASES: Final = [
    Case(
        "parrot_env",
        "server.app:app",
        [
            reset(seed=3, episode_id="e1", colour="green"),
            step(phrase="hi"),
            step(phrase="hi", times=3, metadata={"by": "me"}),
            step(phrase="hi", times=99),
            step(phrase=5),
            step(),
            step(phrase="hi", volume=11),
            step(phrase="fall off"),
            STATE,
            {"type": "dance"},
            "{not json",
            {"type": "step"},
            {"type": "state", "data": {}},
            {"type": "reset"},
            STATE,
            {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}},
            step(phrase="still here"),
        ],
        [
            ("POST", "/reset", {}),
            ("POST", "/reset", {"seed": 1, "episode_id": "http"}),
            ("POST", "/step", {"action": {"phrase": "over http"}}),
            ("POST", "/step", {"action": {"phrase": 1}}),
            ("POST", "/step", {}),
            ("GET", "/state", None),
        ],
    ),
    Case(
        "maze_env",
        "maze_env.server.app:app",
        [
            reset(seed=1, episode_id="dropped", length=3),
            step(direction="right"),
            step(direction="left", steps=2, why="lost"),
            step(direction="up"),
            STATE,
            step(direction="right", steps=3),
            STATE,
            reset(seed=1),
        ],
        [("POST", "/step", {"action": {"direction": "right"}}), ("GET", "/state", None)],
        as_package=True,
    ),
    Case(
        "desk_env",
        "server.app:app",
        [
            step(type="list_tools"),
            reset(episode_id="desk"),
            step(type="call_tool", tool_name="write_note", arguments={"text": "attic"}),
            step(type="call_tool", tool_name="add", arguments={"a": 2, "b": 3}),
            step(type="call_tool", tool_name="count", arguments={"letter": "t"}),
            step(type="call_tool", tool_name="nothing", arguments={}),
            step(type="call_tool", tool_name="add", arguments={"a": "many"}),
            step(tool_name="write_note", arguments={"text": "no type"}),
            {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}},
            {
                "type": "mcp",
                "data": {
                    "jsonrpc": "2.0",
                    "id": 8,
                    "method": "tools/call",
                    "params": {"name": "add", "arguments": {"a": 20, "b": 22}},
                },
            },
            {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 9, "method": "no/such"}},
            STATE,
        ],
    ),
    Case(
        "tavern_env",
        "server.app:app",
        [
            reset(),
            step(dish="stew"),
            step(dish="ale", pays=1),
            step(dish="ale", pays=6.5),
            STATE,
            step(dish=None),
        ],
        [
            ("GET", "/health", None),
            ("GET", "/tavern/menu", None),
            ("GET", "/tavern/state", None),
            ("GET", "/state", None),
            ("POST", "/tavern/reset", {}),
        ],
        prefix="/tavern",
    ),
    Case(
        "vault_env",
        "server.app:app",
        [
            reset(episode_id="heist"),
            step(numbers=[3, 2, 1]),
            STATE,
            step(numbers=[1, 2, 3]),
            step(numbers=[1, 2]),
            reset(),
            step(numbers=[0, 0, 0]),
            step(numbers=[0, 0, 1]),
        ],
        [("POST", "/reset", {})],
    ),
    Case(
        "exam_env",
        "server.app:app",
        [
            reset(episode_id="exam"),
            step(text="it is 42"),
            step(text="   "),
            step(text="42 again"),
            STATE,
            reset(),
            step(text="a rather long answer that is wrong"),
        ],
        [("POST", "/step", {"action": {"text": "42"}})],
    ),
    Case(
        "lamp_env",
        "server.app:app",
        [reset(seed=1), step(on=True), step(on=False), step(on="perhaps"), STATE, step(on=True)],
        [("POST", "/reset", {"seed": 2}), ("POST", "/step", {"action": {"on": True}})],
    ),
    Case(
        "bell_env",
        "bell_env.server.app:app",
        [reset(), step(times=3), STATE, step(), step(times="often"), reset(seed=4)],
        as_package=True,
    ),
    Case(
        "coin_env",
        "coin:app",
        [
            reset(seed=7),
            step(kind="call", side="heads"),
            step(kind="toss"),
            step(kind="call", side="edge"),
            step(kind="spin"),
            STATE,
            reset(seed=8),
            step(kind="toss"),
        ],
        [("POST", "/step", {"action": {"kind": "toss"}})],
    ),
    Case(
        "hall_env",
        "server.app:app",
        [reset(seed=1, episode_id="hall"), step(paces=2), step(paces=2), step(paces="many"), STATE, reset()],
        [
            ("POST", "/reset", {"seed": 1}),
            ("POST", "/step", {"action": {"paces": 2}}),
            ("GET", "/about?token=mine", None),
        ],
    ),
    Case(
        "robot_env",
        "server.app:app",
        [reset(seed=1), step(lift=5), step(lift=50), step(), STATE, reset(), step(lift=20)],
        [("GET", "/capacity", None)],
    ),
]


def ask(url: str, case: Case) -> dict[str, Any]:
    """Everything that a server answers to a case: each frame and each request, with its reply."""
    answers: dict[str, Any] = {}
    with connect(f"{url.replace('http', 'ws', 1)}{case.prefix}/ws", open_timeout=REPLY_S) as socket:
        for number, frame in enumerate(case.frames):
            text = frame if isinstance(frame, str) else json.dumps(frame)
            socket.send(text)
            answers[f"{number}. {text}"] = json.loads(socket.recv(timeout=REPLY_S))
    described: list[Request] = [("GET", f"{case.prefix}/{name}", None) for name in ("schema", "metadata", "health")]
    for method, path, body in [*described, *case.requests]:
        answers[f"{method} {path} {json.dumps(body)}"] = _request(method, url + path, body)
    return answers


def _request(method: str, url: str, body: Any) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=REPLY_S) as answer:
            return _answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return _answer(error.code, error.headers, error.read())


def _answer(status: int, headers: Any, body: bytes) -> dict[str, Any]:
    is_json = headers.get_content_type() == "application/json"
    return {"status": status, "x-tavern": headers["x-tavern"], "body": json.loads(body) if is_json else body.decode()}
