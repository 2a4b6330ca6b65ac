"""The import hook: modules that carry OpenEnv's names and hold EnvHive's things, in this process alone."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location, spec_from_loader
from types import ModuleType
from typing import Any, Final

from envhive.compat.names import ELSEWHERE, MODULES, NEEDS, STAND_INS
from envhive.compat.serialization import serialize_observation
from envhive.errors import ConfigurationError
from envhive.wire.observations import write_observations_by

ROOTS: Final = {"openenv": "openenv", "openenv_core": "openenv.core", "core": "openenv.core"}
"""The packages that environments import from, and what each is in the table."""

_ORIGINAL: Final = "__original"
"""At the end of the name under which a module of the installed OpenEnv is loaded that EnvHive replaces."""

logger: Final = logging.getLogger("envhive.server")


class NotMappedError(ModuleNotFoundError):
    """A name of OpenEnv's that EnvHive does not have."""

    def __init__(self, wanted: str) -> None:
        parent, _, name = wanted.rpartition(".")
        if find_real("openenv") is None:
            advice = (
                "If it is one of OpenEnv's further modules, install openenv beside EnvHive: it is then taken from there"
            )
        else:
            advice = "Nor has the openenv that is installed here"
        super().__init__(f"EnvHive stands in for {parent}, and has no {name!r} in it. {advice}.")
        # Not as `name`: `from package import wanted` would then hide this error behind one that says less.
        self.wanted = wanted


class AliasModule(ModuleType):
    """A module of OpenEnv's name. What is in it is looked up when it is asked for."""

    def __init__(self, name: str, key: str) -> None:
        super().__init__(name, f"EnvHive's part of {key}.")
        self.__key = key
        self.__names = MODULES.get(key) or STAND_INS.get(key, {})
        missing = {name for package, names in NEEDS.items() if find_spec(package) is None for name in names}
        self.__all__ = sorted(set(self.__names) - missing - {"__version__"})

    def __getattr__(self, name: str) -> Any:
        known = {**ELSEWHERE.get(self.__key, {}), **self.__names}
        if name.startswith("__") and name not in known:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__key}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        home, _, attribute = known.get(name, "").partition(":")
        try:
            value = getattr(importlib.import_module(home) if home else self.__original(name), attribute or name)
        except NotMappedError as error:
            raise AttributeError(str(error)) from error
        except ConfigurationError as error:  # a package that only this name needs is not installed
            raise ImportError(str(error)) from error
        super().__setattr__(name, value)  # past our own: it is looked up, not replaced
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Heeds what some environments replace in OpenEnv's server: the form in which observations are sent."""
        super().__setattr__(name, value)
        if name == "serialize_observation" and self.__key == "openenv.core.env_server.http_server":
            write_observations_by(None if value is serialize_observation else value)

    def __original(self, name: str) -> ModuleType:
        """The installed OpenEnv's module of this name, for what it has and EnvHive does not, such as `_helpers`."""
        original = load_original(self.__key)
        if original is None or not hasattr(original, name):
            raise NotMappedError(f"{self.__name__}.{name}")
        return original

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__all__})


class AliasLoader(Loader):
    def __init__(self, key: str) -> None:
        self._key = key

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AliasModule(spec.name, self._key)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class AliasFinder(MetaPathFinder):
    """Finds OpenEnv's modules before anything else does, so that it does not matter whether OpenEnv is installed.

    Modules that EnvHive does not replace come from the installed OpenEnv, if there is one. What they import from the
    replaced ones is EnvHive's, so no class is there twice.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root not in ROOTS:
            return None
        if root == "core" and find_real("core") is not None and (not rest or PathFinder.find_spec(fullname, path)):
            return None  # the folder has a package of this everyday name; what it holds is its own
        key = f"{ROOTS[root]}.{rest}" if rest else ROOTS[root]
        if key in MODULES or (key in STAND_INS and find_real(key) is None):
            # Every one is a package, so that Python asks here, too, for names that are not in it.
            return spec_from_loader(fullname, AliasLoader(key), origin="envhive.compat", is_package=True)
        found = PathFinder.find_spec(fullname, path) if path else find_real(key, fullname)
        if found is None:
            if root == "core" and find_real("core") is not None:
                return None
            raise NotMappedError(fullname)
        return found


def find_real(key: str, fullname: str | None = None) -> ModuleSpec | None:
    """Where an installed module is, looked for without importing any."""
    places: Sequence[str] | None = None
    *parents, _ = parts = key.split(".")
    for parent in parents:
        found = PathFinder.find_spec(parent, places)
        if found is None or found.submodule_search_locations is None:
            return None
        places = list(found.submodule_search_locations)
    return PathFinder.find_spec(fullname or parts[-1], places)


def load_original(key: str) -> ModuleType | None:
    """A module that EnvHive replaces, as the installed OpenEnv has it, beside the one that stands in for it.

    What it imports from its neighbours is EnvHive's, where EnvHive has it. Packages are left alone: whatever is in
    them comes from a module.
    """
    name = f"{key}{_ORIGINAL}"
    if name in sys.modules:
        return sys.modules[name]
    found = find_real(key)
    if found is None or found.origin is None or found.submodule_search_locations is not None:
        return None
    spec = spec_from_file_location(name, found.origin)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:  # whatever its code raises: a half-made module must not be found later
        del sys.modules[name]
        raise
    return module


_finder: Final = AliasFinder()


def install() -> bool:
    """Have this process import EnvHive's things under OpenEnv's names. False if it is too late for that."""
    if _finder in sys.meta_path:
        return True
    loaded = sys.modules.get("openenv")
    if loaded is not None and not isinstance(loaded, AliasModule):
        logger.warning("OpenEnv itself was imported before EnvHive could stand in for it, and will be used")
        return False
    sys.meta_path.insert(0, _finder)
    return True


def uninstall() -> None:
    """Take the hook out again, and forget what was imported through it."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    ours = [name for name, each in sys.modules.items() if isinstance(each, AliasModule) or name.endswith(_ORIGINAL)]
    for name in ours:
        del sys.modules[name]
    write_observations_by(None)
