"""The checks that authors run: each finds the fault it is for, and says it in plain words."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import uuid
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, field_serializer

from envhive import Action, Environment, MCPEnvironment, Observation, State, check_environment, tool
from envhive.checks import Finding, Report
from envhive.envs.benchmark import AsyncBenchmarkEnvironment, BenchmarkEnvironment
from envhive.envs.echo import EchoAction, EchoEnvironment

CHECKS = 8


class Say(Action):
    word: str = Field(min_length=1)


class Heard(Observation):
    word: str = ""
    extra: Any = None


class Ears(State):
    words: int = 0


class Sound(Environment[Say, Heard, Ears]):
    """Keeps the contract. The broken ones below change one thing each."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.heard = Ears()
        self.dice = random.Random()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        self.heard = Ears(episode_id=episode_id)
        self.dice = random.Random(seed)
        return Heard(extra=self.dice.random())

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self.heard.step_count += 1
        self.heard.words += len(action.word.split())
        return Heard(word=action.word, extra=self.dice.random(), reward=1.0)

    @property
    def state(self) -> Any:
        return self.heard


def findings(env: Any, **options: Any) -> dict[str, Finding]:
    """What is wrong with an environment, by check."""
    return {finding.check: finding for finding in check_environment(env, **options).findings}


def the_step_finding(env: Any) -> Finding:
    return findings(env)["step returns an observation"]


def the_only_finding(env: Any, **options: Any) -> Finding:
    report = check_environment(env, **options)
    assert len(report.findings) == 1, str(report)
    return report.findings[0]


# What passes.


@pytest.mark.parametrize("env", [EchoEnvironment, BenchmarkEnvironment, AsyncBenchmarkEnvironment, Sound])
def test_a_sound_environment_passes_every_check(env: type[Any]) -> None:
    report = check_environment(env)
    assert report
    assert report.findings == []
    assert len(report.passed) == CHECKS


