"""Talking to Docker, as far as no daemon is needed."""

from __future__ import annotations

import gc
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envhive.errors import ConfigurationError, MissingPackageError, ProviderError
from envhive.providers.docker import LocalDockerProvider
from envhive.providers.docker_engine import connect, require_image


def daemon_that_pulls(*events: dict[str, Any]) -> Any:
    """A client whose daemon does not have the image, and says this while it is pulled."""
    from docker.errors import ImageNotFound

    def get(name: str) -> None:
        raise ImageNotFound(name)

    def pull(repository: str, **options: Any) -> Any:
        assert (repository, options["tag"]) == ("registry.example.org/game", "1")
        return iter(events)

    return SimpleNamespace(images=SimpleNamespace(get=get), api=SimpleNamespace(pull=pull))


def downloading(layer: str, current: int, total: int) -> dict[str, Any]:
    return {
        "status": "Downloading",
        "id": layer,
        "progressDetail": {"current": current * 1_000_000, "total": total * 1_000_000},
    }


def test_it_is_told_how_far_a_pull_is_but_not_too_often() -> None:
    said: list[str] = []
    events = [{"status": "Pulling from game"}, *(downloading("a", part, 200) for part in range(1, 201))]
    require_image(daemon_that_pulls(*events), "registry.example.org/game:1", "missing", said.append)
    assert said[0] == "pulling registry.example.org/game:1"
    assert said[-1].endswith(": 200 of 200 MB")
    assert len(said) < 15


def test_a_pull_that_fails_says_why_and_what_to_do() -> None:
    client = daemon_that_pulls({"error": "manifest unknown"})
    with pytest.raises(ProviderError, match=r"could not be pulled: manifest unknown\. Build it .*docker login"):
        require_image(client, "registry.example.org/game:1", "missing", lambda sentence: None)


def test_without_dockers_client_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'envhive\[docker\]'"):
        LocalDockerProvider("game").start()


def test_a_daemon_that_does_not_listen_yet_is_named_and_no_socket_is_left_open(tmp_path: Path) -> None:
    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(path)
        with pytest.raises(ProviderError, match=rf"does not answer at unix://{path} .*refused"):
            connect(f"unix://{path}")
    gc.collect()  # a socket that was left open would complain now


def test_an_image_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="which image"):
        LocalDockerProvider().start()


def test_the_image_of_a_new_environment_checks_its_health_as_the_base_image_does() -> None:
    from tests.support.dockerd import REPOSITORY

    base = (REPOSITORY / "docker" / "Dockerfile").read_text()
    made = (REPOSITORY / "src/envhive/scaffold/templates/common/Dockerfile.tmpl").read_text()
    check = base[base.index("HEALTHCHECK") : base.rindex("CMD [")]
    assert "CMD" in check
    assert check in made
