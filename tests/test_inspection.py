"""What is read off a class without making an instance.

No `from __future__ import annotations` here: string annotations and real ones are told apart below.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, RootModel

from envhive import Action, Environment, Observation, State
from envhive.inspection import (
    Place,
    declared_types,
    factory_name,
    infer_models,
    plan_for,
    underlying_class,
)


class Guess(Action):
    number: int


class Hint(Observation):
    text: str = ""


class Score(State):
    points: int = 0


class PlainModel(BaseModel):
    x: int = 0


class Choice(RootModel[Guess | PlainModel]):
    pass


class Plain(Environment[Guess, Hint, Score]):
    """Plain methods."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        return Hint()

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        return Hint()

    @property
    def state(self) -> Score:
        return Score()


class Coroutines(Plain):
    """Coroutines under the plain names."""

    async def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:  # type: ignore[override]
        return Hint()

    async def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:  # type: ignore[override]
        return Hint()


class AsyncForms(Plain):
    """The async forms, below a class with plain ones."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Hint:
        return Hint()

    async def step_async(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        return Hint()


class OnlyStepOverridden(AsyncForms):
    """A plain `step` below a class that defines `step_async`."""

    def step(self, action: Guess, timeout_s: float | None = None, **kwargs: Any) -> Hint:
        return Hint(text="mine")


class Duck:
    """Derives from nothing."""

    def reset(self) -> PlainModel:
        return PlainModel()

    def step(self, action: PlainModel) -> PlainModel:
        return PlainModel()

    @property
    def state(self) -> dict[str, int]:
        return {}


class AsyncDuck:
    """Derives from nothing, and has the async forms only."""

    async def reset_async(self, seed: int | None = None) -> PlainModel:
        return PlainModel()

    async def step_async(self, action: PlainModel) -> PlainModel:
        return PlainModel()

    async def close(self) -> None:
        pass


def derive(base: type, **attributes: Any) -> type[Any]:
    return type(f"Derived{base.__name__}", (base,), attributes)


# Which method is called, and where.


@pytest.mark.parametrize(
    ("cls", "reset", "step", "place"),
    [
        (Plain, ("reset", False), ("step", False), Place.THREAD),
        (Coroutines, ("reset", True), ("step", True), Place.LOOP),
        (AsyncForms, ("reset_async", True), ("step_async", True), Place.LOOP),
        (Duck, ("reset", False), ("step", False), Place.THREAD),
        (AsyncDuck, ("reset_async", True), ("step_async", True), Place.LOOP),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_how_a_class_is_written_decides_what_is_called_and_where(
    cls: type, reset: tuple[str, bool], step: tuple[str, bool], place: Place
) -> None:
    plan = plan_for(cls)
    assert (plan.reset.name, plan.reset.is_async) == reset
    assert (plan.step.name, plan.step.is_async) == step
    assert plan.place is place


def test_a_subclass_that_overrides_only_step_is_not_bypassed() -> None:
    plan = plan_for(OnlyStepOverridden)
    assert (plan.step.name, plan.step.is_async) == ("step", False)
    assert (plan.reset.name, plan.reset.is_async) == ("reset_async", True)
    assert plan.place is Place.THREAD


def test_a_subclass_that_overrides_step_async_again_is_called_there() -> None:
    async def step_async(self: Any, action: Guess) -> Hint:
        return Hint()

    plan = plan_for(derive(OnlyStepOverridden, step_async=step_async))
    assert (plan.step.name, plan.step.is_async) == ("step_async", True)


def test_of_both_forms_in_one_class_the_async_one_is_called() -> None:
    plan = plan_for(derive(Plain, step=Plain.step, step_async=AsyncForms.step_async))
    assert plan.step.name == "step_async"


def test_a_subclass_that_adds_nothing_is_called_like_its_parent() -> None:
    assert plan_for(derive(OnlyStepOverridden)) == plan_for(OnlyStepOverridden)


def test_a_mixin_that_comes_first_wins() -> None:
    mixed = type("Mixed", (type("Mixin", (), {"step": Plain.step}), AsyncForms), {})
    assert plan_for(mixed).step.name == "step"


def test_the_default_async_methods_of_openenvs_base_class_count_for_nothing() -> None:
    base = type(
        "Environment",
        (),
        {
            "__module__": "openenv.core.env_server.interfaces",
            "reset_async": AsyncForms.reset_async,
            "step_async": AsyncForms.step_async,
        },
    )
    methods = type("Methods", (), {"reset": Plain.reset, "step": Plain.step})
    plan = plan_for(type("Mixed", (base, methods), {}))
    assert (plan.reset.name, plan.step.name, plan.place) == ("reset", "step", Place.THREAD)


def test_a_class_with_one_coroutine_and_one_plain_method_keeps_its_thread() -> None:
    plan = plan_for(derive(Plain, step=Coroutines.step))
    assert (plan.reset.is_async, plan.step.is_async) == (False, True)
    assert plan.place is Place.THREAD


@pytest.mark.parametrize(
    ("base", "attributes", "place"),
    [
        (Plain, {"BLOCKING": False}, Place.LOOP),
        (Plain, {"BLOCKING": True}, Place.THREAD),
        (Plain, {"REQUIRES_SINGLE_THREAD_EXECUTOR": True}, Place.SHARED_THREAD),
        (Plain, {"REQUIRES_SINGLE_THREAD_EXECUTOR": True, "BLOCKING": False}, Place.LOOP),
        (Coroutines, {"REQUIRES_SINGLE_THREAD_EXECUTOR": True}, Place.LOOP),
        (Duck, {"BLOCKING": False}, Place.LOOP),
        (Duck, {"REQUIRES_SINGLE_THREAD_EXECUTOR": True}, Place.SHARED_THREAD),
    ],
    ids=str,
)
def test_a_class_may_say_where_it_runs(base: type, attributes: dict[str, bool], place: Place) -> None:
    assert plan_for(derive(base, **attributes)).place is place


@pytest.mark.parametrize(("cls", "is_async"), [(Plain, False), (Duck, False), (AsyncDuck, True)])
def test_a_close_that_is_a_coroutine_is_noticed(cls: type, is_async: bool) -> None:
    assert plan_for(cls).async_close is is_async


def test_an_author_may_write_the_async_forms_instead_of_the_plain_ones() -> None:
    class OnlyAsync(Environment[Guess, Hint, Score]):
        reset_async = AsyncForms.reset_async
        step_async = AsyncForms.step_async
        state = Plain.state

    OnlyAsync()  # type: ignore[abstract]


# Which keywords are passed on.


def takes_nothing(self: Any) -> None: ...
def takes_seed(self: Any, seed: int) -> None: ...
def takes_keyword_only(self: Any, *, level: str = "") -> None: ...
def takes_positional_only(self: Any, seed: int = 0, /) -> None: ...
def takes_anything(self: Any, seed: int = 0, **kwargs: Any) -> None: ...
def takes_many(self: Any, *numbers: int) -> None: ...


@functools.wraps(takes_seed)
def decorated(*args: Any, **kwargs: Any) -> None:
    takes_seed(*args, **kwargs)


@pytest.mark.parametrize(
    ("reset", "passed"),
    [
        (takes_nothing, {}),
        (takes_seed, {"seed": 1}),
        (takes_keyword_only, {"level": "hard"}),
        (takes_positional_only, {}),
        (takes_anything, {"seed": 1, "level": "hard", "episode_id": "e"}),
        (takes_many, {}),
        (decorated, {"seed": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_reset_gets_only_the_keywords_it_takes(reset: Callable[..., None], passed: dict[str, Any]) -> None:
    plan = plan_for(derive(Duck, reset=reset)).reset
    assert plan.select({"seed": 1, "level": "hard", "episode_id": "e"}) == passed


def test_step_never_gets_a_second_action() -> None:
    def step(self: Any, action: Guess, timeout_s: float | None = None) -> Hint:
        return Hint()

    plan = plan_for(derive(Duck, step=step)).step
    assert plan.select({"action": Guess(number=1), "timeout_s": 2.0, "mood": "good"}) == {"timeout_s": 2.0}


def test_the_keywords_of_the_form_that_is_called_count() -> None:
    async def step_async(self: Any, action: Guess, hurry: bool = False) -> Hint:
        return Hint()

    plan = plan_for(derive(Duck, step_async=step_async)).step
    assert plan.select({"hurry": True, "timeout_s": 2.0}) == {"hurry": True}


# The class behind a factory.


def unannotated():  # type: ignore[no-untyped-def]
    return Plain()


def annotated() -> Plain:
    return Plain()


def annotated_in_quotes() -> "Plain":
    return Plain()


def takes_a_size(size: int) -> Plain:
    return Plain()


def annotated_with_the_base() -> Environment[Any, Any, Any]:
    return Plain()


def annotated_with_the_bare_base() -> Environment:  # type: ignore[type-arg]
    return Plain()


def annotated_with_object() -> object:
    return Plain()


def annotated_with_a_choice() -> Plain | None:
    return Plain()


def annotated_with_the_unknown() -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
    return Plain()


def annotated_with_anything() -> Any:
    return Plain()


class Maker:
    """Makes environments; is none."""

    count: ClassVar[int] = 0

    def __call__(self) -> Plain:
        return Plain()

    def make(self) -> Plain:
        return Plain()


@pytest.mark.parametrize(
    "factory",
    [
        Plain,
        functools.partial(Plain, transform=None),
        functools.partial(functools.partial(Plain), transform=None),
        annotated,
        annotated_in_quotes,
        functools.partial(takes_a_size, 3),
        Maker().make,
    ],
    ids=factory_name,
)
def test_the_class_behind_a_factory_is_known_where_it_is_written_down(factory: Callable[[], Any]) -> None:
    assert underlying_class(factory) is Plain


@pytest.mark.parametrize(
    "factory",
    [
        unannotated,
        lambda: Plain(),
        Maker(),
        annotated_with_the_base,
        annotated_with_the_bare_base,
        annotated_with_object,
        annotated_with_a_choice,
        annotated_with_the_unknown,
        functools.partial(unannotated),
        annotated_with_anything,
    ],
    ids=lambda factory: factory_name(factory),
)
def test_an_annotation_that_names_no_environment_class_tells_nothing(factory: Callable[[], Any]) -> None:
    assert underlying_class(factory) is None


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (Plain, "Plain"),
        (annotated, "annotated"),
        (lambda: Plain(), "<lambda>"),
        (functools.partial(functools.partial(takes_a_size), 3), "takes_a_size"),
        (Maker(), "Maker"),
        (Maker().make, "make"),
    ],
)
def test_a_factory_is_called_what_its_author_called_it(factory: Callable[[], Any], name: str) -> None:
    assert factory_name(factory) == name


# The models a class declares.


class Annotated:
    """Real annotations, on a class of its own."""

    def reset(self) -> Hint:
        return Hint()

    def step(self, action: Guess) -> Hint:
        return Hint()

    @property
    def state(self) -> Score:
        return Score()


class AnnotatedInQuotes:
    """String annotations, of classes that are defined later, too."""

    def step(self, move: "Later", timeout_s: "float | None" = None) -> "Hint":
        return Hint()

    @property
    def state(self) -> "Score":
        return Score()


class AnnotatedAsync:
    """The annotations of the form that is called count."""

    def step(self, action: PlainModel) -> PlainModel:
        return PlainModel()

    async def step_async(self, action: Guess) -> Hint:
        return Hint()

    def state(self) -> Score:
        return Score()


class Later(Action):
    pass


class Unannotated(Environment[Guess, Hint, Score]):
    """Type parameters alone."""

    def reset(self, seed=None, episode_id=None, **kwargs):  # type: ignore[no-untyped-def]
        return Hint()

    def step(self, action, timeout_s=None, **kwargs):  # type: ignore[no-untyped-def]
        return Hint()

    @property
    def state(self):  # type: ignore[no-untyped-def]
        return Score()


class ParametersAndAnnotations(Environment[Guess, Hint, Score]):
    """Type parameters that say more than the annotations."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Hint()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Hint()

    @property
    def state(self) -> State:  # type: ignore[override]
        return Score()


