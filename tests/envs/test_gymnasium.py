"""Gymnasium's environments."""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

pytest.importorskip("gymnasium", reason="pip install 'envhive[gymnasium]'")
pytest.importorskip("pygame", reason="pip install 'envhive[gymnasium]'")

import gymnasium
import numpy as np
from fastapi.testclient import TestClient
from gymnasium import spaces as gym_spaces
from pydantic import TypeAdapter

from envhive import check_environment
from envhive.envs.encoding import ArrayData, ImageData
from envhive.envs.gymnasium import GymnasiumAction, GymnasiumEnvironment, spaces
from envhive.inspection import infer_models
from envhive.server.target import load_target

BUILT_IN = ["Acrobot-v1", "Blackjack-v1", "CliffWalking-v1", "FrozenLake-v1", "MountainCarContinuous-v0", "Pendulum-v1"]
SPACES: list[gym_spaces.Space[Any]] = [
    gym_spaces.Discrete(5, start=-2),
    gym_spaces.Box(-1, 1, (3,), np.float32),
    gym_spaces.Box(np.array([0, -5]), np.array([1, 5]), dtype=np.float64),
    gym_spaces.Box(0, 9, (2, 3), np.int64),
    gym_spaces.Box(-np.inf, np.inf, (), np.float32),
    gym_spaces.MultiBinary((2, 2)),
    gym_spaces.MultiDiscrete([3, 2, 4]),
    gym_spaces.Text(8),
    gym_spaces.Dict({"at": gym_spaces.Discrete(3), "speed": gym_spaces.Box(0, 1, (2,))}),
    gym_spaces.Tuple((gym_spaces.Discrete(3), gym_spaces.MultiBinary(2))),
    gym_spaces.OneOf((gym_spaces.Discrete(3), gym_spaces.Box(0, 1, (2,)))),
    gym_spaces.Sequence(gym_spaces.Discrete(4)),
    gym_spaces.Graph(gym_spaces.Box(0, 1, (2,)), gym_spaces.Discrete(3)),
]


def play(env: GymnasiumEnvironment, seed: int, decide: Any) -> float:
    seen, total = env.reset(seed=seed), 0.0
    while not seen.done:
        seen = env.step(GymnasiumAction(value=decide(seen.value)))
        total += float(seen.reward or 0)
    return total


def test_a_rule_of_thumb_balances_the_pole_and_chance_does_not() -> None:
    env, chance = GymnasiumEnvironment(), random.Random(1)
    assert [play(env, seed, lambda at: int(at[2] + 0.3 * at[3] > 0)) for seed in range(3)] == [500.0] * 3
    assert all(play(env, seed, lambda at: chance.randrange(2)) < 200 for seed in range(5))


def test_time_that_is_up_truncates_and_a_fall_terminates() -> None:
    env = GymnasiumEnvironment(max_episode_steps=3)
    env.reset(seed=1)
    *_, last = [env.step(GymnasiumAction(value=at % 2)) for at in range(3)]
    assert (last.done, last.truncated, last.terminated) == (True, True, False)
    with pytest.raises(RuntimeError, match="has ended"):
        env.step(GymnasiumAction(value=0))
    env = GymnasiumEnvironment()
    env.reset(seed=1)
    while not (last := env.step(GymnasiumAction(value=0))).done:
        pass
    assert (last.truncated, last.terminated) == (False, True)


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_other_environments_keep_the_contract_with_models_of_their_own(env_id: str) -> None:
    cls = GymnasiumEnvironment.for_settings(env_id=env_id)

    def fitted() -> GymnasiumEnvironment:
        return cls(env_id=env_id)

    report = check_environment(fitted, action_cls=infer_models(cls)[0])
    assert report.findings == []


def test_a_server_shows_and_keeps_the_types_of_the_spaces() -> None:
    app = load_target("gymnasium", {"env_id": "Pendulum-v1"}).app
    with TestClient(app) as client:
        schema = client.get("/schema").json()
    value = schema["action"]["properties"]["value"]
    assert (value["minItems"], value["maxItems"]) == (1, 1)
    assert value["items"] == {"type": "number", "minimum": -2.0, "maximum": 2.0}
    assert schema["observation"]["properties"]["value"]["maxItems"] == 3
    action_cls, _ = infer_models(GymnasiumEnvironment.for_settings(env_id="Pendulum-v1"))
    for wrong in ([3.0], [0.0, 0.0], 0.5, ["left"]):
        with pytest.raises(ValidationError, match="value"):
            action_cls(value=wrong)


