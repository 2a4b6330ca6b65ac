"""The ASGI lane keeps the contract of lanes."""

from __future__ import annotations

from tests.server.lane_contract import LaneContract
from tests.support.servers import Lane


class TestAsgiLane(LaneContract):
    lane: Lane = "asgi"