class RootModelAction:
    def step(self, action: Choice) -> PlainModel:
        return PlainModel()


class NotModels:
    """Annotated, but with no models."""

    def step(self, action: int, timeout_s: float) -> dict[str, Any]:
        return {}

    @property
    def state(self) -> dict[str, Any]:
        return {}


class Unresolvable:
    def step(self, action: "NotThere") -> "Hint":  # type: ignore[name-defined]  # noqa: F821
        return Hint()


ALL = {"action": Guess, "observation": Hint, "state": Score}


@pytest.mark.parametrize(
    ("cls", "types"),
    [
        (Unannotated, ALL),
        (derive(derive(Unannotated)), ALL),
        (ParametersAndAnnotations, ALL),
        (Annotated, ALL),
        (AnnotatedInQuotes, {**ALL, "action": Later}),
        (AnnotatedAsync, ALL),
        (RootModelAction, {"action": Choice, "observation": PlainModel}),
        (Duck, {"action": PlainModel, "observation": PlainModel}),
        (NotModels, {}),
        (Unresolvable, {}),
        (object, {}),
        (None, {}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_models_are_read_off_the_class(cls: type | None, types: dict[str, type]) -> None:
    assert declared_types(cls) == types


def test_a_subclass_may_declare_other_models_than_its_parent() -> None:
    class Other(Plain, Environment[Later, Observation, State]):
        pass

    assert declared_types(Other) == {"action": Later, "observation": Observation, "state": State}


@pytest.mark.parametrize(
    ("cls", "models"),
    [
        (Plain, (Guess, Hint)),
        (Duck, (PlainModel, PlainModel)),
        (NotModels, (Action, Observation)),
        (Unresolvable, (Action, Observation)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_undeclared_models_are_the_base_ones(cls: type, models: tuple[type, type]) -> None:
    assert infer_models(cls) == models
