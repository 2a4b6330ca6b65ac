"""Rubrics: scores, components, and waiting for those that take time."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from envhive import Action, Environment, Observation, State
from envhive.rubrics import (
    ExponentialDiscountingTrajectoryRubric,
    Gate,
    LLMJudge,
    Rubric,
    RubricDict,
    RubricList,
    Sequential,
    TrajectoryRubric,
    WeightedSum,
)


class Fixed(Rubric):
    def __init__(self, score: float) -> None:
        self.score = score
        self.asked = 0

    def forward(self, action: Any, observation: Any) -> float:
        self.asked += 1
        return self.score


class Slow(Fixed):
    async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().forward(action, observation)


Leaf = type[Fixed]


def score_of(rubric: Rubric) -> float:
    """A rubric's score, waited for if need be."""
    result = rubric("action", SimpleNamespace(done=False))
    if inspect.isawaitable(result):

        async def wait() -> Any:
            return await result

        result = asyncio.run(wait())
    return float(result)


# Containers, with children that are plain and with children that are coroutines.

both = pytest.mark.parametrize("leaf", [Fixed, Slow])


@both
@pytest.mark.parametrize(
    ("scores", "expected", "asked"),
    [((0.5, 0.25), 0.25, (1, 1)), ((0.0, 0.9), 0.0, (1, 0)), ((0.9, 0.0, 0.5), 0.0, (1, 1, 0)), ((), 1.0, ())],
)
def test_a_sequence_stops_at_the_first_zero(
    leaf: Leaf, scores: tuple[float, ...], expected: float, asked: tuple[int, ...]
) -> None:
    rubrics = [leaf(score) for score in scores]
    sequence = Sequential(*rubrics)
    assert score_of(sequence) == expected
    assert tuple(rubric.asked for rubric in rubrics) == asked
    assert sequence.last_score == expected


@pytest.mark.parametrize("kinds", [(Fixed, Slow), (Slow, Fixed), (Fixed, Slow, Fixed)])
def test_a_sequence_may_mix_plain_rubrics_and_coroutines(kinds: tuple[Leaf, ...]) -> None:
    rubrics = [kind(0.5 + number / 10) for number, kind in enumerate(kinds)]
    assert score_of(Sequential(*rubrics)) == pytest.approx(0.5 + (len(kinds) - 1) / 10)
    assert [rubric.asked for rubric in rubrics] == [1] * len(kinds)


@both
@pytest.mark.parametrize(("score", "expected"), [(0.4, 0.0), (0.5, 0.5), (0.9, 0.9)])
def test_a_gate_opens_at_its_threshold(leaf: Leaf, score: float, expected: float) -> None:
    assert score_of(Gate(leaf(score), threshold=0.5)) == expected


def test_a_gate_wants_all_of_it_if_not_told_otherwise() -> None:
    assert score_of(Gate(Fixed(0.99))) == 0.0


@pytest.mark.parametrize("kinds", [(Fixed, Fixed), (Slow, Slow), (Fixed, Slow), (Slow, Fixed)])
def test_a_weighted_sum_adds_up(kinds: tuple[Leaf, Leaf]) -> None:
    total = WeightedSum([kinds[0](1.0), kinds[1](0.5)], [0.25, 0.75])
    assert score_of(total) == pytest.approx(0.625)
    assert total.weights == [0.25, 0.75]


def test_weights_must_fit() -> None:
    with pytest.raises(ValueError, match="1 rubrics and 2 weights"):
        WeightedSum([Fixed(1)], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"add up to 1.0, not 0.9"):
        WeightedSum([Fixed(1)], [0.9])


def test_coroutines_of_a_weighted_sum_run_at_the_same_time() -> None:
    class Meets(Rubric):
        def __init__(self, barrier: asyncio.Barrier) -> None:
            self.barrier = barrier

        async def forward(self, action: Any, observation: Any) -> float:
            async with asyncio.timeout(5):
                await self.barrier.wait()
            return 1.0

    async def scenario() -> float:
        barrier = asyncio.Barrier(2)
        total = WeightedSum([Meets(barrier), Meets(barrier)], [0.5, 0.5])
        return float(await total("action", None))

    assert asyncio.run(scenario()) == 1.0


