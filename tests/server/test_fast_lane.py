"""The fast lane keeps the contract of lanes, and what is its own."""

from __future__ import annotations

from tests.server.lane_contract import LaneContract
from tests.support.servers import Lane


class TestFastLane(LaneContract):
    lane: Lane = "fast"