def test_an_async_environment_is_awaited() -> None:
    class Async(Sound):
        async def reset(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return Sound.reset(self, *args, **kwargs)

        async def step(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return Sound.step(self, *args, **kwargs)

        async def close(self) -> None:  # type: ignore[override]
            await asyncio.sleep(0)

    assert check_environment(Async).findings == []


def test_the_async_forms_are_what_is_checked() -> None:
    class AsyncForms(Sound):
        async def step_async(self, *args: Any, **kwargs: Any) -> Any:
            return None

    assert the_step_finding(AsyncForms).problem == "step returns nothing."


def test_a_class_that_derives_from_nothing_may_pass() -> None:
    class Duck:
        def reset(self) -> Heard:
            return Heard()

        def step(self, action: Say) -> Heard:
            return Heard(word=action.word)

        @property
        def state(self) -> dict[str, int]:
            return {"words": 0}

    Duck.step.__annotations__ = {"action": Say, "return": Heard}  # local names cannot be resolved from text
    assert check_environment(Duck).findings == []


def a_listening_class(**attributes: Any) -> tuple[type[Sound], list[str]]:
    """A sound environment, and the words that are said to it."""
    seen: list[str] = []

    class Listening(Sound):
        def step(self, action: Say, *args: Any, **kwargs: Any) -> Any:
            seen.append(action.word)
            return super().step(action)

    return type("Listening", (Listening,), attributes), seen


def test_the_action_may_be_given() -> None:
    listening, seen = a_listening_class()
    assert check_environment(listening, action=Say(word="ahoy")).ok
    assert set(seen) == {"ahoy"}


def test_given_actions_are_taken_in_turn() -> None:
    listening, seen = a_listening_class(SUPPORTS_CONCURRENT_SESSIONS=False)
    assert check_environment(listening, action=[Say(word="one"), Say(word="two")], steps=3).ok
    one_step, two_episodes = ["one"], ["one", "two", "one"] * 2
    assert seen == one_step + two_episodes


def test_an_episode_that_ends_is_not_stepped_further() -> None:
    class Short(Sound):
        over = False

        def reset(self, *args: Any, **kwargs: Any) -> Any:
            self.over = False
            return super().reset(*args, **kwargs)

        def step(self, action: Say, *args: Any, **kwargs: Any) -> Any:
            if self.over:
                raise RuntimeError("the episode is over")
            self.over = True
            return Heard(done=True)

    assert check_environment(Short).findings == []


def test_every_instance_that_passes_is_closed_at_least_once() -> None:
    made: list[Any] = []
    closed: list[Any] = []

    class Noting(Sound):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    assert check_environment(Noting).ok
    assert made
    assert {id(env) for env in closed} == {id(env) for env in made}


# What does not.


def test_a_constructor_that_raises_is_told_and_ends_the_checks() -> None:
    class NeedsAMap(Sound):
        def __init__(self) -> None:
            raise FileNotFoundError("there is no map.txt")

    report = check_environment(NeedsAMap)
    assert not report
    assert [finding.check for finding in report.findings] == ["instances can be made"]
    assert report.findings[0].problem == "the constructor raised FileNotFoundError: there is no map.txt."
    assert report.passed == ["types are declared"]


def test_a_constructor_with_arguments_is_told() -> None:
    class NeedsASize(Sound):
        def __init__(self, size: int) -> None:
            super().__init__()

    finding = findings(NeedsASize)["instances can be made"]
    assert "the constructor raised TypeError" in finding.problem
    assert "'size'" in finding.problem


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_missing_method_is_named(method: str) -> None:
    methods = {"reset": lambda self: Heard(), "step": lambda self, action: Heard()}
    del methods[method]
    finding = findings(type("Half", (), methods))["instances can be made"]
    assert finding.problem == f"Half has no {method} method."
    assert f"def {method}" in finding.advice


def test_an_abstract_method_that_is_not_written_is_named() -> None:
    class Unfinished(Environment[Say, Heard, Ears]):
        def reset(self, *args: Any, **kwargs: Any) -> Heard:
            return Heard()

        @property
        def state(self) -> Ears:
            return Ears()

    assert "step" in findings(Unfinished)["instances can be made"].problem


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_method_that_returns_nothing_is_told(method: str) -> None:
    broken = type("Mute", (Sound,), {method: lambda self, *args, **kwargs: None})
    finding = findings(broken)[f"{method} returns an observation"]
    assert finding.level == "error"
    assert finding.problem == f"{method} returns nothing."


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_wrong_observation_type_is_told_with_both_types(method: str) -> None:
    broken = type("Mistaken", (Sound,), {method: lambda self, *args, **kwargs: Observation()})
    finding = findings(broken)[f"{method} returns an observation"]
    assert finding.level == "error"
    assert finding.problem == f"{method} returns Observation, but Heard is declared."


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_method_that_raises_is_told_with_what_it_raised(method: str) -> None:
    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("board")

    finding = findings(type("Falling", (Sound,), {method: fail}))[f"{method} returns an observation"]
    assert finding.problem == f"{method} raised KeyError: 'board'."


def test_an_observation_that_json_cannot_hold_is_told() -> None:
    class Opaque(Sound):
        def step(self, action: Say, *args: Any, **kwargs: Any) -> Any:
            return Heard(extra=object())

    finding = the_step_finding(Opaque)
    assert finding.level == "error"
    assert finding.problem.startswith("the observation of step cannot be sent as JSON")
    assert "object" in finding.problem
    assert "what JSON has" in finding.advice


def test_a_reward_of_a_wrong_type_is_told() -> None:
    class Scored(Observation):
        reward: Any = None

    class Generous(Environment[Say, Scored, State]):
        def reset(self, *args: Any, **kwargs: Any) -> Scored:
            return Scored()

        def step(self, action: Say, *args: Any, **kwargs: Any) -> Scored:
            return Scored(reward="high")

        @property
        def state(self) -> State:
            return State()

    finding, *_ = check_environment(Generous).findings  # and others, as its observations cannot be sent
    assert finding.level == "error"
    assert finding.problem == "step gives a reward of type str."
    assert "float(reward)" in finding.advice


def test_a_reward_that_is_no_number_is_told() -> None:
    class Diverging(Environment[Say, Observation, State]):
        def reset(self, *args: Any, **kwargs: Any) -> Observation:
            return Observation()

        def step(self, action: Say, *args: Any, **kwargs: Any) -> Observation:
            return Observation(reward=float("nan"))

        @property
        def state(self) -> State:
            return State()

    finding = the_only_finding(Diverging)
    assert finding.level == "error"
    assert finding.problem.startswith("step gives a reward of nan,")


def test_an_observation_that_a_typed_client_cannot_read_back_is_a_warning() -> None:
    class Dated(Observation):
        hour: int = 12

        @field_serializer("hour")
        def _in_words(self, hour: int) -> str:
            return "noon"

    class Clock(Environment[Say, Dated, State]):
        def reset(self, *args: Any, **kwargs: Any) -> Dated:
            return Dated()

        def step(self, action: Say, *args: Any, **kwargs: Any) -> Dated:
            return Dated()

        @property
        def state(self) -> State:
            return State()

    report = check_environment(Clock)
    assert report.ok
    assert [(finding.level, finding.check) for finding in report.findings] == [
        ("warning", "reset returns an observation"),
        ("warning", "step returns an observation"),
    ]
    assert "a typed client cannot read back the observation of step" in report.findings[1].problem
    assert "hour" in report.findings[1].problem


def test_a_state_that_is_a_method_is_told_with_the_cure() -> None:
    class Methodical(Sound):
        def state(self) -> Any:  # type: ignore[override]
            return Ears()

    finding = the_only_finding(Methodical)
    assert (finding.level, finding.check, finding.problem) == ("error", "state is a model", "state is a method.")
    assert "@property" in finding.advice


def test_a_wrong_state_type_is_told_with_both_types() -> None:
    class Mistaken(Sound):
        @property
        def state(self) -> Any:
            return State()

    assert the_only_finding(Mistaken).problem == "state returns State, but Ears is declared."


def test_two_types_of_one_name_are_told_apart_by_their_modules() -> None:
    copied = type("Ears", (State,), {"__module__": "copied.models"})

    class Mistaken(Sound):
        @property
        def state(self) -> Any:
            return copied()

    told = f"state returns copied.models.Ears, but {__name__}.Ears is declared."
    assert the_only_finding(Mistaken).problem == told


def test_a_state_may_be_of_any_model_where_none_is_declared() -> None:
    class Tally(BaseModel):
        step_count: int = 0

    class Quiet:
        SUPPORTS_CONCURRENT_SESSIONS = False
        state = property(lambda self: Tally())

        def reset(self) -> Heard:
            return Heard()

        def step(self, action: Say) -> Heard:
            return Heard(word=action.word)

    assert check_environment(Quiet).ok


@pytest.mark.parametrize(("value", "name"), [(None, "NoneType"), ([1], "list"), ("here", "str")])
def test_a_state_that_is_no_model_is_told(value: Any, name: str) -> None:
    broken = type("Stateless", (Sound,), {"state": property(lambda self: value)})
    assert the_only_finding(broken).problem == f"state returns {name}."


def test_a_state_that_json_cannot_hold_is_told() -> None:
    broken = type("Opaque", (Sound,), {"state": property(lambda self: {"it": object()})})
    assert the_only_finding(broken).problem.startswith("state cannot be sent as JSON")


def test_a_state_that_raises_is_told() -> None:
    def fail(self: Any) -> Any:
        raise RuntimeError("no board yet")

    finding = the_only_finding(type("Raising", (Sound,), {"state": property(fail)}))
    assert finding.problem == "state raised RuntimeError: no board yet."


@pytest.mark.parametrize(("method", "where"), [("reset", "reset"), ("step", "step 1")])
def test_an_episode_that_the_seed_does_not_decide_is_a_warning(method: str, where: str) -> None:
    numbers = itertools.count()
    broken = type("Moody", (Sound,), {method: lambda self, *args, **kwargs: Heard(extra=next(numbers))})
    finding = the_only_finding(broken, seed=7)
    assert finding.level == "warning"
    assert finding.check == "the same seed brings the same episode"
    differ = f"two episodes with seed 7 and the same actions differ at {where}"
    assert finding.problem == f"{differ}, in observation.extra."


def test_a_close_that_fails_the_second_time_is_told() -> None:
    class Once(Sound):
        closed = False

        def close(self) -> None:
            if self.closed:
                raise ValueError("closed already")
            self.closed = True

    finding = the_only_finding(Once)
    assert finding.check == "close may be called twice"
    assert finding.problem == "a second close() fails: close raised ValueError: closed already."


class Shared(Sound):
    """All instances add up in one place, which `reset` clears."""

    total: ClassVar[int] = 0

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        Shared.total = 0
        return super().reset(*args, **kwargs)

    def step(self, action: Say, *args: Any, **kwargs: Any) -> Any:
        Shared.total += 1
        return Heard(extra=Shared.total)


def test_state_on_the_class_is_found_where_concurrency_is_claimed() -> None:
    finding = the_only_finding(Shared)
    assert finding.level == "error"
    assert finding.check == "instances share no state"
    assert "while another instance is being used" in finding.problem
    assert "Keep all state on the instance" in finding.advice


def test_state_on_the_class_is_no_fault_where_none_is_claimed() -> None:
    assert check_environment(type("Alone", (Shared,), {"SUPPORTS_CONCURRENT_SESSIONS": False})).findings == []


def test_a_factory_that_hands_out_one_instance_is_found_where_concurrency_is_claimed() -> None:
    only = Sound()
    finding = the_only_finding(lambda: only, action=Say(word="hello"))
    assert "the same instance twice" in finding.problem


def test_a_factory_that_hands_out_one_instance_is_told_also_where_none_is_claimed() -> None:
    only = type("Alone", (Sound,), {"SUPPORTS_CONCURRENT_SESSIONS": False})()
    finding = the_only_finding(lambda: only, action=Say(word="hello"))
    assert (finding.level, finding.check) == ("warning", "instances share no state")
    assert "what the last one has closed" in finding.problem


class Named(Sound):
    """Names each episode anew."""

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        super().reset(*args, **kwargs)
        return Heard(extra={"log": [{"episode_id": str(uuid.uuid4()), "turn": 1}]})


def test_an_episode_may_have_another_name_each_time() -> None:
    assert check_environment(Named).findings == []


class Vague:
    """Says nothing about its models."""

    def reset(self):  # type: ignore[no-untyped-def]
        return {"x": 1}

    def step(self, action):  # type: ignore[no-untyped-def]
        return {"x": 2}

    state: ClassVar[dict[str, int]] = {}


def test_a_class_that_declares_no_models_is_a_warning() -> None:
    finding = the_only_finding(Vague, action=Say(word="hello"))
    assert finding.level == "warning"
    assert finding.problem == "Vague does not say what its action and observation is."


def test_an_unknown_action_is_asked_for() -> None:
    finding = the_step_finding(Vague)
    assert finding.problem == "no action to step with is known."
    assert "action=" in finding.advice


def test_an_action_class_may_be_named_where_the_environment_names_none() -> None:
    assert check_environment(lambda: EchoEnvironment(), action_cls=EchoAction).findings == []


def test_an_action_that_cannot_be_made_up_is_asked_for() -> None:
    class Code(Action):
        digits: str = Field(pattern="^[0-9]{4}$")

    finding = findings(Sound, action_cls=Code)["step returns an observation"]
    assert finding.level == "warning"
    assert finding.problem.startswith("no valid Code could be made up")
    assert "action=" in finding.advice


# How it is reported.


def test_a_warning_alone_does_not_break_the_contract() -> None:
    warning = Finding("warning", "seed", "It varies.", "Seed it.")
    error = Finding("error", "step", "It fails.", "Mend it.")
    assert Report("Game", findings=[warning]).ok
    assert not Report("Game", findings=[warning, error]).ok


def test_a_report_reads_as_text() -> None:
    report = Report("Game", passed=["a", "b"], findings=[Finding("error", "step", "It fails.", "Mend it.")])
    assert str(report) == "Game breaks the contract (2 checks passed)\nerror: step: It fails. Mend it."


# Faults of the checks themselves.


def test_a_task_that_outlives_reset_is_still_there_in_step() -> None:
    class Background(Sound):
        async def reset(self, *args: Any, **kwargs: Any) -> Any:
            self.answer = asyncio.get_running_loop().create_task(self.think())
            return Heard()

        async def think(self) -> str:
            for _ in range(3):
                await asyncio.sleep(0)
            return "42"

        async def step(self, action: Say, *args: Any, **kwargs: Any) -> Any:
            return Heard(word=await self.answer)

    assert check_environment(Background).findings == []


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_async_environment_can_be_checked_from_a_notebook() -> None:
    async def cell() -> Report:
        return check_environment(AsyncBenchmarkEnvironment)

    assert asyncio.run(cell()).findings == []


def test_an_environment_that_exits_is_a_finding_and_not_the_end() -> None:
    class Leaving(Sound):
        def __init__(self) -> None:
            sys.exit(3)

    assert "SystemExit" in findings(Leaving)["instances can be made"].problem


def test_a_function_without_annotations_is_checked_like_its_class() -> None:
    assert check_environment(lambda: EchoEnvironment()).findings == []


def test_an_episode_of_dicts_that_ends_is_not_stepped_further() -> None:
    class Dicts:
        over = False

        def reset(self) -> dict[str, Any]:
            self.over = False
            return {"x": 0}

        def step(self, action: Any) -> dict[str, Any]:
            if self.over:
                raise RuntimeError("the episode is over")
            self.over = True
            return {"x": 1, "done": True}

        state: ClassVar[dict[str, int]] = {}

    assert check_environment(Dicts, action=Say(word="hello")).ok


def test_an_environment_of_tools_is_stepped_with_its_own_tools() -> None:
    called: list[int] = []

    class Dice(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
            return Observation()

        @tool
        def roll(self, sides: int) -> int:
            """Roll a die."""
            called.append(sides)
            return sides

        @property
        def state(self) -> State:
            return State()

    report = check_environment(Dice)
    assert (report.findings, len(report.passed)) == ([], CHECKS)
    assert called


def test_the_checks_tell_what_they_are_about_to_do() -> None:
    told: list[str] = []
    report = check_environment(EchoEnvironment, on_check=told.append)
    assert told == report.passed
