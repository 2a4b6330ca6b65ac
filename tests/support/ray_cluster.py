"""Ray for tests: three nodes on this machine, with room for one server each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NODES = 3


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster`, to which nobody is connected."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'envhive[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(wait=False, num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()
