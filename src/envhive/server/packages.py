"""A folder's packages by the names that its pyproject.toml gives them, as if the folder were installed."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


def know_packages(folder: Path) -> None:
    """Have the packages found that a folder's `package-dir` names, where nothing of their names is installed.

    OpenEnv's template calls the folder itself a package, `{"my_env" = "."}`, whatever the folder is called.
    """
    places = {name: folder / place for name, place in package_dir(folder).items() if "." not in name}
    root = places.pop("", None)
    if root is not None and str(root) not in sys.path:
        sys.path.append(str(root))
    if places:
        sys.meta_path.append(_Packages(places))


def package_dir(folder: Path) -> dict[str, str]:
    """What a folder's pyproject.toml tells setuptools of where its packages are; nothing, if it cannot be read."""
    try:
        document = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        told = document["tool"]["setuptools"]["package-dir"]
        return {str(name): str(place) for name, place in told.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a broken one is for `envhive validate` to tell
        return {}


class _Packages(MetaPathFinder):
    """Asked last, so that what is installed comes first."""

    def __init__(self, places: dict[str, Path]) -> None:
        self._places = places

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = self._places.get(fullname)
        if place is None or not place.is_dir():
            return None
        initial = place / "__init__.py"
        if initial.is_file():
            return spec_from_file_location(fullname, initial, submodule_search_locations=[str(place)])
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec
