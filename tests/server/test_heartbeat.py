"""Silent peers are pinged, and given up when they stay silent."""

from __future__ import annotations

from envhive.server.heartbeat import Heartbeat


class Peer:
    def __init__(self) -> None:
        self.heard = True
        self.excused = False
        self.quiet_since = 0.0
        self.pinged_at = 0.0
        self.pings = 0
        self.aborted: str | None = None

    def ping(self) -> None:
        self.pings += 1

    def abort(self, reason: str) -> None:
        self.aborted = reason


def test_a_peer_that_talks_is_not_pinged() -> None:
    heartbeat, peer = Heartbeat(20, 10), Peer()
    heartbeat.watch(peer)
    for now in range(0, 200, 5):
        peer.heard = True
        heartbeat.beat(now)
    assert (peer.pings, peer.aborted) == (0, None)


def test_a_silent_peer_is_pinged_once_and_lives_if_it_answers() -> None:
    heartbeat, peer = Heartbeat(20, 10), Peer()
    heartbeat.watch(peer)
    for now in range(22):
        heartbeat.beat(now)
    assert peer.pings == 1
    peer.heard = True  # its pong
    for now in range(22, 40):
        heartbeat.beat(now)
    assert (peer.pings, peer.aborted) == (1, None)


def test_a_peer_that_does_not_answer_is_given_up_after_the_time_out() -> None:
    heartbeat, peer = Heartbeat(20, 10), Peer()
    heartbeat.watch(peer)
    for now in range(30):
        heartbeat.beat(now)
    assert peer.aborted is None
    heartbeat.beat(30)
    heartbeat.beat(31)
    assert peer.aborted is not None
    assert "10 s" in peer.aborted


def test_a_peer_that_is_not_read_from_is_not_blamed_for_its_silence() -> None:
    heartbeat, peer = Heartbeat(20, 10), Peer()
    heartbeat.watch(peer)
    for now in range(25):
        heartbeat.beat(now)
    peer.excused = True
    for now in range(25, 100):
        heartbeat.beat(now)
    assert (peer.pings, peer.aborted) == (1, None)
    peer.excused = False
    for now in range(100, 131):
        heartbeat.beat(now)
    assert peer.aborted is not None


def test_a_forgotten_peer_is_left_alone() -> None:
    heartbeat, peer = Heartbeat(1, 1), Peer()
    heartbeat.watch(peer)
    heartbeat.forget(peer)
    heartbeat.beat(100)
    heartbeat.beat(200)
    assert (peer.pings, peer.aborted, len(heartbeat)) == (0, None, 0)


def test_a_peer_is_not_blamed_for_the_time_in_which_the_server_was_not_running() -> None:
    heartbeat, peer = Heartbeat(20, 10), Peer()
    heartbeat.watch(peer)
    for now in range(25):
        heartbeat.beat(now)
    assert peer.pings == 1
    heartbeat.excuse(500)  # its pong may wait to be read
    heartbeat.beat(500)
    heartbeat.beat(509)
    assert peer.aborted is None
    heartbeat.beat(510)
    assert peer.aborted is not None
