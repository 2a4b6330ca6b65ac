"""Libraries that draw from Python's and NumPy's global generators, made to draw from a session's own.

Each session runs on a thread of its own, so what one of them seeded another would draw from. Here the modules of a
library get, under the names `random` and `numpy`, stand-ins that ask which generators the calling thread uses now.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Generators:
    """The generators of one session, made anew for each episode."""

    def __init__(self, seed: int) -> None:
        import numpy

        self.python = random.Random(seed)
        self.numpy = numpy.random.RandomState(seed % 2**32)


class _Drawing(threading.local):
    """The generators that this thread draws from now."""

    generators: Generators | None = None


_drawing = _Drawing()


@contextmanager
def drawing_from(generators: Generators) -> Iterator[None]:
    """Within this block, on this thread, libraries that were told to `draw_from_sessions` draw from these."""
    before, _drawing.generators = _drawing.generators, generators
    try:
        yield
    finally:
        _drawing.generators = before


class _PythonRandom:
    """Stands in for the module `random`."""

    def __getattr__(self, name: str) -> Any:
        generators = _drawing.generators
        own = None if generators is None else getattr(generators.python, name, None)
        return getattr(random, name) if own is None else own


class _NumpyRandom:
    """Stands in for `numpy.random`."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        generators = _drawing.generators
        own = None if generators is None else getattr(generators.numpy, name, None)
        return getattr(numpy.random, name) if own is None else own


class _Numpy:
    """Stands in for `numpy`."""

    random = _NumpyRandom()

    def __getattr__(self, name: str) -> Any:
        import numpy

        return getattr(numpy, name)


_python_random, _numpy = _PythonRandom(), _Numpy()


def draw_from_sessions(package: str) -> None:
    """Have the modules of a package that are loaded by now draw from the generators of `drawing_from`."""
    numpy = sys.modules.get("numpy")
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or not (name + ".").startswith(package + "."):
            continue
        for attribute, value in list(vars(module).items()):
            if value is random:
                setattr(module, attribute, _python_random)
            elif numpy is not None and value is numpy:
                setattr(module, attribute, _numpy)
