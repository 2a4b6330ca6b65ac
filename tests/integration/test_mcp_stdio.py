"""`envhive mcp TARGET --stdio`, as desktop clients run it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import envhive
from tests.support.agents import OVER_STDIO, CallFailedError, Connect, Progress, RefusedError
from tests.support.processes import ENVHIVE, plain_environ, refused
from tests.support.servers import eventually
from tests.support.tools import TOOLS

pytestmark = pytest.mark.integration

SHED = "tests.support.tools:Shed"
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=list(OVER_STDIO.values()), ids=list(OVER_STDIO))
def connect(request: pytest.FixtureRequest) -> Connect:
    chosen: Connect = request.param
    return chosen


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("target", [SHED, "tests.support.tools:AsyncShed"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_agent_uses_an_environment(connect: Connect, target: str, isolation: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> int:
        async with connect(target, "--isolation", isolation, log=log) as agent:
            assert await agent.tools() == TOOLS
            assert [await agent.call("add", by=2), await agent.call("add", by=3)] == [2, 5]
            where = await agent.call("whereabouts")
            assert where["package"] == envhive.__file__
            heard: Progress = []
            assert await agent.call("climb", heard, rungs=3) == "on top"
            assert heard == [(1, 3, "rung 1"), (2, 3, "rung 2"), (3, 3, "rung 3")]
            assert await agent.call("say", text="careless words") == "careless words"
            with pytest.raises(CallFailedError, match="the floor gave way"):
                await agent.call("fail")
            with pytest.raises(RefusedError, match="fly") as refused:
                await agent.call("fly")
            assert refused.value.code == -32602
            assert await agent.read("shed://total") == "5"
            assert await agent.prompt("advice", goal="12") == "Add until there are 12."
            assert sorted(await asyncio.gather(*(agent.call("add") for _ in range(20)))) == list(range(6, 26))
            pid: int = where["pid"]
            return pid

    pid = asyncio.run(scenario())
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    said = log.read_text()
    assert "careless words\n" in said
    assert "careless words (raw)\n" in said
    assert "Traceback" not in said


def test_a_call_can_be_taken_back(connect: Connect, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect("tests.support.tools:AsyncShed", log=tmp_path / "log") as agent:
            call = asyncio.ensure_future(agent.call("rest", folder=str(tmp_path)))
            await asyncio.to_thread(eventually, (tmp_path / "begun").exists)
            call.cancel()
            await asyncio.to_thread(eventually, (tmp_path / "cancelled").exists)
            assert await agent.call("add") == 1

    asyncio.run(scenario())


def test_any_environment_can_be_stepped_by_an_agent(connect: Connect, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect("echo", "--expose-step", log=tmp_path / "log") as agent:
            assert await agent.tools() == {"act"}
            seen = await agent.call("act", message="hello")
            assert seen["observation"]["echoed_message"] == "hello"
            assert seen["reward"] > 0

    asyncio.run(scenario())


# The command itself.


class Command:
    """`envhive mcp`, spoken to line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, request_id: Any = 1, **params: Any) -> dict[str, Any]:
        self.tell(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
        return self.hear()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard


@contextmanager
def command(*arguments: str) -> Iterator[Command]:
    with subprocess.Popen(
        [ENVHIVE, "mcp", *arguments],
        env=plain_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Command(process)
        finally:
            process.kill()


@pytest.fixture
def closing_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment that prints when it is imported and leaves a file when it is closed."""
    (tmp_path / "closing.py").write_text(
        "from pathlib import Path\n"
        "from tests.support.tools import Shed\n"
        "print('imported')\n"
        "class Closing(Shed):\n"
        "    def close(self):\n"
        "        super().close()\n"
        f"        Path({str(tmp_path)!r}, 'closed').touch()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return "closing:Closing"


@pytest.mark.parametrize("how", ["eof", signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_it_ends_cleanly_and_closes_its_environment(closing_env: str, tmp_path: Path, how: Any, isolation: str) -> None:
    with command(closing_env, "--stdio", "--isolation", isolation) as run:
        assert run.ask("tools/call", name="add", arguments={"by": 3})["result"]["data"] == 3
        if how == "eof":
            assert run.process.stdin is not None
            run.process.stdin.close()
        else:
            run.process.send_signal(how)
        assert run.process.wait(15) == 0
        assert run.process.stdout is not None
        assert run.process.stderr is not None
        assert run.process.stdout.read() == ""
        said = run.process.stderr.read()
        assert "imported" in said
        assert "Traceback" not in said
    assert (tmp_path / "closed").exists()


def test_a_tool_that_cannot_be_stopped_does_not_keep_it(tmp_path: Path) -> None:
    with command(SHED, "--stdio") as run:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        run.tell(json.dumps({**call, "params": {"name": "block", "arguments": {"folder": str(tmp_path)}}}))
        eventually((tmp_path / "begun").exists, within=30)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(15) == 0


def test_what_was_asked_before_the_end_of_the_input_is_answered() -> None:
    calls = [
        {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
        for n in range(50)
    ]
    done = subprocess.run(
        [ENVHIVE, "mcp", SHED, "--stdio"],
        env=plain_environ(),
        input="\n".join(map(json.dumps, calls)),  # and no newline after the last
        capture_output=True,
        text=True,
        timeout=60,
    )
    answers = {reply["id"]: reply["result"]["data"] for reply in map(json.loads, done.stdout.splitlines())}
    assert answers == {n: n + 1 for n in range(50)}
    assert done.returncode == 0


def test_bad_lines_are_answered_and_harm_nothing() -> None:
    with command(SHED, "--stdio") as run:
        run.tell("")
        run.tell("nonsense")
        assert run.hear()["error"]["code"] == -32700
        run.tell("[]")
        assert run.hear()["error"]["code"] == -32600
        run.tell('{"jsonrpc": "2.0", "id": "a", "method": 5}')
        assert [(reply := run.hear())["id"], reply["error"]["code"]] == ["a", -32600]
        assert [(reply := run.ask("fly", "b"))["id"], reply["error"]["code"]] == ["b", -32601]
        run.tell('{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        assert run.ask("ping", "c") == {"jsonrpc": "2.0", "id": "c", "result": {}}


def test_without_stdio_it_says_how() -> None:
    done = subprocess.run([ENVHIVE, "mcp", "echo"], env=plain_environ(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "envhive mcp echo --stdio" in done.stderr
    assert "envhive serve echo" in done.stderr


def test_a_target_that_is_not_there_is_one_line_on_stderr() -> None:
    assert "no module 'nowhere'" in refused("mcp", "nowhere:Thing", "--stdio")
