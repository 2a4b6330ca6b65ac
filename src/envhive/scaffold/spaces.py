"""The spaces of a Gymnasium environment, as the fields of pydantic models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envhive.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Field:
    """A field's source, and how its value is turned into the environment's own and back."""

    source: str
    native: str
    plain: str
    sample: Any


@dataclass(frozen=True, slots=True)
class GymModels:
    """What the templates need to know of an environment's spaces."""

    action: Field
    observation: Field

    def words(self) -> dict[str, str]:
        source = self.action.source + self.observation.source
        return {
            "action_field": self.action.source,
            "observation_field": self.observation.source,
            "native_action": self.action.native,
            "plain_observation": self.observation.plain,
            "numpy_import": "\nimport numpy as np" if "np." in self.action.native else "",
            "typing_import": "\nfrom typing import Annotated\n" if "Annotated" in source else "",
            "sample_action": f'{{"action": {self.action.sample!r}}}',
        }


def read_spaces(gym_id: str) -> GymModels:
    """The spaces of an environment that Gymnasium knows; raises with what to do if they cannot be had."""
    try:
        import gymnasium
    except ImportError:
        raise ConfigurationError(
            "The kind gymnasium reads the spaces of an environment, which needs Gymnasium: pip install gymnasium"
        ) from None
    try:
        env = gymnasium.make(gym_id)
    except Exception as error:  # an environment's own packages may be missing in any way
        raise ConfigurationError(
            f"gymnasium.make({gym_id!r}) failed: {' '.join(str(error).split())} "
            f"Give the id of an environment that it can make: --gym-id CartPole-v1."
        ) from error
    try:
        return GymModels(
            field_for(env.action_space, "What to do", bounded=True),
            field_for(env.observation_space, "What is seen", bounded=False),
        )
    finally:
        env.close()


def field_for(space: Any, description: str, *, bounded: bool) -> Field:
    """A pydantic field for a space. Bounds are kept where the caller's values must keep them."""
    kind = type(space).__name__
    if kind == "Discrete":
        low, high = int(space.start), int(space.start + space.n - 1)
        limits = [f"ge={low}", f"le={high}"] if bounded else []
        source = _source("int", *limits, f'description="{description}: {low} to {high}"')
        return Field(source, "action.action", "int(observation)", low)
    if kind == "Text":
        return Field(_source("str", f'description="{description}"'), "action.action", "str(observation)", "a")
    if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
        raise ConfigurationError(
            f"A space of the kind {kind} has no model here. Begin with --kind basic, and write the models by hand."
        )
    item = "float" if space.dtype.kind == "f" else "int"
    sample = 0.0 if item == "float" else 0
    bounds = _bounds(space, kind, item) if bounded else None
    if bounds is not None:
        item = f"Annotated[{item}, Field({bounds})]"
    shape = tuple(int(length) for length in space.shape)
    type_ = item
    for _ in shape:
        type_ = f"list[{type_}]"
    lengths = [f"min_length={shape[0]}", f"max_length={shape[0]}"] if shape else []
    shown = " x ".join(map(str, shape))
    plain: Any = space.sample().tolist() if bounds is not None else sample
    if bounds is None:
        for length in reversed(shape):
            plain = [plain] * length
    return Field(
        _source(type_, *lengths, f'description="{description}: {shown} number(s)"'),
        "np.asarray(action.action, dtype=self._env.action_space.dtype)",
        "observation.tolist()",
        plain if len(repr(plain)) < 60 else "...",
    )


def _source(type_: str, *arguments: str) -> str:
    """One argument a line, which a formatter leaves as it is, however long the line would be."""
    return f"{type_} = Field(\n" + "".join(f"        {argument},\n" for argument in arguments) + "    )"


def _bounds(space: Any, kind: str, item: str) -> str | None:
    """The bounds that all numbers of a space share, if they do."""
    if kind == "MultiBinary":
        return "ge=0, le=1"
    if kind == "MultiDiscrete":
        return f"ge=0, le={int(space.nvec.flat[0]) - 1}" if len(set(space.nvec.flat)) == 1 else "ge=0"
    low, high = float(space.low.flat[0]), float(space.high.flat[0])
    if not (space.is_bounded() and (space.low == low).all() and (space.high == high).all()):
        return None
    return f"ge={int(low)}, le={int(high)}" if item == "int" else f"ge={low!r}, le={high!r}"
