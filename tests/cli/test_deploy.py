"""`envhive deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from envhive.cli import main


def deploy(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["deploy", "kubernetes", *arguments], env={"ENVHIVE_TOKENS": None, **environ})


def documents(*arguments: str, **environ: str) -> dict[str, Any]:
    done = deploy(*arguments, **environ)
    assert done.exit_code == 0, done.output
    assert "&id" not in done.output
    return {document["kind"]: document for document in yaml.safe_load_all(done.output)}


def test_an_image_is_deployed_as_it_is() -> None:
    found = documents("--image", "registry.example.org:5000/team/Word_Game:1.0", "--replicas", "4")
    assert set(found) == {"Service", "Deployment"}
    assert found["Deployment"]["metadata"]["name"] == "word-game"
    assert found["Deployment"]["spec"]["replicas"] == 4
    assert "args" not in found["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def test_a_folder_is_deployed_with_the_image_that_build_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "openenv.yaml").write_text("name: word_game\n")
    (container,) = documents(str(tmp_path))["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "word-game:latest"


def test_a_target_is_served_by_an_image_that_has_envhive() -> None:
    found = documents("echo", "--image", "envhive", "--set", "level=2", ENVHIVE_TOKENS="hush")
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["envhive", "serve", "echo", "--set", "level=2"]
    assert found["Secret"]["stringData"] == {"tokens": "hush"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["echo"], "Say which image"),
        (["--image", "game", "--env", "nonsense"], "'nonsense' is not NAME=VALUE"),
        (["--image", "game", "--set", "level=1"], "Say what to serve"),
        (["--image", "game", "--name", "Game"], "name for Kubernetes"),
    ],
)
def test_what_cannot_be_deployed_is_refused(arguments: list[str], says: str) -> None:
    done = deploy(*arguments)
    assert done.exit_code == 2
    assert says in done.output
