"""A client and its token: sent where it is wanted, shown nowhere."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.client.options import TransportOptions
from envhive.errors import ConnectError, SessionCapacityError, UnauthorizedError
from envhive.server.auth import Tokens
from tests.client.peers import Peer, peer_server
from tests.support.envs import counting
from tests.support.servers import Lane, Running, serving

SECRET = "s3cret-of-ada"


@pytest.fixture(autouse=True)
def _no_token_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVHIVE_TOKEN", raising=False)


@pytest.fixture(params=["fast", "asgi"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    lane: Lane = request.param
    with serving(counting(), lane, config={"tokens": Tokens.parse("--token", [f"ada:{SECRET}:1"])}) as server:
        yield server


def headers_sent_by(**options: Any) -> dict[str, str]:
    seen: list[dict[str, str]] = []

    def behave(peer: Peer) -> None:
        seen.append(peer.shake_hands())
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url, **options) as client:
            await client.reset()

    with peer_server(behave, shake_hands=False) as peers:
        asyncio.run(go(peers.url))
    return seen[0]


def test_a_token_opens_a_session_and_a_quota_is_a_typed_error_that_may_be_tried_again(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url, token=SECRET) as client:
            assert (await client.reset(seed=3)).observation["total"] == 3
            with pytest.raises(SessionCapacityError, match="'ada' is good for 1") as full:
                await GenericEnvClient(server.url, token=SECRET).reset()
            assert (full.value.retryable, full.value.active_sessions, full.value.max_sessions) == (True, 1, 1)

    asyncio.run(go())


def test_the_sync_client_sends_its_token_too(server: Running) -> None:
    with GenericEnvClient(server.url, token=SECRET).sync() as client:
        assert client.reset(seed=3).observation["total"] == 3


@pytest.mark.parametrize("token", [None, "wrong-token"])
def test_without_the_right_token_the_error_says_how_to_pass_it(server: Running, token: str | None) -> None:
    with pytest.raises(UnauthorizedError, match="HTTP 401") as refused:
        GenericEnvClient(server.url, token=token).sync().reset()
    error = refused.value
    assert (error.code, error.outcome, error.retryable) == ("UNAUTHORIZED", "infra_error", False)
    assert "token=... or set ENVHIVE_TOKEN" in str(error)
    assert "wrong-token" not in "".join(traceback.format_exception(error))


def test_a_403_is_unauthorized_too_and_another_status_is_not() -> None:
    def refuse(status: bytes) -> Any:
        def behave(peer: Peer) -> None:
            peer.read_request()
            peer.send_bytes(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        return behave

    with (
        peer_server(refuse(b"403 Forbidden"), shake_hands=False) as peers,
        pytest.raises(UnauthorizedError, match=r"403.*no environment at this path, or it wants a token"),
    ):
        GenericEnvClient(peers.url, token=SECRET).sync().reset()
    with peer_server(refuse(b"502 Bad Gateway"), shake_hands=False) as peers, pytest.raises(ConnectError) as refused:
        GenericEnvClient(peers.url, token=SECRET).sync().reset()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_the_token_is_a_bearer_header() -> None:
    assert headers_sent_by(token=SECRET)["authorization"] == f"Bearer {SECRET}"
    assert "authorization" not in headers_sent_by()


def test_the_environment_gives_the_token_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVHIVE_TOKEN", " from-outside\n")
    assert headers_sent_by()["authorization"] == "Bearer from-outside"
    assert headers_sent_by(token=SECRET)["authorization"] == f"Bearer {SECRET}"
    assert "authorization" not in headers_sent_by(token="")


def test_an_authorization_header_wins() -> None:
    sent = headers_sent_by(token=SECRET, headers={"authorization": "Basic YWRh"})
    assert sent["authorization"] == "Basic YWRh"


def test_a_token_does_not_follow_a_redirect() -> None:
    asked: list[dict[str, str]] = []

    def behave(peer: Peer) -> None:
        asked.append(peer.read_request())
        peer.send_bytes(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with peer_server(behave, shake_hands=False) as peers, pytest.raises(ConnectError):
        GenericEnvClient(peers.url, token=SECRET).sync().reset()
    assert len(asked) == 1


@pytest.mark.parametrize("token", ["two words", "a\r\nX-Admin: yes", "s3crét", "\0"])
def test_what_cannot_be_a_token_is_told_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="one word of visible ASCII") as refused:
        GenericEnvClient("http://localhost:1", token=token)
    assert token not in str(refused.value)


def test_a_token_in_the_address_is_in_no_error(server: Running) -> None:
    wrong = SECRET[::-1]
    for url, error in ((server.url, UnauthorizedError), ("http://127.0.0.1:1", ConnectError)):
        with pytest.raises(error) as refused:
            GenericEnvClient(f"{url}/?token={wrong}").sync().reset()
        assert wrong not in "".join(traceback.format_exception(refused.value))
    with GenericEnvClient(f"{server.url}/?token={SECRET}").sync() as client:
        assert client.reset(seed=3).observation["total"] == 3


def test_a_token_is_in_no_repr() -> None:
    client = GenericEnvClient("http://localhost:1", token=SECRET)
    shown = [repr(client), repr(client.sync()), repr(client._options), repr(TransportOptions().with_token(SECRET))]
    assert not any(SECRET in text for text in shown)
    with pytest.raises(ValueError, match="Authorization") as refused:
        GenericEnvClient("http://localhost:1", headers={"Authorization": f"Bearer {SECRET}\n"})
    assert SECRET not in str(refused.value)
