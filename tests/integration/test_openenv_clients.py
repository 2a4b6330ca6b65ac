"""OpenEnv's own clients, as released, against our server."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Peer, PeerDriver, ServeOurs

pytestmark = pytest.mark.integration

SESSIONS = 32


@pytest.fixture(scope="module")
def server(serve_ours: ServeOurs) -> Iterator[str]:
    with serve_ours(SESSIONS) as url:
        yield url


@pytest.fixture(scope="module")
def server_for_one(serve_ours: ServeOurs) -> Iterator[str]:
    with serve_ours(1) as url:
        yield url


def active_sessions(url: str) -> int:
    # No proxy, whatever the environment says: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/health", timeout=5) as response:
        count: int = json.load(response)["active_sessions"]
        return count


def fields(result: dict[str, Any], *names: str) -> list[Any]:
    return [result["observation"][name] for name in names]


@pytest.mark.parametrize("kind", ["generic", "sync", "typed"])
def test_reset_gets_the_keywords_it_takes_and_no_others(peer_clients: PeerDriver, server: str, kind: str) -> None:
    client = peer_clients.open(server, kind)
    result = client.reset(seed=7, episode_id="episode-7", start=40, unheard_of="dropped").result
    assert fields(result, "word", "total", "seed") == ["", 40, 7]
    assert (result["reward"], result["done"]) == (None, False)
    assert client.state().result["episode_id"] == "episode-7"


def test_reset_needs_no_keywords(peer_clients: PeerDriver, server: str) -> None:
    result = peer_clients.open(server).reset().result
    assert fields(result, "total", "seed") == [0, None]


@pytest.mark.parametrize("kind", ["generic", "sync", "typed"])
def test_steps_bring_back_observation_reward_and_done(peer_clients: PeerDriver, server: str, kind: str) -> None:
    client = peer_clients.open(server, kind)
    client.reset(start=99_990)
    first = client.step(word="né – 日本", add=4).result
    assert fields(first, "word", "total") == ["né – 日本", 99_994]
    assert (first["reward"], first["done"]) == (4.0, False)
    last = client.step(word="end", add=6).result
    assert fields(last, "word", "total") == ["end", 100_000]
    assert (last["reward"], last["done"]) == (6.0, True)


def test_metadata_reaches_the_client_wherever_it_looks(peer_clients: PeerDriver, peer: Peer, server: str) -> None:
    client = peer_clients.open(server)
    client.reset()
    result = client.step(word="a").result
    assert result["observation"]["metadata"] == {"steps": 1}
    # 0.3.0's result has no such field.
    assert result.get("metadata") == ({"steps": 1} if peer.version == "0.10.0" else None)


@pytest.mark.parametrize("kind", ["generic", "sync", "typed"])
def test_state_tells_where_the_episode_stands(peer_clients: PeerDriver, server: str, kind: str) -> None:
    client = peer_clients.open(server, kind)
    client.reset(episode_id="counted", start=10)
    client.step(word="a", add=5)
    client.step(word="b", add=5)
    state = client.state().result
    assert (state["episode_id"], state["step_count"], state["total"]) == ("counted", 2, 20)


def test_a_typed_client_gets_its_own_classes(peer_clients: PeerDriver, server: str) -> None:
    client = peer_clients.open(server, "typed")
    assert client.reset().result["observation"]["class"] == "CountObservation"
    observation = client.step(word="typed", add=2).result["observation"]
    assert (observation["class"], observation["reward"]) == ("CountObservation", 2.0)
    assert observation["metadata"] == {"steps": 1}
    assert client.state().result["class"] == "CountState"


@pytest.mark.parametrize("action", [{"word": 5}, {}, {"word": "a", "unheard_of": 1}], ids=["type", "missing", "extra"])
def test_a_bad_action_leaves_the_session_alive(peer_clients: PeerDriver, server: str, action: dict[str, Any]) -> None:
    client = peer_clients.open(server)
    client.reset(start=10)
    error = client.step(**action).error
    assert error is not None
    assert error.startswith("RuntimeError")
    assert "VALIDATION_ERROR" in error
    assert fields(client.step(word="on").result, "word", "total") == ["on", 11]


def test_a_step_that_raises_leaves_the_session_alive(peer_clients: PeerDriver, server: str) -> None:
    client = peer_clients.open(server)
    client.reset(start=10)
    error = client.step(word="a", fail="the dice fell off the table").error
    assert error is not None
    assert error.startswith("RuntimeError")
    assert "the dice fell off the table" in error
    assert "EXECUTION_ERROR" in error
    assert fields(client.step(word="on").result, "word", "total") == ["on", 11]


@pytest.mark.parametrize("kind", ["generic", "sync", "typed"])
def test_a_full_server_says_so_in_its_answer(peer_clients: PeerDriver, server_for_one: str, kind: str) -> None:
    first = peer_clients.open(server_for_one)
    first.reset(start=1)
    error = peer_clients.make(server_for_one, kind).reset().error
    assert error is not None
    assert error.startswith("RuntimeError")
    assert "CAPACITY_REACHED" in error
    assert fields(first.step(word="undisturbed").result, "total") == [2]


def test_a_full_server_says_so_to_a_client_that_connects_first(peer_clients: PeerDriver, server_for_one: str) -> None:
    peer_clients.open(server_for_one).reset()
    # Not which exception: on a busy machine 0.3.0 may ask after the close, and then finds the code in that.
    assert "CAPACITY_REACHED" in (peer_clients.open(server_for_one).reset().error or "")


def test_there_is_room_again_as_soon_as_a_client_has_closed(peer_clients: PeerDriver, server_for_one: str) -> None:
    first = peer_clients.open(server_for_one)
    first.reset(close_s=0.3)
    assert "CAPACITY_REACHED" in (peer_clients.make(server_for_one).reset().error or "")
    first.close()
    # At once, although the environment takes its time to close: `close` returns when the place is free.
    assert fields(peer_clients.open(server_for_one).reset(start=5).result, "total") == [5]


@pytest.mark.parametrize("kind", ["generic", "sync", "typed"])
def test_close_ends_the_session(peer_clients: PeerDriver, server_for_one: str, kind: str) -> None:
    client = peer_clients.open(server_for_one, kind)
    client.reset()
    assert active_sessions(server_for_one) == 1
    began = time.monotonic()
    assert client.close().error is None
    # Unanswered, the peer's library would wait 10 s for the server's half of the closing handshake.
    assert time.monotonic() - began < 5
    assert active_sessions(server_for_one) == 0


def test_sessions_at_once_keep_apart(peer_clients: PeerDriver, server: str) -> None:
    clients = peer_clients.open_all(server, SESSIONS)
    names = [client.name for client in clients]
    peer_clients.call(*((name, "reset", (), {"start": number * 1000}) for number, name in enumerate(names)))
    assert active_sessions(server) == SESSIONS
    for turn in range(5):  # session n steps in the first n % 5 + 1 turns, by n
        stepping = [number for number in range(SESSIONS) if number % 5 >= turn]
        outcomes = peer_clients.call(
            *((names[number], "step", ({"word": names[number], "add": number},), {}) for number in stepping)
        )
        for number, outcome in zip(stepping, outcomes, strict=True):
            expected = [names[number], number * 1000 + number * (turn + 1)]
            assert fields(outcome.result, "word", "total") == expected
    states = [outcome.result for outcome in peer_clients.call(*((name, "state", (), {}) for name in names))]
    assert [state["step_count"] for state in states] == [number % 5 + 1 for number in range(SESSIONS)]
