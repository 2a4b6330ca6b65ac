"""Made-up instances of models."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, create_model
from pydantic.dataclasses import dataclass

from envhive import Action
from envhive.samples import legal_move, sample_instance


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    EASY = 3
    HARD = 4


class Point(BaseModel):
    x: int
    y: float


class Line(BaseModel):
    start: Point
    end: Point | None
    through: list[Point] = Field(min_length=2)


class Tree(BaseModel):
    name: str
    children: list[Tree]


class Chain(BaseModel):
    next: Chain | None


class Walk(Action):
    kind: Literal["walk"]
    steps: int = Field(ge=1)


class Talk(Action):
    kind: Literal["talk"]
    words: str


class WalkOrTalk(RootModel[Annotated[Walk | Talk, Field(discriminator="kind")]]):
    pass


class PointOrLine(RootModel[Point | Line]):
    pass


class Everything(Action):
    model_config = ConfigDict(populate_by_name=True)

    text: str
    flag: bool
    nothing: None
    anything: Any
    mapping: dict[str, int]
    pair: tuple[int, str]
    names: set[str]
    amount: Decimal
    place: Path
    raw: bytes
    renamed: int = Field(alias="otherName")
    told: str = Field(examples=["an example"], pattern="^an ")
    left_out: str = "by default"


@dataclass
class Throw:
    strength: int
    target: Point


def a_model_with(kind: Any, **constraints: Any) -> type[BaseModel]:
    return create_model("Made", value=(kind, Field(**constraints)))


# Whole models.


@pytest.mark.parametrize(
    "cls",
    [Action, Point, Line, Tree, Chain, Walk, Talk, WalkOrTalk, PointOrLine, Everything, Throw],
    ids=lambda cls: cls.__name__,
)
def test_a_model_gets_a_valid_instance(cls: type[Any]) -> None:
    assert isinstance(sample_instance(cls), cls)


def test_the_instance_can_be_sent_and_read_back() -> None:
    sent = sample_instance(Line).model_dump_json()
    assert Line.model_validate_json(sent) == sample_instance(Line)


def test_fields_with_a_default_keep_it() -> None:
    assert sample_instance(Everything).left_out == "by default"


def test_an_example_of_the_authors_is_used() -> None:
    assert sample_instance(Everything).told == "an example"


def test_the_first_member_of_a_union_is_taken() -> None:
    assert sample_instance(WalkOrTalk).root == Walk(kind="walk", steps=1)


def test_two_samples_are_alike() -> None:
    assert sample_instance(Everything) == sample_instance(Everything)


# Single fields.


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Literal["up", "down"], "up"),
        (Literal[7], 7),
        (Colour, Colour.RED),
        (Level, Level.EASY),
        (int | None, 0),
        (str | int, "a"),
        (bool, False),
        (list[int], []),
        (dict[str, int], {}),
        (tuple[Literal["x"], int], ("x", 0)),
        (tuple[int, ...], ()),
        (Annotated[int, Field(ge=5, le=9)], 5),
        (list[Annotated[int, Field(gt=2)]], []),
    ],
    ids=str,
)
def test_a_required_field_gets_a_plain_value(kind: Any, value: Any) -> None:
    found = sample_instance(a_model_with(kind)).value
    assert found == value
    assert type(found) is type(value)


BOUNDS: list[tuple[str, Callable[[Any, Any], bool]]] = [
    ("ge", lambda value, bound: value >= bound),
    ("gt", lambda value, bound: value > bound),
    ("le", lambda value, bound: value <= bound),
    ("lt", lambda value, bound: value < bound),
]


@pytest.mark.parametrize(("keyword", "holds"), BOUNDS, ids=lambda value: value if isinstance(value, str) else "")
@given(bound=st.integers(min_value=-(10**9), max_value=10**9))
@settings(deadline=None, max_examples=25)
def test_an_integer_keeps_to_its_bound(keyword: str, holds: Callable[[Any, Any], bool], bound: int) -> None:
    assert holds(sample_instance(a_model_with(int, **{keyword: bound})).value, bound)


@pytest.mark.parametrize(("keyword", "holds"), BOUNDS, ids=lambda value: value if isinstance(value, str) else "")
@given(bound=st.floats(min_value=-1e9, max_value=1e9))
@settings(deadline=None, max_examples=25)
def test_a_number_keeps_to_its_bound(keyword: str, holds: Callable[[Any, Any], bool], bound: float) -> None:
    assert holds(sample_instance(a_model_with(float, **{keyword: bound})).value, bound)


@given(low=st.integers(-1000, 1000), width=st.integers(2, 50), low_open=st.booleans(), high_open=st.booleans())
@settings(deadline=None, max_examples=50)
def test_an_integer_keeps_to_its_range(low: int, width: int, low_open: bool, high_open: bool) -> None:
    constraints = {"gt" if low_open else "ge": low, "lt" if high_open else "le": low + width}
    assert low <= sample_instance(a_model_with(int, **constraints)).value <= low + width


@given(low=st.floats(-100, 100), width=st.floats(0.01, 100))
@settings(deadline=None, max_examples=50)
def test_a_number_keeps_to_its_closed_range(low: float, width: float) -> None:
    assume(low + width > low)
    assert low <= sample_instance(a_model_with(float, ge=low, le=low + width)).value <= low + width


@pytest.mark.parametrize(
    "constraints",
    [
        {"gt": 0, "lt": 1},
        {"gt": 0, "le": 0.5},
        {"gt": 0, "lt": 0.5},
        {"gt": 0, "le": 0.1},
    ],
    ids=str,
)
def test_a_number_keeps_to_its_open_range(constraints: dict[str, float]) -> None:
    assert 0 < sample_instance(a_model_with(float, **constraints)).value < 1


@given(length=st.integers(0, 20))
@settings(deadline=None, max_examples=21)
def test_texts_and_lists_are_as_long_as_they_must_be(length: int) -> None:
    assert len(sample_instance(a_model_with(str, min_length=length)).value) >= length
    assert len(sample_instance(a_model_with(list[Point], min_length=length)).value) == length


@given(depth=st.integers(0, 3))
@settings(deadline=None, max_examples=4)
def test_models_inside_models_are_made_up_too(depth: int) -> None:
    assert isinstance(sample_instance(nested(depth)), BaseModel)


def test_five_models_inside_one_another_are_not_too_many() -> None:
    assert isinstance(sample_instance(nested(4)), BaseModel)


def nested(depth: int) -> type[BaseModel]:
    model: type[BaseModel] = create_model("Level0", value=(int, ...))
    for number in range(1, depth + 1):
        model = create_model(f"Level{number}", value=(model, ...))
    return model


def test_a_strict_model_is_filled_as_it_would_be_from_json() -> None:
    model = create_model("Strict", __config__=ConfigDict(strict=True), colour=(Colour, ...))
    assert sample_instance(model).colour is Colour.RED


# What cannot be made up.


@pytest.mark.parametrize(
    ("kind", "constraints"),
    [(str, {"pattern": "^[0-9]{4}$"}), (int, {"ge": 5, "le": 4})],
    ids=["a pattern", "no value at all"],
)
def test_a_field_that_no_plain_value_fits_is_an_error(kind: Any, constraints: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="value"):
        sample_instance(a_model_with(kind, **constraints))


# Legal moves.


def integers(*names: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"properties": {name: {"type": "integer"} for name in names}, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "observation", "move"),
    [
        (integers("square"), {"legal_actions": [4, 7]}, {"square": 7}),
        (integers("square"), SimpleNamespace(legal_actions=[4, 7]), {"square": 7}),
        (integers("square", "player", required=("square",)), {"legal_actions": [4]}, {"square": 4}),
        (integers("square", "player"), {"legal_actions": [4]}, {}),
        (integers("row", "column", required=("row", "column")), {"legal_actions": [4]}, {}),
        ({"properties": {"text": {"type": "string"}}}, {"legal_actions": [4]}, {}),
        (integers("square"), {"legal_actions": []}, {}),
        (integers("square"), {"legal_actions": ["a"]}, {}),
        (integers("square"), {"legal_actions": [True]}, {}),
        (integers("square"), {"legal_actions": 4}, {}),
        (integers("square"), {}, {}),
        (integers("square"), None, {}),
        ({"anyOf": [{}]}, {"legal_actions": [4]}, {}),
    ],
)
def test_a_legal_move_is_picked_where_it_is_clear_which_field_it_goes_to(
    schema: dict[str, Any], observation: Any, move: dict[str, int]
) -> None:
    assert legal_move(schema, observation, 1) == move


def test_what_is_given_for_a_sample_is_taken() -> None:
    class Move(BaseModel):
        square: int
        name: str

    assert sample_instance(Move, {"square": 8}) == Move(square=8, name="a")
    with pytest.raises(ValueError, match="square"):
        sample_instance(Move, {"square": "eight"})
