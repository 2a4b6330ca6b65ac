"""What every environment that ships must show, whichever library it is made of."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envhive import GenericEnvClient
from envhive.envs import SHIPPED
from envhive.envs.policies import RANDOM_POLICIES
from envhive.inspection import infer_models
from envhive.server.target import load_target
from tests.support.processes import envhive_serve
from tests.support.servers import running

REPOSITORY = Path(__file__).parents[2]
SESSIONS = 64
SEEDS = 4


def environment_class(name: str) -> type[Any]:
    module, _, attribute = SHIPPED[name].reference.partition(":")
    found: type[Any] = getattr(__import__(module, fromlist=[attribute]), attribute)
    return found


def transcript(name: str, seed: int, steps: int, reset: dict[str, Any] | None = None, **settings: Any) -> list[Any]:
    """What the random policy sees in an episode: the same for the same seed."""
    cls = environment_class(name)
    env, action_cls, choice = cls(**settings), infer_models(cls)[0], random.Random(seed)
    try:
        seen = [env.reset(seed=seed, **(reset or {})).model_dump(mode="json")]
        while len(seen) <= steps and not seen[-1]["done"]:
            action = action_cls.model_validate(RANDOM_POLICIES[name](choice, seen[-1]))
            seen.append(env.step(action).model_dump(mode="json"))
    finally:
        env.close()
    return seen


def digest(*transcripts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(transcripts, sort_keys=True).encode()).hexdigest()


def in_another_process(expression: str) -> str:
    """What an expression is there, where texts have other hashes; the names of this module are at hand."""
    script = f"from tests.support.shipped import *\nvalue = {expression}\nprint('value:', value)"
    environ = {**os.environ, "PYTHONHASHSEED": str(random.SystemRandom().randrange(1, 2**32))}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("value: ")[2].strip()


@contextmanager
def served(name: str, **settings: Any) -> Iterator[str]:
    with running(load_target(name, settings).app, "fast") as server:
        yield server.url


def hold_sessions(name: str, steps: int, **settings: Any) -> None:
    """64 sessions at once, all of them in the midst of an episode: each sees what its seed brings, and no error."""

    async def play(env: GenericEnvClient, seed: int, everyone: asyncio.Barrier) -> list[Any]:
        choice = random.Random(seed)
        result = await env.reset(seed=seed)
        await everyone.wait()
        seen = [_seen(result)]
        while len(seen) <= steps and not seen[-1]["done"]:
            seen.append(_seen(await env.step(RANDOM_POLICIES[name](choice, seen[-1]))))
        return seen

    async def all_play(url: str) -> list[list[Any]]:
        everyone = asyncio.Barrier(SESSIONS)
        clients = [GenericEnvClient(url, connect_timeout_s=60) for _ in range(SESSIONS)]
        try:
            return await asyncio.gather(*(play(env, at % SEEDS, everyone) for at, env in enumerate(clients)))
        finally:
            await asyncio.gather(*(env.close() for env in clients))

    with served(name, **settings) as url:
        seen = asyncio.run(all_play(url))
    alone = [transcript(name, seed, steps, **settings) for seed in range(SEEDS)]
    for at, episode in enumerate(seen):
        assert digest(_comparable(episode)) == digest(_comparable(alone[at % SEEDS])), (
            f"session {at} saw something else"
        )


def _seen(result: Any) -> dict[str, Any]:
    return {**result.observation, "reward": result.reward, "done": result.done}


def _comparable(episode: list[dict[str, Any]]) -> list[Any]:
    """Without what does not travel where there is none of it."""
    return [{key: value for key, value in seen.items() if key != "metadata"} for seen in episode]


def run_example(name: str) -> str:
    """What examples/NAME.py prints, against a server that was started as its first lines say."""
    script = REPOSITORY / "examples" / f"{name}.py"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60
    command = next(line.strip() for line in lines if line.strip().startswith("envhive serve "))
    with envhive_serve(*command.split()[2:]) as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script), server.url], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    return done.stdout
