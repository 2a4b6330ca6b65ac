"""What `envhive serve TARGET` serves: a shipped environment, a class, an app, or a folder."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

import yaml

from envhive import compat
from envhive.envs import SHIPPED
from envhive.errors import TargetError
from envhive.inspection import infer_models, underlying_class
from envhive.samples import sample_instance
from envhive.server.app import create_app
from envhive.server.hive import Hive
from envhive.server.packages import know_packages

MANIFEST = "openenv.yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """Something to serve: an ASGI app, and what to call it."""

    app: Any
    name: str


def describe_target(target: Target) -> dict[str, Any]:
    """What to say of a target when it is served: its name and, of an environment, its limit and an action to show."""
    server = getattr(getattr(target.app, "state", None), "envhive", None)
    if server is None:  # wrapped or mounted, if there is one at all
        return {"name": target.name, "has_environment": bool(Hive.all)}
    limit = server.hive.limit
    return {
        "name": target.name,
        "has_environment": True,
        "limit": f"{limit.sessions} session(s) at once, {limit.reason}",
        "action": _sample_action(server.hive.blueprint.action_cls),
    }


def _sample_action(action_cls: type[Any]) -> Any:
    try:
        return sample_instance(action_cls).model_dump(mode="json", exclude_unset=True)
    except (ValueError, TypeError, AttributeError):  # none can be made up; pydantic's refusal is a ValueError
        return None


def load_target(target: str, settings: dict[str, Any] | None = None) -> Target:
    """Resolve a target; raises `TargetError`, which says what was looked for and not found.

    `settings` are keywords for the constructor of an environment class. What it loads may import OpenEnv's names: it
    gets EnvHive's.
    """
    if target in SHIPPED:
        shipped = SHIPPED[target]
        if hint := shipped.hint():
            raise TargetError(f"{target} needs {', '.join(shipped.missing())}: {hint}")
        return Target(_app_from_reference(shipped.reference, env_name=target, settings=settings), target)
    compat.install()
    if target and Path(target).is_dir():
        return _load_folder(Path(target), settings)
    if ":" in target:
        _import_from(Path.cwd())
        return Target(_app_from_reference(target, env_name=None, settings=settings), target)
    raise unknown_target(target)


def unknown_target(target: str) -> TargetError:
    """What to say of a target that is nothing which could be served."""
    return TargetError(
        f"{target!r} is neither a shipped environment ({', '.join(sorted(SHIPPED))}), nor package.module:EnvClass, "
        f"nor package.module:app, nor a folder.{_perhaps(target, SHIPPED)} `envhive init NAME` makes a folder."
    )


def _perhaps(written: str, known: Iterable[str]) -> str:
    """What may have been meant, as a sentence; nothing if that cannot be guessed."""
    alike = difflib.get_close_matches(written, known, n=1)
    return f" Did you mean {alike[0]!r}?" if alike else ""


def must_be_known(target: str) -> None:
    """Raise if a target cannot be served by its mere name: there is no such folder, or no such module at all."""
    if target in SHIPPED or (target and Path(target).is_dir()):
        return
    module, colon, _ = target.partition(":")
    package = module.partition(".")[0]
    if not colon or not package:
        raise unknown_target(target)
    if package not in sys.modules and PathFinder.find_spec(package, [str(Path.cwd()), *sys.path]) is None:
        raise _no_module(module)


def _no_module(name: str) -> TargetError:
    return TargetError(
        f"There is no module {name!r} here ({Path.cwd()}) or among the installed ones. "
        f"Go to the folder that it is in, or install it."
    )


def _load_folder(folder: Path, settings: dict[str, Any] | None) -> Target:
    folder = folder.resolve()
    manifest = read_manifest(folder)
    reference = manifest.get("app", "server.app:app")
    if not isinstance(reference, str) or ":" not in reference:
        raise TargetError(f"{folder / MANIFEST}: app must name a module and an app, as in server.app:app.")
    module, _, attribute = reference.partition(":")
    root, module = _module_in_folder(folder, module)
    inside, reference = root == folder, f"{module}:{attribute}"
    name = str(manifest.get("name") or folder.name)
    os.chdir(folder)
    _import_from(root)
    if root != folder.parent and str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))  # where an installed copy would be: some import their own package by name
    know_packages(folder)
    try:
        return Target(_app_from_reference(reference, env_name=None, settings=settings), name)
    except ImportError as error:
        if not inside or "beyond top-level package" not in str(error):
            raise
        # Its modules import each other as parts of one package, which only its parent folder can offer.
        return Target(_app_from_reference(f"{folder.name}.{reference}", env_name=None, settings=settings), name)


def _module_in_folder(folder: Path, module: str) -> tuple[Path, str]:
    """Where the module that a folder's manifest names is to be imported from, and under which name.

    Most are named as seen from the folder: `server.app`. One that begins with the folder's own name is meant to be
    imported from its parent, and `envs.my_env.server.app` from the parent of that, as in the repository it was written
    in; where the folder lies elsewhere now, what is above it does not count.
    """
    parts = module.split(".")
    if (folder / parts[0]).is_dir() or (folder / f"{parts[0]}.py").is_file() or folder.name not in parts:
        return folder, module
    depth = parts.index(folder.name)
    above = [parent.name for parent in folder.parents[:depth]]
    if above[::-1] == parts[:depth]:
        return folder.parents[depth], module
    return folder.parent, ".".join(parts[depth:])


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a folder's openenv.yaml says."""
    path = folder / MANIFEST
    try:
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(f"{folder} has no {MANIFEST}, which would name the app to serve.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(manifest, dict):
        raise TargetError(f"{path} must hold a mapping such as `app: server.app:app`.")
    return manifest


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _app_from_reference(reference: str, env_name: str | None, settings: dict[str, Any] | None) -> Any:
    found = _import_reference(reference)
    if settings and (not isinstance(found, type) or not callable(getattr(found, "step", None))):
        raise TargetError(f"{reference} is no environment class, so --set has nothing to set.")
    if isinstance(found, type):
        if not callable(getattr(found, "step", None)):
            raise TargetError(f"{reference} is a class without a step method, so it is no environment.")
        if inspect.isabstract(found):
            missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
            raise TargetError(f"{reference} cannot be served: it does not define {missing}.")
        found = _fitted(found, _checked(found, settings or {}))
        action_cls, observation_cls = infer_models(found)
        factory = functools.partial(found, **settings) if settings else found
        return create_app(cast(Any, factory), action_cls, observation_cls, env_name=env_name)
    if _is_asgi_app(found):
        return found
    returned = underlying_class(found) if callable(found) else None
    if returned is not None and callable(getattr(returned, "step", None)):
        action_cls, observation_cls = infer_models(returned)
        return create_app(found, action_cls, observation_cls, env_name=env_name)
    if _is_app_factory(found) and _is_asgi_app(made := found()):
        return made
    raise TargetError(f"{reference} is neither an environment class nor an ASGI app, but {type(found).__name__}.")


def _fitted(cls: type, settings: dict[str, Any]) -> type:
    """What the class wants to be served as with these settings; those of OpenEnv do not say."""
    for_settings = getattr(cls, "for_settings", None)
    if not inspect.ismethod(for_settings):
        return cls
    try:
        return cast(type, for_settings(**settings))
    except Exception as error:  # the author's code: anything may come, and the start must say so
        raise TargetError(f"{cls.__name__} cannot be served so: {type(error).__name__}: {error}") from error


def _checked(cls: type, settings: dict[str, Any]) -> dict[str, Any]:
    parameters = _parameters(cls)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = sorted(settings.keys() - set(known))
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise TargetError(f"{cls.__name__} has no setting {unknown[0]!r}; it has {', '.join(known) or 'none'}.")
    needed = [p.name for p in parameters if p.name in known and p.default is p.empty and p.name not in settings]
    if needed:
        raise TargetError(
            f"{cls.__name__} cannot be made without {' and '.join(needed)}: --set {needed[0]}=..., or give "
            f"the parameter of __init__ a default."
        )
    return settings


def _import_reference(reference: str) -> Any:
    module_name, _, attribute = reference.partition(":")
    if not module_name or module_name.startswith(".") or not attribute:
        raise TargetError(f"{reference!r} must name a module and something in it, as in package.module:EnvClass.")
    try:
        found: Any = importlib.import_module(module_name)
    except compat.NotMappedError as error:
        raise TargetError(f"{module_name} cannot be loaded. {error}") from error
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        line = f": {error.text.strip()}" if error.text else ""
        raise TargetError(f"{where}: {error.msg}{line}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise TargetError(f"{module_name} needs the module {error.name!r}, which is not installed.") from error
        raise _no_module(module_name) from None
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            perhaps = _perhaps(part, dir(found))
            raise TargetError(f"The module {module_name!r} has no {attribute!r}.{perhaps}") from None
    return found


def _is_app_factory(found: Any) -> bool:
    """Whether it is a function to get an app from, as uvicorn takes them. One that is called `main` runs a server."""
    if not inspect.isfunction(found) or inspect.iscoroutinefunction(found) or found.__name__ == "main":
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in _parameters(found))


def _parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _is_asgi_app(found: Any) -> bool:
    if not callable(found):
        return False
    if inspect.iscoroutinefunction(found):
        return len(_parameters(found)) == 3  # scope, receive, send
    return hasattr(found, "router") or inspect.iscoroutinefunction(type(found).__call__)
