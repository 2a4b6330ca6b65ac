"""What holds for each environment that ships and is made of somebody else's library."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envhive import check_environment
from envhive.cli.serve import parse_settings
from envhive.envs import SHIPPED
from envhive.envs.policies import RANDOM_POLICIES
from envhive.errors import TargetError
from envhive.inspection import infer_models
from envhive.server.target import load_target
from tests.support.shipped import (
    digest,
    environment_class,
    hold_sessions,
    in_another_process,
    run_example,
    served,
    transcript,
)

STEPS = {"atari": 30, "gymnasium": 30, "openspiel": 50, "reasoning_gym": 1, "textarena": 8}
BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "atari": {"game": "chess"},
    "gymnasium": {"env_id": "Nowhere-v0"},
    "openspiel": {"game": "football"},
    "reasoning_gym": {"dataset": "gossip"},
    "textarena": {"game": "Gossip-v0"},
}
families = pytest.mark.parametrize("name", [name for name in STEPS if not SHIPPED[name].missing()])


@pytest.mark.parametrize("name", STEPS)
def test_its_packages_are_here(name: str) -> None:
    for module in SHIPPED[name].modules:
        pytest.importorskip(module, reason=SHIPPED[name].hint())


def test_every_environment_has_a_random_policy() -> None:
    assert SHIPPED.keys() == RANDOM_POLICIES.keys()


@families
def test_it_keeps_the_contract(name: str) -> None:
    assert check_environment(environment_class(name)).findings == []


@families
def test_a_seed_brings_the_same_episode_here_and_in_another_process(name: str) -> None:
    first = [transcript(name, seed, STEPS[name]) for seed in (7, 8)]
    assert first == [transcript(name, seed, STEPS[name]) for seed in (7, 8)]
    there = in_another_process(f"digest(*(transcript({name!r}, seed, {STEPS[name]}) for seed in (7, 8)))")
    assert there == digest(*first)


@families
def test_different_seeds_bring_different_episodes(name: str) -> None:
    assert len({digest(transcript(name, seed, STEPS[name])) for seed in range(5)}) > 1


@families
def test_64_sessions_hold_and_leave_one_another_alone(name: str) -> None:
    hold_sessions(name, steps=min(STEPS[name], 12), **({"frame": "ram"} if name == "atari" else {}))


@families
def test_a_step_without_an_episode_is_refused(name: str) -> None:
    cls = environment_class(name)
    env = cls()
    (action,) = [infer_models(cls)[0].model_validate(RANDOM_POLICIES[name](_First(), {"legal_actions": [0]}))]
    with pytest.raises(RuntimeError, match="reset first"):
        env.step(action)
    env.reset(seed=1, episode_id="mine")
    assert (env.state.episode_id, env.state.step_count) == ("mine", 0)
    env.close()


class _First:
    """A generator without chance."""

    def choice(self, items: Any) -> Any:
        return items[0]

    def randrange(self, *limits: int) -> int:
        return 0


@families
def test_bad_settings_are_refused_before_the_server_starts(name: str) -> None:
    (value,) = BAD_SETTINGS[name].values()
    with pytest.raises(TargetError, match=value.removesuffix("-v0")):
        load_target(name, BAD_SETTINGS[name])


@families
def test_the_readme_names_every_field_and_setting(name: str) -> None:
    cls = environment_class(name)
    action_cls, observation_cls = infer_models(cls)
    fields = (action_cls.model_fields | observation_cls.model_fields).keys() - {"metadata"}
    assert not {field for field in fields if f"| `{field}` |" not in readme(name)}
    settings = {word for word in cls.__init__.__annotations__ if word not in ("return", "options")}
    assert not {setting for setting in settings if f"`{setting}`" not in readme(name)}


@families
def test_the_readmes_command_and_snippet_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", readme(name), re.DOTALL)
    install, serve = commands.splitlines()
    assert install == f"pip install 'envhive[{SHIPPED[name].extra}]'"
    _, _, target, *options = shlex.split(serve)
    assert target == name
    settings = parse_settings(None, None, tuple(options[1::2]))  # type: ignore[arg-type]
    (snippet,) = re.findall(r"```python\n(.*?)```", readme(name), re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*)`\.", readme(name))
    with served(target, **settings) as url:
        exec(snippet.replace("http://localhost:8000", url), {"__name__": "readme"})
    assert capsys.readouterr().out == f"{promised}\n"


def readme(name: str) -> str:
    module = sys.modules[environment_class(name).__module__]
    return Path(str(module.__file__)).with_name("README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STEPS)
def test_its_models_can_be_had_without_its_packages(name: str) -> None:
    package = SHIPPED[name].reference.split(":")[0]
    blocked = dict.fromkeys(SHIPPED[name].modules)
    script = f"import sys\nsys.modules.update({blocked})\nimport {package}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@families
def test_its_example_plays_it(name: str) -> None:
    promised = {
        "atari": r"500 steps, 2000 frames, score -?\d",
        "gymnasium": r"(seed \d: balanced for 500 steps\n){3}",
        "openspiel": r"20 won, 0 drawn, 0 lost",
        "reasoning_gym": r"10 of 10 right",
        "textarena": r"(seed \d: \[\w{5}\] after \d guesses, reward 1\.00\n){5}",
    }
    assert re.match(promised[name], run_example(name))
