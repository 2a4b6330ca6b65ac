"""Imports point one way, and light things stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import envhive

ROOT = Path(envhive.__file__).parent
ORDER = [
    *("errors", "sockets", "types", "rubrics", "tools", "tool_results", "environment", "toolbox", "mcp_environment"),
    *(
        "inspection",
        "samples",
        "wire",
        "checks",
        "providers",
        "fleet",
        "client",
        "compat",
        "envs",
        "server",
        "bench",
        "scaffold",
        "validation",
        "hub",
        "cli",
    ),
    "__main__",
]


def rooms_imported_by(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envhive."):
            rooms.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            rooms.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("envhive."))
    return rooms


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in ORDER, f"{room} has no place in the order of rooms"
    above = {other for other in rooms_imported_by(path) if ORDER.index(other) > ORDER.index(room)}
    assert not above, f"{room} imports {above}, which are above it"
    if room == "server":
        assert "client" not in rooms_imported_by(path)


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "wire").glob("*.py")), *(ROOT / "server" / f"{name}.py" for name in ("session", "turns"))]
)
def test_the_wire_and_the_session_know_nothing_of_sockets(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & {"socket", "fastapi", "starlette", "uvicorn", "picows"}


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_client_loads_neither_a_web_framework_nor_an_mcp_library() -> None:
    assert not loaded_by("import envhive.client") & {
        "fastapi",
        "starlette",
        "uvicorn",
        "mcp",
        "fastmcp",
        "click",
        "yaml",
    }


def test_a_server_starts_without_what_only_its_metrics_need() -> None:
    assert "prometheus_client" not in loaded_by("import envhive.server.app, envhive.server.run, envhive.server.worker")


def test_importing_the_package_loads_next_to_nothing() -> None:
    assert not loaded_by("import envhive") & {"pydantic", "msgspec", "picows", "asyncio"}


def test_every_public_name_can_be_had_from_the_package() -> None:
    for name in envhive.__all__:
        assert getattr(envhive, name) is not None
    assert set(envhive.__all__) <= set(dir(envhive))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = envhive.nonsense
