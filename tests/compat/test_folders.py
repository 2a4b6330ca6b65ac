"""Folders written for OpenEnv, served as they are: the replies are those of OpenEnv itself, field by field."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import connect

from tests.compat.cases import CASES, FOLDERS, Case, ask
from tests.compat.conftest import both_installed, our_environ, serve_command
from tests.integration.conftest import clean_environ, serving

pytestmark = pytest.mark.integration


# What differs on purpose. Each rule makes the replies of both sides alike where they need not be the same.


def same_ids(question: str, answer: Any) -> Any:
    """Environments make up ids of their own."""
    text = re.sub(r'"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"', '"an id"', json.dumps(answer))
    return json.loads(text)


def only_the_status_of_health(question: str, answer: Any) -> Any:
    """Ours says how full the server is, and more."""
    if question.split()[1].endswith("/health"):
        answer["body"] = {"status": answer["body"]["status"]}
    return answer


def schemas_without_descriptions(question: str, answer: Any) -> Any:
    """The base classes describe their fields in other words."""

    def strip(schema: Any) -> Any:
        if isinstance(schema, dict):
            return {name: strip(part) for name, part in schema.items() if name != "description"}
        return [strip(part) for part in schema] if isinstance(schema, list) else schema

    return strip(answer) if question.split()[1].endswith("/schema") else answer


def state_of_the_class(question: str, answer: Any) -> Any:
    """The peer describes the base class unless it is told another; ours reads it off the environment."""
    if question.split()[1].endswith("/schema") and answer["body"]["state"]["title"] in ("State", "LampState"):
        del answer["body"]["state"]
    return answer


def metadata_without_description(question: str, answer: Any) -> Any:
    """The peer repeats the class's name where ours has the first line of its docstring."""
    if question.startswith("GET /metadata"):
        del answer["body"]["description"]
    return answer


def no_null_metadata(question: str, answer: Any) -> Any:
    """Over HTTP the peer sends `metadata: null` where there is none, which its WebSocket does not."""
    body = answer.get("body")
    if question.startswith("POST") and isinstance(body, dict) and body.get("metadata", "") is None:
        del body["metadata"]
    return answer


def only_the_detail_of_http_errors(question: str, answer: Any) -> Any:
    """Ours says, too, whose fault it was; and a failed environment is no bare text."""
    if answer.get("status", 200) == 500:
        answer["body"] = None
    elif answer.get("status") == 422:
        answer["body"] = {"detail": answer["body"]["detail"]}
    return answer


def errors_without_links(question: str, answer: Any) -> Any:
    """The peer links to pydantic's pages for messages, too, that pydantic need not be asked about."""
    if answer.get("type") == "error":
        for error in answer["data"].get("errors", []):
            error.pop("url", None)
    return answer


def tools_refuse_bad_arguments(question: str, answer: Any) -> Any:
    """The peer goes by words in the text, and takes bad arguments for a failure of the tool."""
    error = ((answer.get("data") or {}).get("observation") or {}).get("error") or {}
    if "validation error for call[" in error.get("message", ""):
        error["error_type"] = "invalid_args"
    return answer


def no_scores_of_components(question: str, answer: Any) -> Any:
    """The peer keeps the scores of a rubric's components to itself."""
    data = answer.get("body") or answer.get("data") or {}
    if isinstance(data, dict) and isinstance(data.get("observation"), dict):
        for place in (data["observation"], data):
            (place.get("metadata") or {}).pop("rubric", None)
        if data.get("metadata") == {}:
            del data["metadata"]
    return answer


DIFFERENCES: Final[list[Callable[[str, Any], Any]]] = [
    same_ids,
    only_the_status_of_health,
    schemas_without_descriptions,
    state_of_the_class,
    metadata_without_description,
    no_null_metadata,
    only_the_detail_of_http_errors,
    errors_without_links,
    tools_refuse_bad_arguments,
    no_scores_of_components,
]


def comparable(answers: dict[str, Any]) -> dict[str, Any]:
    """Replies without what differs on purpose."""
    return {
        question: functools.reduce(lambda answer, rule: rule(question, answer), DIFFERENCES, answer)
        for question, answer in answers.items()
    }


# The servers.