@pytest.mark.parametrize("wrong", [2, -1, 0.5, True, None, "left", [0], {"at": 0}])
def test_an_action_outside_the_space_is_refused_and_the_episode_goes_on(wrong: Any) -> None:
    env = GymnasiumEnvironment()
    env.reset(seed=1)
    with pytest.raises(ValueError, match="not in the action space"):
        env.step(GymnasiumAction(value=wrong))
    assert env.step(GymnasiumAction(value=1)).reward == 1.0


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_elements_of_a_space_travel_there_and_back(space: gym_spaces.Space[Any]) -> None:
    space.seed(1)
    adapter = TypeAdapter(spaces.type_of(space, "Value", outgoing=False))
    for _ in range(20):
        element = space.sample()
        as_json = adapter.dump_json(adapter.validate_python(spaces.encode(space, element)))
        back = spaces.decode(space, adapter.validate_json(as_json))
        assert spaces.encode(space, back) == spaces.encode(space, element)
    assert spaces.describe(space)["type"] == type(space).__name__


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (gym_spaces.Box(0, 9, (2,), np.int64), [0.5, 1]),
        (gym_spaces.Box(0, 255, (1,), np.uint8), [256]),
        (gym_spaces.Box(-1, 1, (2,)), [0.0, 2.0]),
        (gym_spaces.Box(-1, 1, (2,)), [0.0, float("nan")]),
        (gym_spaces.Box(-1, 1, (2,)), [[0.0], [0.0, 1.0]]),
        (gym_spaces.MultiDiscrete([3, 2]), [2, 2]),
        (gym_spaces.Dict({"at": gym_spaces.Discrete(3)}), {"at": 1, "more": 1}),
        (gym_spaces.Tuple((gym_spaces.Discrete(3),)), [1, 1]),
        (gym_spaces.OneOf((gym_spaces.Discrete(3),)), [1, 0]),
        (gym_spaces.Text(3), 5),
    ],
    ids=repr,
)
def test_what_is_no_element_is_refused(space: gym_spaces.Space[Any], wrong: Any) -> None:
    with pytest.raises(ValueError, match="not in the action space"):
        spaces.decode(space, wrong)


def test_images_are_pngs_and_large_arrays_their_bytes() -> None:
    pixels, numbers = gym_spaces.Box(0, 255, (16, 12, 3), np.uint8), gym_spaces.Box(-1, 1, (50, 50))
    for space, model in ((pixels, ImageData), (numbers, ArrayData)):
        space.seed(1)
        element = space.sample()
        encoded = spaces.encode(space, element)
        assert spaces.type_of(space, "Value", outgoing=True) is model
        assert (model.model_validate_json(encoded.model_dump_json()).to_numpy() == element).all()
    board = gym_spaces.Box(0, 2, (3, 3), np.uint8)
    assert spaces.encode(board, np.eye(3, dtype=np.uint8)) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_what_info_holds_becomes_json() -> None:
    told = {"at": np.float32(0.5), 3: np.arange(2), "set": {1}, "odd": object, "more": (np.bool_(True), None)}
    assert spaces.plain(told) == {"at": 0.5, "3": [0, 1], "set": [1], "odd": repr(object), "more": [True, None]}


def test_pictures_are_right_while_other_sessions_draw() -> None:
    def frames() -> list[str]:
        env = GymnasiumEnvironment("Acrobot-v1", render=True)
        drawn = [env.reset(seed=1)] + [env.step(GymnasiumAction(value=at % 3)) for at in range(10)]
        env.close()
        return [seen.image.base64 for seen in drawn if seen.image is not None]

    alone, beside = frames(), []
    threads = [threading.Thread(target=lambda: beside.append(frames())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(alone)) > 5
    assert beside == [alone] * 8


def test_where_there_is_no_picture_there_is_text_or_a_refusal() -> None:
    gymnasium.register("Silent-v0", entry_point="tests.envs.test_gymnasium:Silent")
    try:
        with pytest.raises(ValueError, match="nothing to render"):
            GymnasiumEnvironment("Silent-v0", render=True)
        gymnasium.register("Written-v0", entry_point="tests.envs.test_gymnasium:Written")
        assert GymnasiumEnvironment("Written-v0", render=True).reset().text == "here I am"
    finally:
        del gymnasium.registry["Silent-v0"]
        gymnasium.registry.pop("Written-v0", None)


class Silent(gymnasium.Env[Any, Any]):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human"]}
    action_space = observation_space = gym_spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}


class Written(Silent):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}

    def render(self) -> Any:
        return "here I am"
