"""Where peers are kept, and what they are told to serve."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from envhive.bench import peers
from envhive.errors import ConfigurationError

OPENENV = peers.PEERS["openenv"]


def test_the_cache_is_where_the_user_says_or_where_caches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVHIVE_PEER_CACHE", str(tmp_path))
    assert peers.peer_folder(OPENENV) == tmp_path / "openenv-0.10.0"
    monkeypatch.delenv("ENVHIVE_PEER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert peers.cache_folder() == tmp_path / "xdg" / "envhive" / "peers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert peers.cache_folder() == tmp_path / ".cache" / "envhive" / "peers"


def test_a_peer_that_is_there_is_not_installed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVHIVE_PEER_CACHE", str(tmp_path))
    python = tmp_path / "openenv-0.10.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "openenv-0.10.0" / "complete").touch()
    said: list[str] = []
    assert peers.install(OPENENV, said.append) == python
    assert said == []


def test_a_peer_is_found_by_name_and_form() -> None:
    assert peers.find("openenv") == (OPENENV, "sync")
    assert peers.find("openenv:async") == (OPENENV, "async")
    for name in ("", "nobody", "openenv:fast"):
        with pytest.raises(ConfigurationError, match="no peer"):
            peers.find(name)


def test_the_peers_environment_has_the_fields_of_our_own() -> None:
    from envhive.envs.benchmark import BenchmarkAction, BenchmarkObservation
    from envhive.types import Action, Observation

    with peers.app_folder(OPENENV) as folder:
        tree = ast.parse((folder / "peer_app.py").read_text())
    fields = {
        node.name: {
            line.target.id
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert fields["BenchmarkAction"] == set(BenchmarkAction.model_fields) - set(Action.model_fields)
    assert fields["BenchmarkObservation"] == set(BenchmarkObservation.model_fields) - set(Observation.model_fields)


def test_workers_are_asked_for_only_when_there_are_several(tmp_path: Path) -> None:
    one = peers.peer_server(OPENENV, Path("python"), "sync", tmp_path, "peer")
    two = peers.peer_server(OPENENV, Path("python"), "async", tmp_path, "peer", workers=2)
    assert "--workers" not in one.command(8000)
    assert two.command(8000)[-2:] == ["--workers", "2"]
    assert two.environment == {"PEER_FORM": "async"}


def test_a_command_that_fails_shows_what_it_said() -> None:
    import sys

    with pytest.raises(ConfigurationError, match="no such thing"):
        peers.import_seconds(Path(sys.executable), "raise SystemExit('no such thing')")
    with pytest.raises(ConfigurationError, match="cannot be run"):
        peers.import_seconds(Path("/nonexistent/python"), "pass")
