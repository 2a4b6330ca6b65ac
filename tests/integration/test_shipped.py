"""OpenEnv's own clients, as released, play the environments that ship."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.families import FAMILIES, SEED, each_family, played, served

if TYPE_CHECKING:
    from tests.integration.conftest import PeerDriver

pytestmark = pytest.mark.integration


@each_family()
def test_the_script_earns_the_same_through_openenvs_client(peer_clients: PeerDriver, name: str) -> None:
    family = FAMILIES[name]
    with served(name, **family.settings) as url:
        client = peer_clients.open(url)
        seen: list[dict[str, Any]] = [client.reset(seed=SEED).result]
        seen += [client.step(**action).result for action in family.script]
        assert client.state().result["step_count"] == len(family.script)
        client.close()
    assert [(each["reward"], each["done"]) for each in seen] == [
        (each["reward"], each["done"]) for each in played(name, "scripted", SEED)
    ]
