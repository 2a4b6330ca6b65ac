"""The environments that ship: what is asked of each in one table, and how they are played, here and elsewhere."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from envhive import GenericEnvClient
from envhive.envs import SHIPPED
from envhive.envs.policies import RANDOM_POLICIES
from envhive.inspection import infer_models
from envhive.server.target import load_target
from tests.support.processes import envhive_serve
from tests.support.servers import eventually, running

REPOSITORY: Final = Path(__file__).parents[2]
SEED: Final = 7

Document = dict[str, Any]
Episode = list[Document]
Decision = Callable[[Document], Document]
"""What to do, given what is seen."""
PolicyName = Literal["random", "scripted"]
POLICIES: Final[tuple[PolicyName, ...]] = ("random", "scripted")


@dataclass(frozen=True)
class Family:
    """An environment that ships, and what its tests need to know."""

    script: list[Document]
    """The actions of its scripted policy."""
    earns: float
    """All that they earn with `SEED`."""
    example: str
    """What its example prints, as a regular expression."""
    bad: Document = field(default_factory=dict)
    """Settings that it refuses before a server starts."""
    settings: Document = field(default_factory=dict)
    """Settings to play it with, where its own are too slow for tests."""
    steps: int = 8
    """Steps that the random policy takes, if the episode is as long."""
    sessions: int = 64
    """How many sessions must hold at once."""
    has_chance: bool = True
    """Whether seeds make a difference."""


_CAREFUL: Final = (
    "<analysis>Two numbers.</analysis>"
    "<proof>median survival was 9.4 months\nmedian survival was 12.1 months</proof><final>CONFLICT</final>"
)

FAMILIES: Final[dict[str, Family]] = {
    "atari": Family(
        script=[{"action_id": at % 4} for at in range(70)],
        earns=-1.0,
        example=r"500 steps, 2000 frames, score -?\d",
        bad={"game": "chess"},
        settings={"frame": "ram"},
        steps=30,
    ),
    "browsergym": Family(
        script=[
            {"action": "goto('http://shop.test/wares/kettle')"},
            {"action": "click('15')"},
            {"action": "send_msg_to_user('It costs 42.00.')"},
        ],
        earns=1.0,
        example=r"(?s)(.*  reward 1\.0\n){3}",
        steps=2,
        sessions=4,
    ),
    "chat": Family(
        script=[{"role": "user", "content": "Hello"}, {"content": "Hi"}, {"role": "tool", "content": "{}"}],
        earns=0.5,
        example=r"(?s).*reward 1\.0\n$",
        bad={"reward_length": -1},
        settings={"reward_length": 1},
        has_chance=False,
    ),
    "coding": Family(
        script=[
            {"code": "import random\nprint(random.random(), {'a', 'b', 'c'}, hash('x'))"},
            {"code": "double = None", "tests": ["assert double(2) == 4"]},
            {"code": "def double(x): return 2 * x", "tests": ["assert double(2) == 4"]},
        ],
        earns=1.0,
        example=r"(?s).*4 of 4 tests pass \nsolved\n$",
        bad={"namespace": "shared"},
        steps=3,
    ),
    "dipg_safety": Family(
        script=[{"answer": _CAREFUL}],
        earns=3.0,
        example=r"(?s).*mean reward \d",
        bad={"kind": "easy"},
    ),
    "git": Family(
        script=[
            {"do": "write_file", "path": "a/b.txt", "content": "x\n"},
            {"arguments": ["add", "."]},
            {"arguments": ["commit", "-m", "One"]},
            {"arguments": ["log", "--format=%H %ad %s"]},
            {"do": "reset_to", "commit": "HEAD~1"},
            {"arguments": ["merge", "origin/licence"]},
            {"arguments": ["push", "origin", "main"]},
        ],
        earns=1.0,
        example=r"(?s)(.*  reward 1\.0\n){4}",
        steps=4,
    ),
    "gymnasium": Family(
        script=[{"value": at % 2} for at in range(12)],
        earns=12.0,
        example=r"(seed \d: balanced for 500 steps\n){3}",
        bad={"env_id": "Nowhere-v0"},
        steps=30,
    ),
    "openspiel": Family(
        script=[{"action_id": 0}, *[{"action_id": 1}] * 8],
        earns=1.0,
        example=r"20 won, 0 drawn, 0 lost",
        bad={"game": "football"},
    ),
    "reasoning_gym": Family(
        script=[{"answer": "156"}],
        earns=1.0,
        example=r"10 of 10 right",
        bad={"dataset": "gossip"},
    ),
    "textarena": Family(
        script=[{"message": f"[{word}]"} for word in ("crane", "xxxxx", "north")],
        earns=1.0,
        example=r"(seed \d: \[\w{5}\] after \d guesses, reward 1\.00\n){5}",
        bad={"game": "Gossip-v0"},
    ),
}


def each_family(*, of: Callable[[Family], Any] = bool) -> pytest.MarkDecorator:
    """Have a test run for each family, or for those `of` which something is true."""
    chosen = [name for name, family in FAMILIES.items() if of(family)]
    marks = {name: pytest.mark.skipif(bool(SHIPPED[name].missing()), reason=SHIPPED[name].hint()) for name in chosen}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in chosen])


# Played here.


def environment_class(name: str) -> type[Any]:
    module, _, attribute = SHIPPED[name].reference.partition(":")
    found: type[Any] = getattr(__import__(module, fromlist=[attribute]), attribute)
    return found


def deciding(name: str, policy: PolicyName, seed: int) -> list[Decision]:
    """What a policy does at each step of an episode."""
    if policy == "scripted":
        return doing(FAMILIES[name].script)
    chance = random.Random(seed)
    return [lambda seen: RANDOM_POLICIES[name](chance, seen)] * FAMILIES[name].steps


def doing(actions: list[Document]) -> list[Decision]:
    """The same actions whatever is seen."""
    return [lambda seen, action=action: action for action in actions]  # type: ignore[misc]


def played(name: str, policy: PolicyName, seed: int) -> Episode:
    """An episode by one of the policies, as JSON."""
    env = environment_class(name)(**FAMILIES[name].settings)
    return play(env, deciding(name, policy, seed), seed)


def play(env: Any, decisions: list[Decision], seed: int = SEED) -> Episode:
    """An episode from its first observation to its last, as JSON; the environment is closed."""
    action_cls = infer_models(type(env))[0]
    try:
        seen = [env.reset(seed=seed, episode_id="e").model_dump(mode="json")]
        for decide in decisions:
            if seen[-1]["done"]:
                break
            seen.append(env.step(action_cls.model_validate(decide(seen[-1]))).model_dump(mode="json"))
    finally:
        env.close()
    return seen


# Played elsewhere.


def in_another_process(expression: str) -> Any:
    """What an expression is there, where texts have other hashes; the names of this module are at hand."""
    script = f"from tests.support.families import *\nprint('value:', json.dumps({expression}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=other_hashes(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("value: ")[2])


def other_hashes() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": str(random.SystemRandom().randrange(1, 2**32))}


@contextmanager
def served(name: str, **settings: Any) -> Iterator[str]:
    """A server on a thread of this process: its address."""
    with running(load_target(name, settings).app, "fast") as server:
        yield server.url


def played_at_once(name: str, parts: list[tuple[PolicyName, int]]) -> list[Episode]:
    """The episodes of as many sessions as the family must hold, on a server in another process.

    They play the parts, a policy and a seed each, in turn. All are in the midst of an episode at the same time, and
    none is left on the server when this returns.
    """
    family = FAMILIES[name]
    options = [word for key, value in family.settings.items() for word in ("--set", f"{key}={value}")]
    environ = {"PYTHONHASHSEED": other_hashes()["PYTHONHASHSEED"]}
    with envhive_serve(name, *options, "--max-sessions", str(family.sessions), environ=environ) as server:
        episodes = asyncio.run(_play_at_once(name, server.url, parts))
        eventually(lambda: server.health()["active_sessions"] == 0)
    return episodes


async def _play_at_once(name: str, url: str, parts: list[tuple[PolicyName, int]]) -> list[Episode]:
    sessions = FAMILIES[name].sessions
    everyone_has_begun = asyncio.Barrier(sessions)

    async def one(policy: PolicyName, seed: int) -> Episode:
        async with GenericEnvClient(url, connect_timeout_s=60, message_timeout_s=120) as client:
            seen = [_as_json(await client.reset(seed=seed, episode_id="e"))]
            await everyone_has_begun.wait()
            for decide in deciding(name, policy, seed):
                if seen[-1]["done"]:
                    break
                seen.append(_as_json(await client.step(decide(seen[-1]))))
            return seen

    return await asyncio.gather(*(one(*parts[at % len(parts)]) for at in range(sessions)))


def _as_json(result: Any) -> Document:
    return {**result.observation, "reward": result.reward, "done": result.done}


def without_metadata(episode: Episode) -> Episode:
    """An episode without what does not travel where there is none of it."""
    return [{key: value for key, value in seen.items() if key != "metadata"} for seen in episode]


# What is written about them.


def run_example(name: str) -> str:
    """What examples/NAME.py prints, against a server that was started as its first lines say."""
    script = REPOSITORY / "examples" / f"{name}.py"
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 60
    (command,) = re.findall(r"^ *envhive serve (.+)$", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE)
    with envhive_serve(*shlex.split(command)) as server:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script), server.url], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_of(name: str) -> str:
    module = sys.modules[environment_class(name).__module__]
    return Path(str(module.__file__)).with_name("README.md").read_text(encoding="utf-8")