def theirs(case: Case, python: Path, work: Path) -> dict[str, Any]:
    """What the peer answers, started as the folder's author starts it; asked once, as it takes seconds to start."""
    kept, folder = work / f"{case.folder}.json", work / case.folder
    with (work / f"{case.folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(_ask_peer(case, python, folder, work / f"{case.folder}.log")))
    answers: dict[str, Any] = json.loads(kept.read_text())
    return answers


def _ask_peer(case: Case, python: Path, folder: Path, log: Path) -> dict[str, Any]:
    shutil.copytree(case.path, folder)
    for path in folder.rglob("*.py"):  # today's OpenEnv no longer has its old names
        path.write_text(re.sub(r"(?m)^from (openenv_core|core)\b", "from openenv.core", path.read_text()))
    command = [str(python), "-m", "uvicorn", case.app, "--no-access-log"]
    with serving(command, clean_environ(), log, folder.parent if case.as_package else folder) as url:
        return ask(url, case)


@contextlib.contextmanager
def serve(python: Path, folder: str, log: Path, *options: str) -> Iterator[str]:
    with serving(serve_command(python, str(FOLDERS / folder), *options), our_environ(), log, log.parent) as url:
        yield url


@pytest.fixture(scope="session")
def peers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "theirs"
    folder.mkdir(exist_ok=True)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder)
def test_the_replies_are_those_of_openenv(
    case: Case, our_python: Path, peer_python: Path, peers_folder: Path, tmp_path: Path
) -> None:
    before = contents(case.path)
    with serve(our_python, case.folder, tmp_path / "ours.log") as url:
        ours = comparable(ask(url, case))
    assert contents(case.path) == before
    expected = comparable(theirs(case, peer_python, peers_folder))
    assert list(ours) == list(expected)
    for question, answer in expected.items():
        assert ours[question] == answer, question


# What is EnvHive's own.


def exchange(url: str, *frames: Any) -> list[Any]:
    with connect(f"{url.replace('http', 'ws', 1)}/ws") as socket:
        replies = []
        for frame in frames:
            socket.send(json.dumps(frame))
            replies.append(json.loads(socket.recv(timeout=20)))
        return replies


def test_each_components_score_is_in_the_metadata(tmp_path: Path) -> None:
    with serve(Path(sys.executable), "exam_env", tmp_path / "log") as url:
        _, answered, empty = exchange(
            url,
            {"type": "reset"},
            {"type": "step", "data": {"text": "it is 42"}},
            {"type": "step", "data": {"text": " "}},
        )
    scores = answered["data"]["metadata"]["rubric"]
    assert scores["answer.rubric_1.rubric_0"] == 1.0
    assert scores["answer"] == answered["data"]["reward"] == pytest.approx(0.9)
    assert answered["data"]["observation"]["metadata"]["rubric"] == scores
    assert "answer.rubric_1" not in empty["data"]["metadata"]["rubric"]  # it was not asked


def test_a_validator_that_raises_does_not_end_the_session(tmp_path: Path) -> None:
    with serve(Path(sys.executable), "maze_env", tmp_path / "log") as url:
        _, refused, went_on = exchange(
            url,
            {"type": "reset"},
            {"type": "step", "data": {"direction": "right", "steps": 7}},
            {"type": "step", "data": {"direction": "right", "steps": 2}},
        )
    assert refused["data"]["code"] == "VALIDATION_ERROR"
    assert "from one to three steps" in refused["data"]["errors"][0]["msg"]
    assert went_on["data"]["observation"]["position"] == 2


@pytest.mark.parametrize("options", [["--workers", "2"], ["--isolation", "process"]], ids=lambda options: options[0])
@pytest.mark.parametrize("folder", ["parrot_env", "maze_env"])
def test_a_folder_runs_in_other_processes_too(folder: str, options: list[str], tmp_path: Path) -> None:
    action = {"phrase": "hi"} if folder == "parrot_env" else {"direction": "right"}
    with serve(Path(sys.executable), folder, tmp_path / "log", "--max-sessions", "4", *options) as url:
        _, stepped, state = exchange(url, {"type": "reset"}, {"type": "step", "data": action}, {"type": "state"})
    assert stepped["type"] == "observation"
    assert state["data"]["step_count"] == 1


