"""A server that is one of several behind a proxy."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPMessage

import pytest
from websockets.exceptions import InvalidStatus

from envhive.errors import ConfigurationError
from envhive.server.config import ServerConfig
from tests.support.envs import counting
from tests.support.servers import Lane, Running, ask, receive, reset, serving

BOTH_LANES = pytest.mark.parametrize("lane", ["fast", "asgi"])
MORE_TO_ASK = {"x-envoy-attempt-count": "1", "x-envhive-attempts": "3"}
THE_LAST = {"x-envoy-attempt-count": "3", "x-envhive-attempts": "3"}


def post(url: str) -> HTTPMessage:
    request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.headers  # type: ignore[no-any-return]


@BOTH_LANES
def test_sessions_bear_the_name_of_their_server(lane: Lane) -> None:
    with serving(counting(), lane, config={"replica": "r7"}, max_concurrent_envs=4) as server:
        with server.connect(subprotocols=["envhive.v1"]) as ws:
            hello = receive(ws)
            assert hello["session_id"].startswith("r7.")
        assert post(f"{server.url}/reset")["X-Session-Id"].startswith("r7.")


@BOTH_LANES
def test_a_full_server_refuses_by_status_while_the_proxy_has_others_to_ask(lane: Lane) -> None:
    with serving(counting(), lane, max_concurrent_envs=1) as server, server.connect() as ws:
        reset(ws)
        refused = refusal_of(server, MORE_TO_ASK)
        assert refused.response.status_code == 503
        assert refused.response.headers["X-EnvHive-Refused"] == "CAPACITY_REACHED"
        assert json.loads(refused.response.body or b"")["max_sessions"] == 1
        with server.connect(additional_headers=THE_LAST) as last:
            assert ask(last, {"type": "reset", "data": {}})["data"]["code"] == "CAPACITY_REACHED"


def refusal_of(server: Running, headers: dict[str, str]) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as caught:
        server.connect(additional_headers=headers)
    return caught.value


@BOTH_LANES
def test_a_draining_server_sends_newcomers_on_but_keeps_its_own(lane: Lane) -> None:
    with serving(counting(), lane, max_concurrent_envs=4) as server, server.connect() as ws:
        reset(ws)
        post(f"{server.url}/drain")
        assert refusal_of(server, MORE_TO_ASK).response.headers["X-EnvHive-Refused"] == "DRAINING"
        assert reset(ws)["type"] == "observation"


@BOTH_LANES
@pytest.mark.parametrize("headers", [{}, {"x-envoy-attempt-count": "1"}, {**MORE_TO_ASK, "x-envhive-attempts": "all"}])
def test_who_does_not_say_that_there_are_others_is_refused_in_a_frame(lane: Lane, headers: dict[str, str]) -> None:
    with serving(counting(), lane, max_concurrent_envs=1) as server, server.connect() as ws:
        reset(ws)
        with server.connect(additional_headers=headers) as other:
            assert ask(other, {"type": "reset", "data": {}})["data"]["code"] == "CAPACITY_REACHED"


@BOTH_LANES
def test_a_server_with_room_takes_the_first_that_comes(lane: Lane) -> None:
    with (
        serving(counting(), lane, max_concurrent_envs=1) as server,
        server.connect(additional_headers=MORE_TO_ASK) as ws,
    ):
        assert reset(ws)["type"] == "observation"


def test_an_http_request_that_finds_no_place_says_that_another_server_may_have_one() -> None:
    with serving(counting(), "fast", max_concurrent_envs=1) as server, server.connect() as ws:
        reset(ws)
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(f"{server.url}/reset")
        with caught.value as refused:
            assert (refused.code, refused.headers["X-EnvHive-Refused"]) == (503, "CAPACITY_REACHED")


@pytest.mark.parametrize("name", ["R1", "r.1", "-r", "r-", "r 1", "r" * 64])
def test_a_name_that_cannot_stand_in_an_id_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="ENVHIVE_REPLICA"):
        ServerConfig.resolve({"ENVHIVE_REPLICA": name})


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("65535", 65535)])
def test_any_port_is_a_port(text: str, port: int) -> None:
    assert ServerConfig.resolve({"PORT": text}).port == port


@pytest.mark.parametrize("text", ["-1", "65536", "eighty", "٨"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="PORT must be a port"):
        ServerConfig.resolve({"PORT": text})
