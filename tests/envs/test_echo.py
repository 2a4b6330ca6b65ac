"""The echo environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import envhive.envs.echo
from envhive import check_environment
from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation
from envhive.server.target import load_target
from tests.support.servers import running

README = Path(envhive.envs.echo.__file__).with_name("README.md").read_text(encoding="utf-8")


@pytest.fixture
def echo() -> EchoEnvironment:
    env = EchoEnvironment()
    env.reset()
    return env


def test_it_keeps_the_contract() -> None:
    report = check_environment(EchoEnvironment)
    assert report.findings == []


def test_an_episode_begins_without_a_reward() -> None:
    observation = EchoEnvironment().reset()
    assert observation.echoed_message == "Echo environment ready!"
    assert observation.reward is None
    assert not observation.done


@given(st.text(min_size=1))
def test_it_says_back_what_it_is_told_and_rewards_the_length(message: str) -> None:
    env = EchoEnvironment()
    env.reset()
    observation = env.step(EchoAction(message=message))
    assert observation.echoed_message == message
    assert observation.message_length == len(message)
    assert observation.reward == pytest.approx(len(message) / 10)
    assert not observation.done


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(ValidationError, match="message"):
        EchoAction(message="")


def test_steps_are_counted_from_reset(echo: EchoEnvironment) -> None:
    for _ in range(3):
        echo.step(EchoAction(message="hi"))
    assert echo.state.step_count == 3
    echo.reset()
    assert echo.state.step_count == 0


def test_an_episode_has_the_id_it_is_given(echo: EchoEnvironment) -> None:
    echo.reset(episode_id="mine")
    assert echo.state.episode_id == "mine"


def test_an_episode_without_an_id_gets_one_of_its_own(echo: EchoEnvironment) -> None:
    first = echo.state.episode_id
    echo.reset()
    assert first
    assert echo.state.episode_id not in (None, first)


def test_instances_share_nothing(echo: EchoEnvironment) -> None:
    other = EchoEnvironment()
    other.reset()
    other.step(EchoAction(message="hi"))
    assert echo.state.step_count == 0


def test_the_readme_names_every_field() -> None:
    fields = (EchoAction.model_fields | EchoObservation.model_fields).keys() - {"metadata"}
    assert not {field for field in fields if f"| `{field}` |" not in README}


def test_the_snippet_of_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"```sh\nenvhive serve (\S+)\n```", README)
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (promised,) = re.findall(r"It prints `(.*)`\.", README)
    with running(load_target(command).app, "fast") as server:
        exec(snippet.replace("http://localhost:8000", server.url), {"__name__": "readme"})
    assert capsys.readouterr().out == f"{promised}\n"
