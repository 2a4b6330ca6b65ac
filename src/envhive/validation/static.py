"""The first stage: what can be told of a folder without running any of its code."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

from envhive.checks import Broken, NotChecked, Report
from envhive.errors import TargetError
from envhive.server.packages import package_dir
from envhive.server.target import MANIFEST, read_manifest

_NOT_OURS: Final = {".venv", "venv", "node_modules", "build", "dist", "__pycache__", ".git", ".tox"}
_SERVERS: Final = ("envhive", "openenv", "openenv-core")


def check_folder(folder: Path, report: Report) -> None:
    """Look through an environment's folder."""
    manifest: dict[str, Any] = {}
    with report.checking("the manifest can be read"):
        manifest = _read_manifest(folder)
    if manifest:
        with report.checking("the manifest is complete"):
            _check_manifest(manifest)
        with report.checking("the manifest names something that is there"):
            _check_reference(folder, manifest.get("app", "server.app:app"))
    with report.checking("its Python can be parsed"):
        _check_syntax(folder)
    with report.checking("README.md is a Space's"):
        _check_readme(folder, manifest)
    with report.checking("the Dockerfile makes a server that others can reach"):
        _check_dockerfile(folder, manifest)
    with report.checking("it can be installed"):
        _check_project(folder)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise Broken(
            f"{path} is not there.",
            "Write one with at least `name: ...` and `app: package.module:EnvClass`; `envhive init` shows a whole one.",
        )
    try:
        return read_manifest(folder)
    except TargetError as error:
        raise Broken(str(error), "Mend the line that it names; `envhive init` shows a whole manifest.") from None


def _check_manifest(manifest: dict[str, Any]) -> None:
    reference = manifest.get("app", "server.app:app")
    if not isinstance(reference, str) or not re.fullmatch(r"[\w.]+:[\w.]+", reference):
        raise Broken(
            f"app is {reference!r} in {MANIFEST}.",
            "Name a module and what is in it: `app: package.module:EnvClass` or `app: server.app:app`.",
        )
    port = manifest.get("port", 8000)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise Broken(f"port is {port!r} in {MANIFEST}.", "Make it a number: `port: 8000`.")
    expected = {"spec_version": 1, "name": "my_env", "type": "space", "runtime": "fastapi", "app": "...", "port": 8000}
    missing = [name for name in expected if not manifest.get(name)]
    if missing:
        lines = ", ".join(f"`{name}: {expected[name]}`" for name in missing)
        raise Broken(
            f"{MANIFEST} does not say {', '.join(missing)}, which OpenEnv's tools read.",
            f"Add {lines}.",
            level="warning",
        )


def _check_reference(folder: Path, reference: Any) -> None:
    if not isinstance(reference, str) or ":" not in reference:
        raise NotChecked("the manifest has no usable app")
    module, _, attribute = reference.partition(":")
    found = _module_file(folder, module)
    if found is None:
        raise Broken(
            f"{MANIFEST} names the module {module}, and there is no {module.replace('.', '/')}.py in {folder}.",
            "Correct `app:` in the manifest, or put the module there.",
        )
    try:
        tree = ast.parse(found.read_bytes())
    except SyntaxError:
        raise NotChecked(f"{found.name} cannot be parsed") from None
    if attribute.split(".")[0] not in _names_in(tree):
        raise Broken(
            f"{MANIFEST} names {attribute}, which {found.relative_to(folder.parent)} does not define.",
            f"Correct `app: {reference}`: give the name of the environment class, or of the app.",
        )


def _module_file(folder: Path, module: str) -> Path | None:
    """Where a module of the folder is: the reference may begin in the folder, or lead to it from above by its names."""
    parts = module.split(".")
    own_names = {folder.resolve().name, *(name for name, place in package_dir(folder).items() if place == ".")}
    ways = [parts, *(parts[at + 1 :] for at, part in enumerate(parts[:-1]) if part in own_names)]
    for root in (folder, folder / "src"):
        for way in ways:
            for path in (root.joinpath(*way).with_suffix(".py"), root.joinpath(*way, "__init__.py")):
                if path.is_file():
                    return path
    return None


