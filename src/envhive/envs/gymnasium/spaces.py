"""Gymnasium's spaces: their types, and their elements as JSON and back.

| space | as JSON |
|---|---|
| Discrete | an integer |
| Box | a number, or nested lists; an image if it has the form of one; `ArrayData` if it has many elements |
| MultiBinary, MultiDiscrete | nested lists of integers |
| Text | a text |
| Dict | an object |
| Tuple | a list |
| OneOf | a list of the number of the space and its element |
| Sequence | a list |
| Graph | an object with `nodes`, `edges` and `edge_links` |
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Annotated, Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import Field, JsonValue
from typing_extensions import TypedDict

from envhive.envs.encoding import ArrayData, ImageData

LARGEST_LIST: Final = 1024
"""Arrays with more elements travel as their bytes, which are 4 to 8 times shorter than their digits."""
_SMALLEST_IMAGE: Final = 8
"""Pixels to a side: smaller arrays of bytes are boards and the like."""


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether its elements have the form of images: bytes, and two sides of at least 8."""
    if (
        not isinstance(space, spaces.Box)
        or space.dtype != np.uint8
        or min(space.shape[:2], default=0) < _SMALLEST_IMAGE
    ):
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3, 4))


def is_large(space: spaces.Box) -> bool:
    return math.prod(space.shape) > LARGEST_LIST


