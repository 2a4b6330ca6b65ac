"""What holds for each of the environments that ship, whatever it is made of."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from envhive.cli import main
from envhive.cli.shared import parse_settings
from envhive.envs import SHIPPED
from envhive.envs.policies import RANDOM_POLICIES
from envhive.errors import TargetError
from envhive.inspection import infer_models
from envhive.server.target import load_target
from tests.support.families import (
    FAMILIES,
    POLICIES,
    SEED,
    each_family,
    environment_class,
    played,
    played_at_once,
    readme_of,
    run_example,
    served,
    without_metadata,
)

FOR_LOOKING_AND_MEASURING = {"echo", "benchmark", "benchmark-async"}


def test_the_table_has_them_all() -> None:
    assert SHIPPED.keys() == FAMILIES.keys() | FOR_LOOKING_AND_MEASURING
    assert SHIPPED.keys() == RANDOM_POLICIES.keys()


@each_family()
def test_it_passes_validation(name: str) -> None:
    sessions = min(8, FAMILIES[name].sessions // 2)
    patience = ["--timeout", "120"]  # a starved machine takes long to start browsers
    told = CliRunner().invoke(main, ["validate", name, "--sessions", str(sessions), "--strict", *patience])
    assert told.exit_code == 0, told.output
    assert "0 error(s), 0 warning(s)" in told.output


@each_family()
def test_a_script_earns_what_it_should_and_seeds_make_the_difference(name: str) -> None:
    first = played(name, "scripted", SEED)
    assert sum(seen["reward"] or 0.0 for seen in first) == FAMILIES[name].earns
    others = (played(name, "scripted", seed) for seed in range(SEED + 1, SEED + 6))
    assert any(other != first for other in others) == FAMILIES[name].has_chance


@each_family()
def test_the_same_seed_and_actions_bring_the_same_episode_in_many_sessions_at_once_and_in_another_process(
    name: str,
) -> None:
    here = [without_metadata(played(name, policy, SEED)) for policy in POLICIES]
    assert all(len(episode) > 1 for episode in here)
    there = played_at_once(name, [(policy, SEED) for policy in POLICIES])
    assert len(there) == FAMILIES[name].sessions
    for at, episode in enumerate(there):
        assert without_metadata(episode) == here[at % len(POLICIES)], f"session {at} saw something else"


@each_family()
def test_a_step_without_an_episode_is_refused(name: str) -> None:
    cls = environment_class(name)
    env = cls(**FAMILIES[name].settings)
    action = infer_models(cls)[0].model_validate(FAMILIES[name].script[0])
    try:
        with pytest.raises(RuntimeError, match="reset first"):
            env.step(action)
        env.reset(seed=1, episode_id="mine")
        assert (env.state.episode_id, env.state.step_count) == ("mine", 0)
    finally:
        env.close()


@each_family(of=lambda family: family.bad)
def test_bad_settings_are_refused_before_the_server_starts(name: str) -> None:
    (value,) = FAMILIES[name].bad.values()
    with pytest.raises(TargetError, match=re.escape(str(value).removesuffix("-v0"))):
        load_target(name, FAMILIES[name].bad)


@each_family()
def test_the_readme_names_every_field_and_setting(name: str) -> None:
    cls, readme = environment_class(name), readme_of(name)
    action_cls, observation_cls = infer_models(cls)
    fields = (action_cls.model_fields | observation_cls.model_fields).keys() - {"metadata"}
    assert not {each for each in fields if f"| `{each}` |" not in readme}
    settings = cls.__init__.__annotations__.keys() - {"return", "options", "transform"}
    assert not {setting for setting in settings if f"`{setting}`" not in readme}


@each_family()
def test_the_readmes_commands_and_snippet_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", readme_of(name), re.DOTALL)
    *install, serve = commands.splitlines()
    assert install == ([f"pip install 'envhive[{SHIPPED[name].extra}]'"] if SHIPPED[name].extra else [])
    _, _, target, *options = shlex.split(serve)
    assert target == name
    settings = parse_settings(None, None, tuple(options[1::2]))  # type: ignore[arg-type]
    (snippet,) = re.findall(r"```python\n(.*?)```", readme_of(name), re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*)`\.", readme_of(name))
    with served(target, **settings) as url:
        exec(snippet.replace("http://localhost:8000", url), {"__name__": "readme"})
    assert capsys.readouterr().out == f"{promised}\n"


@each_family()
def test_its_example_plays_it(name: str) -> None:
    assert re.match(FAMILIES[name].example, run_example(name))


@pytest.mark.parametrize("name", [name for name in FAMILIES if SHIPPED[name].modules])
def test_its_models_can_be_had_without_its_packages(name: str) -> None:
    package = SHIPPED[name].reference.split(":")[0]
    blocked: dict[str, Any] = dict.fromkeys(SHIPPED[name].modules)
    script = f"import sys\nsys.modules.update({blocked})\nimport {package}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