def _names_in(tree: ast.Module) -> set[str]:
    """The names that a module has at its top level, in branches and `try` too; everything if it imports `*`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    if "*" in names or "__getattr__" in names:
        raise NotChecked("what the module defines cannot be told without running it")
    return names


def _check_syntax(folder: Path) -> None:
    for path in sorted(folder.rglob("*.py")):
        if _NOT_OURS & set(path.relative_to(folder).parts):
            continue
        try:
            ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            where = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(path)
            raise Broken(
                f"{where} is not Python: {getattr(error, 'msg', error)}.",
                f"Mend that line; `python -m py_compile {path}` shows it.",
            ) from None


def _check_readme(folder: Path, manifest: dict[str, Any]) -> None:
    is_space = manifest.get("type") == "space"
    path = folder / "README.md"
    if not path.is_file():
        raise Broken(
            f"{path} is not there.",
            "Write one: a Space is made from its first lines, and people read the rest.",
            level="error" if is_space else "warning",
        )
    found = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", path.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    if found is None:
        raise Broken(
            f"{path} does not begin with the front matter that a Space needs.",
            "Put these lines first: ---, title: My Env, sdk: docker, app_port: 8000, ---.",
            level="error" if is_space else "warning",
        )
    try:
        matter = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise Broken(
            f"The front matter of {path} is not YAML: {' '.join(str(error).split())}.", "Mend the line that it names."
        ) from None
    if not isinstance(matter, dict) or matter.get("sdk") != "docker":
        raise Broken(f"The front matter of {path} does not say `sdk: docker`.", "Add that line; no other SDK fits.")
    port = manifest.get("port", 8000)
    if matter.get("app_port") != port:
        raise Broken(
            f"The front matter of {path} says app_port: {matter.get('app_port')}, and {MANIFEST} says port: {port}.",
            f"Write `app_port: {port}`: without it a Space asks at port 7860.",
        )


def _check_dockerfile(folder: Path, manifest: dict[str, Any]) -> None:
    path = next((each for each in (folder / "Dockerfile", folder / "server" / "Dockerfile") if each.is_file()), None)
    if path is None:
        raise Broken(
            f"There is no Dockerfile in {folder}.",
            "Write one, if it is to run in a container or Space; `envhive init` shows how.",
            level="warning",
        )
    text = re.sub(r"\\\s*\n", " ", path.read_text(encoding="utf-8", errors="replace"))
    orders = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    words = [order.split(None, 1)[0].upper() for order in orders]
    if "FROM" not in words:
        raise Broken(f"{path} has no FROM.", "Begin it with `FROM python:3.12-slim`.")
    starts = [order for order, word in zip(orders, words, strict=True) if word in ("CMD", "ENTRYPOINT")]
    if not starts:
        raise Broken(f"{path} starts nothing.", 'End it with `CMD ["envhive", "serve", "."]`.')
    plain = " ".join(re.findall(r"[\w./:=-]+", " ".join(starts)))
    says_host = "--host" in plain or any(re.match(r"ENV\b.*\bHOST[ =]", order) for order in orders)
    if re.search(r"\benvhive serve\b", plain) and not says_host:
        raise Broken(
            f"{path} starts a server that listens inside the container only.", "Add `ENV HOST=0.0.0.0` before CMD."
        )
    port = str(manifest.get("port", 8000))
    exposed = [order.split() for order in orders if order.upper().startswith("EXPOSE")]
    if exposed and not any(port in word.split("/") for order in exposed for word in order[1:]):
        raise Broken(f"{path} exposes another port than {MANIFEST}, which says {port}.", f"Write `EXPOSE {port}`.")
    if "USER" not in words:
        raise Broken(
            f"{path} runs the environment as root.",
            "Add `RUN useradd --create-home --uid 1000 player` and, before CMD, `USER player`.",
            level="warning",
        )


def _check_project(folder: Path) -> None:
    project, listed = folder / "pyproject.toml", folder / "requirements.txt"
    if not project.is_file() and not listed.is_file():
        raise Broken(
            f"{folder} says nowhere what it needs.",
            "Write a pyproject.toml with `dependencies = [...]`; `envhive init` shows a whole one.",
            level="warning",
        )
    if not project.is_file():
        return
    try:
        document = tomllib.loads(project.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Broken(f"{project} is not TOML: {error}.", "Mend the line that it names.") from None
    needed = document.get("project", {}).get("dependencies", [])
    names = {re.split(r"[^\w-]", str(each).strip(), maxsplit=1)[0].replace("_", "-").lower() for each in needed}
    if not names & set(_SERVERS):
        raise Broken(
            f"{project} does not name envhive among its dependencies.",
            'Add "envhive" to `dependencies` in [project], so that installing it brings the server.',
            level="warning",
        )
