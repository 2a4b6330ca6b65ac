"""What is asked of every shipped environment: the same episode wherever it is played, and many sessions at once."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from envhive import GenericEnvClient
from envhive.server.target import load_target
from tests.support.processes import envhive_serve
from tests.support.servers import eventually, running

REPOSITORY = Path(__file__).parents[2]

Episode = list[dict[str, Any]]


def play(env: Any, actions: list[Any], seed: int = 7, **reset: Any) -> Episode:
    """An episode from its first observation to its last, as JSON; the environment is closed."""
    try:
        seen = [env.reset(seed=seed, episode_id="e", **reset).model_dump(mode="json")]
        for action in actions:
            seen.append(env.step(action).model_dump(mode="json"))
            if seen[-1]["done"]:
                break
    finally:
        env.close()
    return seen


_ELSEWHERE = """
import importlib, json, sys
from tests.support.families import play
module, cls, action_cls, actions, settings, reset = json.load(sys.stdin)
module = importlib.import_module(module)
actions = [getattr(module, action_cls).model_validate(action) for action in actions]
print(json.dumps(play(getattr(module, cls)(**settings), actions, **reset)))
"""


def play_elsewhere(cls: type[Any], actions: list[Any], settings: dict[str, Any] | None = None, **reset: Any) -> Episode:
    """The same in a process of its own."""
    module = cls.__module__.rsplit(".", 1)[0]
    plain = [action.model_dump(mode="json") for action in actions]
    asked = [module, cls.__name__, type(actions[0]).__name__, plain, settings or {}, reset]
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    episode: Episode = json.loads(done.stdout)
    return episode


def _held(url: str, sessions: int, actions: list[Any], reset: dict[str, Any]) -> list[Episode]:
    # On a thread of its own: Playwright keeps an event loop running on the one that uses it.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_hold(url, sessions, actions, reset))).result()


async def _hold(url: str, sessions: int, actions: list[Any], reset: dict[str, Any]) -> list[Episode]:
    everyone_is_there = asyncio.Barrier(sessions)

    async def one() -> Episode:
        async with GenericEnvClient(url, message_timeout_s=120) as client:
            begun = await client.reset(seed=7, **reset)
            await everyone_is_there.wait()
            seen = [{"reward": begun.reward, "done": begun.done, **begun.observation}]
            for action in actions:
                result = await client.step(action)
                seen.append({"reward": result.reward, "done": result.done, **result.observation})
            await everyone_is_there.wait()
            return seen

    return await asyncio.gather(*(one() for _ in range(sessions)))


def episodes_held(
    name: str, sessions: int, actions: list[dict[str, Any]], settings: dict[str, Any] | None = None, **reset: Any
) -> list[Episode]:
    """What as many sessions saw that were open at the same time, on a real server. None is left when it returns."""
    app = load_target(name, settings).app
    with running(app, "fast") as server:
        episodes = _held(server.url, sessions, actions, reset)
        server.wait_until_empty()
    return episodes


def episodes_held_apart(name: str, sessions: int, actions: list[dict[str, Any]], **reset: Any) -> list[Episode]:
    """The same on a server in a process of its own."""
    with envhive_serve(name, "--max-sessions", str(sessions)) as server:
        episodes = _held(server.url, sessions, actions, reset)
        eventually(lambda: server.health()["active_sessions"] == 0)
    return episodes


def example_output(name: str, *arguments: str) -> str:
    """What examples/NAME.py prints, run against `envhive serve NAME ARGUMENTS`."""
    path = REPOSITORY / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) < 60
    with envhive_serve(name, *arguments) as server:
        command = [sys.executable, "-W", "error", str(path), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_of(module: Any) -> str:
    return Path(module.__file__).with_name("README.md").read_text(encoding="utf-8")


def fields_missing_from(readme: str, *models: Any) -> set[str]:
    """Fields of the models that no table of the README explains."""
    fields = {field for model in models for field in model.model_fields} - {"metadata"}
    return {field for field in fields if f"| `{field}`" not in readme}


def run_snippet(readme: str) -> str:
    """Run the README's snippet against the command that it names; returns what it promises to print."""
    (command,) = re.findall(r"```sh\nenvhive serve (\S+)\n```", readme)
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*)`\.", readme)
    with running(load_target(command).app, "fast") as server:
        exec(snippet.replace("http://localhost:8000", server.url), {"__name__": "readme"})
    return f"{promised}\n"