def test_the_limit_of_the_template_gives_way_and_the_start_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serve(Path(sys.executable), "parrot_env", log, "--max-sessions", "3") as url:
        address = f"{url.replace('http', 'ws', 1)}/ws"
        with connect(address) as first, connect(address) as second, connect(address) as third:
            for socket in (first, second, third):
                socket.send('{"type": "state"}')
                assert json.loads(socket.recv(timeout=20))["type"] == "state"
    assert "3 session(s) at once, as --max-sessions has it, not 1 as the app's code has" in log.read_text()


def test_the_limit_of_the_template_is_kept_otherwise_with_a_word_on_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serve(Path(sys.executable), "parrot_env", log):
        pass
    assert "1 session(s) at once, as configured (though ParrotEnvironment supports more" in log.read_text()


def test_a_class_that_does_not_allow_more_is_not_given_more(tmp_path: Path) -> None:
    command = serve_command(Path(sys.executable), str(FOLDERS / "lamp_env"), "--max-sessions", "3")
    done = subprocess.run(command, env=our_environ(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "LampEnvironment cannot serve 3 sessions at once" in done.stderr


def test_what_envhive_does_not_replace_comes_from_the_installed_openenv(tmp_path: Path) -> None:
    script = """
from envhive import compat
compat.install()
from openenv.core.harness.tools import __name__ as harness
import envhive, openenv.core.env_server as server, sys
assert server.Action is envhive.Action and server.Environment is envhive.Environment
replaced = ("openenv.core.env_server.types", "openenv.core.env_client")
real = [name for name in replaced if getattr(sys.modules.get(name), "__file__", None)]
print(harness, real)
"""
    done = subprocess.run(
        [both_installed(), "-c", script], env=our_environ(), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "openenv.core.harness.tools []", done.stderr


# The folders' own clients.

PARROT_CLIENT = """
from parrot_env import ParrotAction, ParrotEnv, ParrotObservation
with ParrotEnv(base_url=URL).sync() as env:
    env.reset(episode_id="mine")
    result = env.step(ParrotAction(phrase="hi", times=2))
    assert type(result.observation) is ParrotObservation
    print(result.observation.heard, result.reward, env.state().episode_id)
"""
DESK_CLIENT = """
import asyncio
from desk_env import DeskEnv
from openenv.core.env_server.mcp_types import CallToolAction
async def main():
    async with DeskEnv(base_url=URL) as env:
        await env.reset()
        print([tool.name for tool in await env.list_tools()], await env.has_tool("add"), await env.has_tool("subtract"))
        print(await env.call_tool("add", a=40, b=2))
        seen = (await env.step(CallToolAction(tool_name="write_note", arguments={"text": "x"}))).observation
        print(seen.result["data"])
        try:
            await env.call_tool("subtract")
        except Exception as error:
            print(type(error).__name__, error.error_type)
asyncio.run(main())
with DeskEnv(base_url=URL).sync() as env:
    print(len(env.list_tools()), env.call_tool("add", a=1), env.get_tool("count").name, env.has_tool("nothing"))
"""
OLD_CLIENT = """
from openenv_core import HTTPEnvClient
from openenv_core.client_types import StepResult
class Parrot(HTTPEnvClient):
    def _step_payload(self, action): return {"phrase": action}
    def _parse_result(self, payload): return StepResult(payload["observation"]["heard"], payload["reward"])
    def _parse_state(self, payload): return payload["step_count"]
with Parrot(URL) as env:
    env.reset()
    print(env.step("old").observation, env.state())
"""


@pytest.mark.parametrize(
    ("folder", "script", "expected"),
    [
        ("parrot_env", PARROT_CLIENT, ["hi hi 0.5 mine"]),
        (
            "desk_env",
            DESK_CLIENT,
            [
                "['write_note', 'add', 'count'] True False",
                "42",
                "1 note(s)",
                "ToolCallError tool_not_found",
                "3 2 count False",
            ],
        ),
        ("parrot_env", OLD_CLIENT, ["old 1"]),
    ],
    ids=["typed", "tools", "of old"],
)
def test_the_folders_own_client_works(folder: str, script: str, expected: list[str], tmp_path: Path) -> None:
    with serve(Path(sys.executable), folder, tmp_path / "log") as url:
        beginning = f"from envhive import compat\ncompat.install()\nURL = {url!r}\n"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", beginning + script],
            env=our_environ(),
            cwd=FOLDERS,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout.splitlines() == expected, done.stderr
