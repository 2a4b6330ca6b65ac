"""What OpenEnv's clients say when a server refuses: some projects look for the code in the text."""

from __future__ import annotations

import pytest

from envhive.compat.clients import GenericEnvClient
from envhive.errors import SessionCapacityError
from tests.support.envs import counting
from tests.support.servers import serving


def test_a_full_server_is_told_by_its_code() -> None:
    with serving(counting(), "fast", max_concurrent_envs=1) as server, GenericEnvClient(server.url).sync() as first:
        first.reset()
        for _ in range(2):
            with pytest.raises(SessionCapacityError) as caught, GenericEnvClient(server.url).sync() as second:
                second.reset()
            assert str(caught.value).startswith("Server error: Server at capacity: 1 of 1")
            assert str(caught.value).endswith("(code: CAPACITY_REACHED)")