def describe(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space in words and numbers."""
    told: dict[str, Any] = {"type": type(space).__name__}
    if isinstance(space, spaces.Discrete):
        return {**told, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.Box):
        bounds = {"low": _bounds(space.low), "high": _bounds(space.high)}
        return {**told, "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.MultiDiscrete):
        return {**told, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {**told, "shape": list(space.shape)}
    if isinstance(space, spaces.Text):
        return {**told, "min_length": space.min_length, "max_length": space.max_length, "charset": space.characters}
    if isinstance(space, spaces.Dict):
        return {**told, "spaces": {key: describe(each) for key, each in space.spaces.items()}}
    if isinstance(space, (spaces.Tuple, spaces.OneOf)):
        return {**told, "spaces": [describe(each) for each in space.spaces]}
    if isinstance(space, spaces.Sequence):
        return {**told, "space": describe(space.feature_space)}
    return {**told, "repr": repr(space)}


def _bounds(bounds: np.ndarray[Any, Any]) -> Any:
    """One number if all are the same, else nested lists; JSON has no infinity, so that is None."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        return _finite(bounds.flat[0].item())
    if bounds.size > LARGEST_LIST:
        return None
    return _each(bounds.tolist())


def _each(value: Any) -> Any:
    return [_each(item) for item in value] if isinstance(value, list) else _finite(value)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def type_of(space: spaces.Space[Any], name: str, *, outgoing: bool) -> Any:
    """The type that elements of a space have as JSON: observations are outgoing, actions are not."""
    if isinstance(space, spaces.Discrete):
        return _integer(int(space.start), int(space.start + space.n) - 1)
    if isinstance(space, spaces.Box):
        if outgoing and is_image(space):
            return ImageData
        if outgoing and is_large(space):
            return ArrayData
        return _nested(_element_of(space, bounded=not outgoing), space.shape)
    if isinstance(space, spaces.MultiBinary):
        return _nested(_integer(0, 1), space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        lowest, highest = space.start.min(), (space.start + space.nvec).max() - 1
        return _nested(_integer(int(lowest), int(highest)), space.shape)
    if isinstance(space, spaces.Text):
        return Annotated[str, Field(min_length=space.min_length, max_length=space.max_length)]
    if isinstance(space, spaces.Dict):
        fields = {key: type_of(each, f"{name}_{key}", outgoing=outgoing) for key, each in space.spaces.items()}
        return TypedDict(name, fields)  # type: ignore[operator]
    parts = [type_of(each, f"{name}_{at}", outgoing=outgoing) for at, each in enumerate(getattr(space, "spaces", ()))]
    if isinstance(space, spaces.Tuple):
        return tuple[tuple(parts)]  # type: ignore[misc]
    if isinstance(space, spaces.OneOf):
        return tuple[_integer(0, len(parts) - 1), functools.reduce(operator.or_, parts)]  # type: ignore[misc]
    if isinstance(space, spaces.Sequence):
        return list[type_of(space.feature_space, f"{name}_item", outgoing=outgoing)]  # type: ignore[misc]
    return JsonValue


def _integer(lowest: int, highest: int) -> Any:
    return Annotated[int, Field(ge=lowest, le=highest)]


def _element_of(space: spaces.Box, *, bounded: bool) -> Any:
    kind = int if np.issubdtype(space.dtype, np.integer) else float
    low, high = _bounds(space.low), _bounds(space.high)
    limits = {"ge": low, "le": high} if bounded else {}
    given: dict[str, Any] = {key: value for key, value in limits.items() if isinstance(value, (int, float))}
    return Annotated[kind, Field(**given)] if given else kind


def _nested(element: Any, shape: tuple[int, ...]) -> Any:
    for size in reversed(shape):
        element = Annotated[list[element], Field(min_length=size, max_length=size)]
    return element


def encode(space: spaces.Space[Any], value: Any) -> Any:
    """An element of a space as JSON has it, or a model that becomes it."""
    if isinstance(space, spaces.Box):
        array = np.asarray(value)
        if is_image(space):
            return ImageData.of(array)
        return ArrayData.of(array) if is_large(space) else array.tolist()
    if isinstance(space, spaces.Dict):
        return {key: encode(each, value[key]) for key, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [encode(each, item) for each, item in zip(space.spaces, value, strict=True)]
    if isinstance(space, spaces.OneOf):
        return [int(value[0]), encode(space.spaces[value[0]], value[1])]
    if isinstance(space, spaces.Sequence):
        return [encode(space.feature_space, item) for item in _items(space, value)]
    return plain(value)


def _items(space: spaces.Sequence, value: Any) -> Any:
    return gymnasium.vector.utils.iterate(space.stacked_feature_space, value) if space.stack else value


def plain(value: Any) -> Any:
    """Whatever an environment tells, without NumPy: its `info` may hold anything."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufSU":
            return [plain(item) for item in value.tolist()]
        return ArrayData.of(value) if value.size > LARGEST_LIST else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):  # a graph
        return plain(value._asdict())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def decode(space: spaces.Space[Any], value: Any) -> Any:
    """The element of a space that JSON stands for; raises ValueError if it is none."""
    try:
        element = _decode(space, value)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"{_short(value)} is not in the action space {space}: {error}") from None
    if not space.contains(element):
        raise ValueError(f"{_short(value)} is not in the action space {space}")
    return element


def _decode(space: spaces.Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Discrete):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("it takes an integer")
        return np.int64(value)
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        array = np.asarray(value)
        if array.size and array.dtype.kind not in ("iuf" if space.dtype.kind == "f" else "iu"):
            raise TypeError("it takes numbers" if space.dtype.kind == "f" else "it takes integers")
        converted = array.astype(space.dtype)
        if space.dtype.kind != "f" and (converted != array).any():
            raise ValueError(f"it takes {space.dtype}")
        return converted
    if isinstance(space, spaces.Dict):
        if value.keys() != space.spaces.keys():
            raise ValueError(f"it takes {', '.join(space.spaces)}")
        return {key: _decode(each, value[key]) for key, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_decode(each, item) for each, item in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.OneOf):
        number, item = value
        return np.int64(number), _decode(space.spaces[number], item)
    if isinstance(space, spaces.Sequence):
        return tuple(_decode(space.feature_space, item) for item in value)
    if isinstance(space, spaces.Graph):
        edge_type = None if space.edge_space is None else space.edge_space.dtype
        types = {"nodes": space.node_space.dtype, "edges": edge_type, "edge_links": np.int32}
        arrays: dict[str, Any] = dict.fromkeys(types)
        arrays |= {key: np.asarray(part, dtype=types[key]) for key, part in value.items() if part is not None}
        return spaces.GraphInstance(**arrays)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