def test_a_rubric_of_plain_components_gives_a_number_also_inside_a_coroutine() -> None:
    async def scenario() -> Any:
        return Sequential(Fixed(0.5))("action", None)

    assert asyncio.run(scenario()) == 0.5


def test_a_list_holds_rubrics_by_number() -> None:
    rubrics = RubricList([Fixed(0.1)])
    rubrics.extend([Fixed(0.2)])
    assert len(rubrics) == 2
    assert [rubric.score for rubric in rubrics] == [0.1, 0.2]  # type: ignore[attr-defined]
    assert [name for name, _ in rubrics.named_children()] == ["rubric_0", "rubric_1"]
    with pytest.raises(NotImplementedError, match="RubricList has no score"):
        rubrics("action", None)


def test_a_dict_holds_rubrics_by_name_whatever_the_name() -> None:
    rubrics = RubricDict({"pong": Fixed(0.1), "update": Fixed(0.2)})
    assert rubrics["update"].score == 0.2  # type: ignore[attr-defined]
    assert rubrics.pong is rubrics["pong"]
    assert ("pong" in rubrics, "chess" in rubrics, len(rubrics)) == (True, False, 2)
    assert [*rubrics] == [*rubrics.keys()] == [name for name, _ in rubrics.items()] == ["pong", "update"]
    assert [name for name, _ in rubrics.named_rubrics()] == ["pong", "update"]
    assert copy.deepcopy(rubrics)["pong"].score == 0.1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="chess"):
        _ = rubrics.chess


# Components.


class Code(Rubric):
    def __init__(self) -> None:  # no super().__init__(), as authors forget it
        self.syntax = Fixed(1.0)
        self.tests = WeightedSum([Fixed(0.5), Fixed(1.0)], [0.5, 0.5])

    def forward(self, action: Any, observation: Any) -> float:
        return float(self.syntax(action, observation) * self.tests(action, observation))


def test_components_have_paths_and_scores() -> None:
    code = Code()
    assert score_of(code) == 0.75
    assert code.scores() == {"syntax": 1.0, "tests": 0.75, "tests.rubric_0": 0.5, "tests.rubric_1": 1.0}
    assert code.get_rubric("tests.rubric_1").last_score == 1.0
    assert [type(child).__name__ for child in code.children()] == ["Fixed", "WeightedSum"]
    assert len(list(code.rubrics())) == 4
    with pytest.raises(KeyError, match=r"no component 'tests.nothing'"):
        code.get_rubric("tests.nothing")


def test_an_attribute_that_is_no_rubric_any_longer_is_no_component() -> None:
    code = Code()
    code.syntax = None  # type: ignore[assignment]
    del code.tests
    assert list(code.named_rubrics()) == []


def test_hooks_see_each_call_in_order() -> None:
    seen: list[Any] = []
    rubric = Slow(0.5)
    rubric.register_forward_pre_hook(lambda rubric, action, observation: seen.append(("before", action)))

    async def after(rubric: Rubric, action: Any, observation: Any, score: float) -> None:
        seen.append(("after", score))

    rubric.register_forward_hook(after)
    score_of(rubric)
    assert seen == [("before", "action"), ("after", 0.5)]


def test_a_rubric_can_be_copied_and_pickled() -> None:
    code = Code()
    score_of(code)
    for twin in (copy.deepcopy(code), pickle.loads(pickle.dumps(code))):
        assert twin.scores() == code.scores()
        assert twin.syntax is not code.syntax
        assert score_of(twin) == 0.75


# Episodes.


class Won(ExponentialDiscountingTrajectoryRubric):
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        return 1.0 if trajectory[-1][0] == "win" else 0.0


def test_an_episode_is_scored_at_its_end_and_credit_fades() -> None:
    rubric = Won(gamma=0.5, intermediate_reward=-0.1)
    rewards = [rubric(move, SimpleNamespace(done=move == "win")) for move in ("a", "b", "win")]
    assert rewards == [-0.1, -0.1, 1.0]
    assert rubric.compute_step_rewards() == [0.25, 0.5, 1.0]
    assert len(rubric.trajectory) == 3
    rubric.reset()
    assert rubric.compute_step_rewards() == rubric.trajectory == []


