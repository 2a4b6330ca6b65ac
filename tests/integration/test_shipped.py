"""OpenEnv's own clients, as released, play the environments that ship."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.families import FAMILIES, SEED, each_family, played
from tests.support.processes import envhive_serve

if TYPE_CHECKING:
    from tests.integration.conftest import PeerDriver

pytestmark = pytest.mark.integration


@each_family()
def test_the_script_earns_the_same_through_openenvs_client(peer_clients: PeerDriver, name: str) -> None:
    family = FAMILIES[name]
    options = [word for key, value in family.settings.items() for word in ("--set", f"{key}={value}")]
    # In a process of its own: one that Ray has been used in, as in other tests, cannot be forked for environments.
    with envhive_serve(name, *options) as server:
        client = peer_clients.open(server.url)
        seen: list[dict[str, Any]] = [client.reset(seed=SEED).result]
        seen += [client.step(**action).result for action in family.script]
        assert client.state().result["step_count"] == len(family.script)
        client.close()
    assert [(each["reward"], each["done"]) for each in seen] == [
        (each["reward"], each["done"]) for each in played(name, "scripted", SEED)
    ]
