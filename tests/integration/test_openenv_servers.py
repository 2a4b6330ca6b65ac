"""Our client against OpenEnv's own servers, as released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from envhive import Action, EnvClient, GenericEnvClient, Observation, State, StepResult, SyncEnvClient
from envhive.errors import ExecutionError, InvalidMessageError, RequestTimeoutError, SessionCapacityError

if TYPE_CHECKING:
    from tests.integration.conftest import Peer, ServeTheirs

pytestmark = pytest.mark.integration

SESSIONS = 32


class CountAction(Action):
    word: str
    add: int = 1


class CountObservation(Observation):
    word: str
    total: int
    seed: int | None = None


class CountState(State):
    total: int


class TypedClient(EnvClient[CountAction, CountObservation, CountState]):
    pass


@pytest.fixture(scope="module")
def server(peer: Peer, serve_theirs: ServeTheirs) -> Iterator[str]:
    with serve_theirs(peer, SESSIONS) as url:
        yield url


@pytest.fixture(scope="module")
def server_for_one(peer: Peer, serve_theirs: ServeTheirs) -> Iterator[str]:
    with serve_theirs(peer, 1) as url:
        yield url


@pytest.fixture
def client(server: str) -> Iterator[SyncEnvClient[Any, dict[str, Any], dict[str, Any]]]:
    with GenericEnvClient(server).sync() as env:
        yield env


def fields(result: StepResult[dict[str, Any]], *names: str) -> list[Any]:
    return [result.observation[name] for name in names]


def test_reset_gets_the_keywords_it_takes_and_no_others(client: SyncEnvClient[Any, Any, Any]) -> None:
    result = client.reset(seed=7, episode_id="episode-7", start=40, unheard_of="dropped")
    assert fields(result, "word", "total", "seed") == ["", 40, 7]
    assert (result.reward, result.done) == (None, False)
    assert client.state()["episode_id"] == "episode-7"


def test_reset_needs_no_keywords(client: SyncEnvClient[Any, Any, Any]) -> None:
    assert fields(client.reset(), "total", "seed") == [0, None]


def test_steps_bring_back_observation_reward_and_done(client: SyncEnvClient[Any, Any, Any]) -> None:
    client.reset(start=99_990)
    first = client.step({"word": "né – 日本", "add": 4})
    assert fields(first, "word", "total") == ["né – 日本", 99_994]
    assert (first.reward, first.done) == (4.0, False)
    last = client.step({"word": "end", "add": 6})
    assert fields(last, "word", "total") == ["end", 100_000]
    assert (last.reward, last.done) == (6.0, True)


def test_metadata_arrives_where_the_server_sends_it(client: SyncEnvClient[Any, Any, Any], peer: Peer) -> None:
    client.reset()
    sent = {"steps": 1} if peer.version == "0.10.0" else None  # 0.3.0 sends it nowhere
    result = client.step({"word": "a"})
    assert (result.metadata, result.observation.get("metadata")) == (sent, sent)


def test_state_tells_where_the_episode_stands(client: SyncEnvClient[Any, Any, Any]) -> None:
    client.reset(episode_id="counted", start=10)
    client.step({"word": "a", "add": 5})
    client.step({"word": "b", "add": 5})
    assert client.state() == {"episode_id": "counted", "step_count": 2, "total": 20}


def test_an_episode_without_blocking(server: str) -> None:
    async def episode() -> None:
        async with GenericEnvClient(server) as env:
            assert fields(await env.reset(seed=3, start=1, unheard_of="dropped"), "total", "seed") == [1, 3]
            assert fields(await env.step({"word": "a"}), "word", "total") == ["a", 2]
            assert (await env.state())["step_count"] == 1

    asyncio.run(episode())


def test_a_typed_client_gets_its_own_classes(server: str) -> None:
    async def episode() -> None:
        async with TypedClient(server) as env:
            assert (await env.reset(seed=3, start=5)).observation == CountObservation(word="", total=5, seed=3)
            result = await env.step(CountAction(word="typed", add=2))
            assert isinstance(result.observation, CountObservation)
            assert (result.observation.word, result.observation.total) == ("typed", 7)
            assert result.observation.reward == result.reward == 2.0
            assert await env.state() == CountState(step_count=1, total=7)

    asyncio.run(episode())


@pytest.mark.parametrize(
    ("action", "field"),
    [({"word": 5}, "word"), ({}, "word"), ({"word": "a", "unheard_of": 1}, "unheard_of")],
    ids=["type", "missing", "extra"],
)
def test_a_bad_action_leaves_the_session_alive(
    client: SyncEnvClient[Any, Any, Any], action: dict[str, Any], field: str
) -> None:
    client.reset(start=10)
    with pytest.raises(InvalidMessageError) as caught:
        client.step(action)
    assert [error["loc"] for error in caught.value.errors] == [[field]]
    assert field in str(caught.value)
    assert fields(client.step({"word": "on"}), "word", "total") == ["on", 11]


def test_a_step_that_raises_leaves_the_session_alive(client: SyncEnvClient[Any, Any, Any]) -> None:
    client.reset(start=10)
    with pytest.raises(ExecutionError, match="the dice fell off the table"):
        client.step({"word": "a", "fail": "the dice fell off the table"})
    assert fields(client.step({"word": "on"}), "word", "total") == ["on", 11]


def test_a_full_server_says_so_until_a_client_has_closed(server_for_one: str) -> None:
    first, second = GenericEnvClient(server_for_one).sync(), GenericEnvClient(server_for_one).sync()
    with first, second:
        first.reset(start=1)
        for _ in range(2):  # the refused client may ask again
            with pytest.raises(SessionCapacityError) as caught:
                second.reset()
            assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)
        assert fields(first.step({"word": "undisturbed"}), "total") == [2]
        first.close()
        assert fields(second.reset(start=5), "total") == [5]


def test_connecting_to_a_full_server_is_told_by_the_first_request(server_for_one: str) -> None:
    async def scenario() -> None:
        async with GenericEnvClient(server_for_one) as first:
            await first.reset()
            async with GenericEnvClient(server_for_one) as second:
                with pytest.raises(SessionCapacityError):
                    await second.step({"word": "a"})

    asyncio.run(scenario())


def test_close_ends_the_session_and_may_be_called_twice(server_for_one: str) -> None:
    for number in range(5):  # the server has room for one, so each must have let go for the next to get in
        client = GenericEnvClient(server_for_one).sync()
        assert fields(client.reset(start=number), "total") == [number]
        client.close()
        client.close()


def test_sessions_at_once_keep_apart(server: str) -> None:
    async def session(number: int, all_open: asyncio.Barrier) -> int:
        async with GenericEnvClient(server) as env:
            await env.reset(start=number * 1000)
            await all_open.wait()
            for turn in range(number % 5 + 1):
                result = await env.step({"word": f"session {number}", "add": number})
                expected = [f"session {number}", number * 1000 + number * (turn + 1)]
                assert fields(result, "word", "total") == expected
            steps: int = (await env.state())["step_count"]
            return steps

    async def scenario() -> list[int]:
        all_open = asyncio.Barrier(SESSIONS)
        return await asyncio.gather(*(session(number, all_open) for number in range(SESSIONS)))

    assert asyncio.run(scenario()) == [number % 5 + 1 for number in range(SESSIONS)]


def test_after_a_time_out_the_next_step_gets_its_own_reply(client: SyncEnvClient[Any, Any, Any]) -> None:
    client.reset()
    with pytest.raises(RequestTimeoutError):
        client.step({"word": "late", "sleep_s": 1.0}, timeout_s=0.2)
    # The server finishes the slow step first: its reply comes, and is nobody's.
    assert fields(client.step({"word": "mine"}), "word", "total") == ["mine", 2]
    assert client.state()["step_count"] == 2