def test_settings_are_saved_and_the_episode_is_not() -> None:
    class Game(Rubric):
        def __init__(self, gamma: float) -> None:
            self.won = Won(gamma)
            self.fixed = Fixed(1.0)

        def forward(self, action: Any, observation: Any) -> Any:
            return self.won(action, observation)

    saved = Game(0.5).state_dict()
    assert saved == {"won": {"gamma": 0.5, "intermediate_reward": 0.0}}
    other = Game(0.9)
    other.load_state_dict(saved)
    assert other.won.gamma == 0.5


def test_gamma_must_be_a_share() -> None:
    with pytest.raises(ValueError, match=r"not 1.5"):
        Won(gamma=1.5)


def test_the_bases_are_abstract() -> None:
    for base in (Rubric, TrajectoryRubric, ExponentialDiscountingTrajectoryRubric):
        with pytest.raises(TypeError, match="abstract"):
            base()


# A judge.


@pytest.mark.parametrize(
    ("answer", "options", "expected"),
    [
        ("I give it 0.7 of 1", {}, 0.7),
        ("8 out of 10", {}, 1.0),
        ("8 out of 10", {"normalize": False}, 8.0),
        ("no idea", {"default_score": 0.3}, 0.3),
        ("score: x", {"score_pattern": r"score: (\w)", "default_score": 0.2}, 0.2),
        ("3 then score: 0.4", {"score_pattern": r"score: ([\d.]+)"}, 0.4),
    ],
)
def test_a_judge_reads_the_models_number(answer: str, options: dict[str, Any], expected: float) -> None:
    asked = []

    class Model:
        async def complete(self, prompt: str) -> str:
            asked.append(prompt)
            return answer

    judge = LLMJudge("How good is {action}?", Model(), **options)
    assert score_of(judge) == expected
    assert asked == ["How good is action?"]
    twin = LLMJudge("", Model())
    twin.load_state_dict(judge.state_dict())
    assert twin.state_dict() == judge.state_dict()


# In environments.


class Graded(Environment[Action, Observation, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self._reset_rubric()
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        observation = Observation(done=True, metadata={"mine": 1})
        observation.reward = self._apply_rubric(action, observation)
        return observation

    @property
    def state(self) -> State:
        return State()


def test_a_step_has_the_score_and_those_of_the_components() -> None:
    observation = Graded(rubric=Code()).step(Action())
    assert observation.reward == 0.75
    assert observation.metadata["mine"] == 1
    assert observation.metadata["rubric"]["tests.rubric_0"] == 0.5


def test_a_component_that_was_not_asked_has_no_score_rather_than_an_old_one() -> None:
    first, second = Fixed(1.0), Fixed(0.5)
    env = Graded(rubric=Sequential(first, second))
    assert env.step(Action()).metadata["rubric"] == {"rubric_0": 1.0, "rubric_1": 0.5}
    first.score = 0.0
    assert env.step(Action()).metadata["rubric"] == {"rubric_0": 0.0}


def test_without_a_rubric_or_components_nothing_is_added() -> None:
    assert Graded().step(Action()).metadata == {"mine": 1}
    assert Graded().step(Action()).reward == 0.0
    assert Graded(rubric=Fixed(0.5)).step(Action()).metadata == {"mine": 1}


def test_reset_begins_the_rubrics_episode() -> None:
    rubric = Won()
    env = Graded(rubric=rubric)
    env.step(Action())
    env.reset()
    assert rubric.trajectory == []


@pytest.mark.filterwarnings("ignore:coroutine")  # Python's own word on the coroutine that nobody awaits
def test_a_rubric_to_wait_for_is_refused_in_words_where_nobody_waits() -> None:
    with pytest.raises(TypeError, match="_apply_rubric_async"):
        Graded(rubric=Slow(0.5)).step(Action())


@both
def test_the_async_form_takes_both_kinds(leaf: Leaf) -> None:
    observation = Observation()

    async def scenario() -> float:
        env = Graded(rubric=Sequential(leaf(0.5)))
        await env._reset_rubric_async()
        return await env._apply_rubric_async(Action(), observation)

    assert asyncio.run(scenario()) == 0.5
    assert observation.metadata == {"rubric": {"rubric_0": 0.5}}
