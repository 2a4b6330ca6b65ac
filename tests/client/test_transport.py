"""The connection itself: addresses, handshakes, frames, pings and goodbyes, against servers good and bad."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from envhive.client import GenericEnvClient
from envhive.client.options import TransportOptions, websocket_url
from envhive.client.transport import Transport
from envhive.errors import (
    BadReplyError,
    ConnectError,
    ConnectionLostError,
    EnvHiveError,
    MessageTooLargeError,
    RequestTimeoutError,
    SessionExpiredError,
)
from tests.client.peers import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    GoneError,
    Peer,
    close_frame,
    frame,
    observation,
    peer_server,
    state,
)
from tests.support.envs import counting
from tests.support.processes import free_port
from tests.support.servers import serving

CERTIFICATE: Final = Path(__file__).with_name("localhost.pem")
QUICK: Final = TransportOptions(connect_timeout_s=10, ping_interval_s=None)


async def connect(url: str, options: TransportOptions = QUICK) -> Transport:
    return await Transport.connect(websocket_url(url), options)


async def ask(transport: Transport, number: int, timeout: float | None = 20) -> Any:
    """Step with a number, and say which number came back."""
    data = await transport.request("step", {"n": number}, timeout)
    return data["observation"].get("n")


def talk(behave: Callable[[Peer], None], chat: Callable[[Transport], Any], options: TransportOptions = QUICK) -> Any:
    """Let a peer behave, and a transport chat with it."""

    async def go(url: str) -> Any:
        transport = await connect(url, options)
        async with asyncio.timeout(30):
            try:
                return await chat(transport)
            finally:
                await transport.close()

    with peer_server(behave) as peers:
        return asyncio.run(go(peers.url))


# Addresses.


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://example.org", "ws://example.org/ws"),
        ("http://example.org:8000/", "ws://example.org:8000/ws"),
        ("https://example.org", "wss://example.org/ws"),
        ("HTTPS://example.org/", "wss://example.org/ws"),
        ("ws://example.org:8000", "ws://example.org:8000/ws"),
        ("wss://example.org/ws", "wss://example.org/ws"),
        ("wss://example.org/ws/", "wss://example.org/ws"),
        ("localhost:8000", "ws://localhost:8000/ws"),
        ("127.0.0.1", "ws://127.0.0.1/ws"),
        ("[::1]:8000", "ws://[::1]:8000/ws"),
        ("http://[::1]:8000", "ws://[::1]:8000/ws"),
        ("https://example.org/games/chess/", "wss://example.org/games/chess/ws"),
        ("https://example.org/?token=a%20b&x=1", "wss://example.org/ws?token=a%20b&x=1"),
        ("https://example.org/#top", "wss://example.org/ws"),
    ],
)
def test_an_address_becomes_that_of_the_socket(address: str, expected: str) -> None:
    assert websocket_url(address) == expected


@pytest.mark.parametrize("address", ["", "http://", "ws://:8000", "ftp://example.org", "file:///tmp/x", "/ws", "://x"])
def test_what_is_no_address_of_a_server_is_a_value_error_that_shows_one(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not the address of a server: it must look like http://host:port\.") as c:
        websocket_url(address)
    assert repr(address) in str(c.value)


@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:abc", "host:port"])
def test_a_port_or_a_host_that_cannot_be_is_a_value_error_that_shows_one(address: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a server"):
        websocket_url(address)


# Proxies.


def test_a_server_on_this_machine_is_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")

    async def go(port: int) -> None:
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            transport = await connect(f"http://{host}:{port}")
            assert "observation" in await transport.request("reset", {})
            await transport.close()

    before = dict(os.environ)
    with serving(counting(), "fast") as server:
        asyncio.run(go(server.port))
    assert dict(os.environ) == before


def test_a_server_elsewhere_is_reached_through_the_proxy_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []

    def behave(peer: Peer) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += peer.sock.recv(1)
        asked.append(head.split(b"\r\n")[0])
        peer.send_bytes(b"HTTP/1.1 200 Connection established\r\n\r\n")
        peer.shake_hands()
        peer.answer_everything()

    async def go() -> None:
        transport = await connect("http://envhive.test:8123")
        assert await ask(transport, 7) == 7
        await transport.close()

    with peer_server(behave, shake_hands=False) as proxy:
        for variable in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("http_proxy", proxy.url)
        asyncio.run(go())
    assert asked == [b"CONNECT envhive.test:8123 HTTP/1.1"]


@pytest.mark.parametrize("answer", ["403 Forbidden", "407 Proxy Authentication Required", None])
def test_a_proxy_that_refuses_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    def behave(peer: Peer) -> None:
        peer.read_request()
        peer.send_bytes(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())

    with peer_server(behave, shake_hands=False) as proxy:
        port = free_port() if answer is None else int(proxy.url.rpartition(":")[2])
        for variable in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("http_proxy", f"http://ada:secret@127.0.0.1:{port}")
        with pytest.raises(ConnectError, match=rf"through the proxy 127\.0\.0\.1:{port}") as caught:
            asyncio.run(connect("http://envhive.test:8123"))
    assert "secret" not in str(caught.value)
    assert ("Is the proxy running there?" if answer is None else answer[:3]) in str(caught.value)


# Handshakes that fail: always a `ConnectError` that says why.


def refuse_with(answer: bytes) -> Callable[[Peer], None]:
    def behave(peer: Peer) -> None:
        peer.read_request()
        peer.send_bytes(answer)

    return behave


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
        (b"HTTP/1.1 503 Not Now\r\nContent-Length: 6\r\n\r\nsorry!", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "200"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "ssh-2.0-openssh_9.6"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "[Aa]ccept|ACCEPT"),
    ],
)
def test_an_upgrade_that_is_not_granted_is_a_connect_error_with_the_reason(answer: bytes, reason: str) -> None:
    with (
        peer_server(refuse_with(answer), shake_hands=False) as peers,
        pytest.raises(ConnectError, match=rf"Could not connect to ws://127\.0\.0\.1:{peers.port}/ws: .*({reason})"),
    ):
        asyncio.run(connect(peers.url))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101 Switching"])
def test_a_server_that_hangs_up_during_the_handshake_is_a_connect_error(answer: bytes) -> None:
    with (
        peer_server(refuse_with(answer), shake_hands=False) as peers,
        pytest.raises(ConnectError, match="Could not connect"),
    ):
        asyncio.run(connect(peers.url))


@contextmanager
def tls_server() -> Iterator[int]:
    """A server with TLS and a certificate of its own making; gives its port."""

    def handle(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                connection.send(observation(**json.loads(connection.recv()).get("data", {})))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with serve(handle, "127.0.0.1", 0, ssl=context) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("scheme", ["https", "wss"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_with_tls_and_a_trusted_certificate_is_talked_to(
    scheme: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(port: int) -> None:
        transport = await connect(f"{scheme}://{host}:{port}")
        assert [await ask(transport, number) for number in range(3)] == [0, 1, 2]
        await transport.close()

    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with tls_server() as port:
        asyncio.run(go(port))


def test_a_certificate_that_nobody_vouches_for_is_a_connect_error() -> None:
    with tls_server() as port, pytest.raises(ConnectError, match=r"(?i)certificate"):
        asyncio.run(connect(f"https://127.0.0.1:{port}"))


def test_a_server_without_tls_is_a_connect_error_for_an_address_with_it() -> None:
    with serving(counting(), "fast") as server, pytest.raises(ConnectError, match=r"(?i)ssl"):
        asyncio.run(connect(f"https://127.0.0.1:{server.port}"))


def test_a_host_that_does_not_exist_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConnectError, match=r"Could not connect to ws://nowhere\.invalid:8000/ws: "):
        asyncio.run(connect("http://nowhere.invalid:8000"))


@pytest.mark.parametrize("how", ["time-out", "cancellation"])
def test_a_connection_given_up_during_the_handshake_is_closed(how: str) -> None:
    reached, gone = threading.Event(), threading.Event()

    def behave(peer: Peer) -> None:
        peer.read_request()
        reached.set()
        peer.wait_until_gone()
        gone.set()

    async def go(url: str) -> bool:
        options = TransportOptions(connect_timeout_s=0.2 if how == "time-out" else 20)
        connecting = asyncio.create_task(connect(url, options))
        assert await asyncio.to_thread(reached.wait, 20)
        if how == "cancellation":
            connecting.cancel()
        with pytest.raises((ConnectError, asyncio.CancelledError)):
            await connecting
        return await asyncio.to_thread(gone.wait, 2)

    with peer_server(behave, shake_hands=False) as peers:
        assert asyncio.run(go(peers.url))


# Replies that are none.


@pytest.mark.parametrize(
    "garbage",
    [
        "not json",
        "",
        "{",
        "[1,2]",
        "null",
        '"observation"',
        "{}",
        '{"data":{}}',
        '{"type":7,"data":{}}',
        b'{"type":"\xff\xfe"}',
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("kind", [TEXT, BINARY])
def test_a_reply_that_is_none_fails_its_own_request_and_gives_nobody_the_reply_of_another(
    garbage: str | bytes, kind: int
) -> None:
    def behave(peer: Peer) -> None:
        assert peer.receive_request()["data"] == {"n": 1}
        peer.send(garbage, kind)
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        first = asyncio.create_task(ask(transport, 1))
        others = [asyncio.create_task(ask(transport, number)) for number in range(2, 6)]
        with pytest.raises(BadReplyError):
            await first
        for number, reply in enumerate(await asyncio.gather(*others, return_exceptions=True), start=2):
            assert reply == number or isinstance(reply, EnvHiveError)

    talk(behave, chat)


@pytest.mark.parametrize("garbage", ["not json", "{}"])
def test_garbage_before_a_reply_gives_nobody_the_reply_of_another(garbage: str) -> None:
    def behave(peer: Peer) -> None:
        early = peer.receive_request()
        peer.send(garbage)
        late = peer.receive_request()
        peer.send(observation(**early["data"]))
        peer.send(observation(**late["data"]))
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        with pytest.raises(BadReplyError):
            await ask(transport, 1)
        for number in range(2, 6):
            with suppress(EnvHiveError):
                assert await ask(transport, number) == number

    talk(behave, chat)


def test_a_reply_that_is_none_is_not_called_the_callers_mistake() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send("not json")
        peer.ignore_everything()

    async def chat(transport: Transport) -> None:
        with pytest.raises(BadReplyError, match="makes no sense") as caught:
            await ask(transport, 1)
        assert caught.value.outcome == "infra_error"

    talk(behave, chat)


@pytest.mark.parametrize("reply", [observation(), '{"type":"hello","data":{}}'])
def test_a_reply_of_another_kind_than_the_request_is_an_error(reply: str) -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send(reply)
        peer.ignore_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            with pytest.raises(BadReplyError, match="answered state with"):
                await client.state()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


def test_after_a_reply_of_another_kind_nobody_gets_the_reply_of_another() -> None:
    def behave(peer: Peer) -> None:
        peer.send(observation(**peer.receive_request()["data"]))
        assert peer.receive_request() == {"type": "state"}
        peer.send(observation(n=666))  # one too many
        late = peer.receive_request()
        peer.send(state())
        peer.send(observation(**late["data"]))
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            assert (await client.step({"n": 1})).observation == {"n": 1}
            with pytest.raises(EnvHiveError):
                await client.state()
            for number in range(2, 6):
                with suppress(EnvHiveError):
                    assert (await client.step({"n": number})).observation == {"n": number}
            assert (await client.reset(n=6)).observation == {"n": 6}

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


def test_a_reply_without_data_is_an_error() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send('{"type":"observation"}')
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            with pytest.raises(BadReplyError, match="no data"):
                await client.reset()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


@pytest.mark.parametrize("extra", [observation(n=666), state(n=666), "garbage", '{"type":"hello"}'])
def test_a_frame_that_nobody_asked_for_is_dropped(extra: str) -> None:
    def behave(peer: Peer) -> None:
        peer.shake_hands(and_send=frame(extra))
        while True:
            request = peer.receive_request()
            peer.send_bytes(frame(observation(**request.get("data", {}))) + frame(extra) + frame(extra))

    async def go(url: str) -> None:
        transport = await connect(url)
        for number in range(20):
            assert await ask(transport, number) == number
        await transport.close()

    with peer_server(behave, shake_hands=False) as peers:
        asyncio.run(go(peers.url))


def test_an_error_that_nobody_asked_for_ends_the_session_and_is_what_later_calls_raise() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        goodbye = json.dumps({"type": "error", "data": {"message": "too long idle", "code": "SESSION_EXPIRED"}})
        peer.send_bytes(frame(observation(n=1)) + frame(goodbye) + close_frame(1001))
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        assert await ask(transport, 1) == 1
        for number in (2, 3):
            with pytest.raises(SessionExpiredError, match="too long idle"):
                await ask(transport, number)
        assert not transport.is_open

    talk(behave, chat)


# Frames in unusual shapes.


def test_a_reply_in_several_frames_is_one_reply_even_with_a_ping_between_them() -> None:
    pongs: list[bytes] = []

    def behave(peer: Peer) -> None:
        while True:
            reply = observation(**peer.receive_request()["data"])
            peer.send(reply[:10], fin=False)
            peer.send("", CONTINUATION, fin=False)
            peer.send(b"are you there?", PING)
            peer.send(reply[10:20], CONTINUATION, fin=False)
            kind, payload = peer.receive()
            assert kind == PONG
            pongs.append(payload)
            peer.send(reply[20:], CONTINUATION)

    async def chat(transport: Transport) -> None:
        for number in range(10):
            assert await ask(transport, number) == number

    talk(behave, chat)
    assert pongs == [b"are you there?"] * 10


def test_a_reply_that_comes_byte_by_byte_is_one_reply() -> None:
    def behave(peer: Peer) -> None:
        reply = frame(observation(**peer.receive_request()["data"]))
        for index in range(len(reply)):
            peer.send_bytes(reply[index : index + 1])
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        assert await ask(transport, 1) == 1
        assert await ask(transport, 2) == 2

    talk(behave, chat)


def test_a_reply_in_a_binary_frame_is_a_reply() -> None:
    def behave(peer: Peer) -> None:
        peer.send(observation(**peer.receive_request()["data"]), BINARY)
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        assert await ask(transport, 1) == 1
        assert await ask(transport, 2) == 2

    talk(behave, chat)


def test_many_replies_in_one_packet_are_many_replies() -> None:
    def behave(peer: Peer) -> None:
        numbers = [peer.receive_request()["data"]["n"] for _ in range(50)]
        peer.send_bytes(b"".join(frame(observation(n=number)) for number in numbers))
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        assert await asyncio.gather(*(ask(transport, number) for number in range(50))) == list(range(50))

    talk(behave, chat)


@pytest.mark.parametrize(
    "broken",
    [
        b"\x83\x00",  # a reserved kind of frame
        b"\x81\x85\0\0\0\0hello",  # a masked frame, from a server
        b"\x09\x00",  # a ping in several frames
        b"\x88\x01\x00",  # a close with half a code
        b"\x81\x7f" + b"\xff" * 8,  # a size that cannot be
    ],
)
def test_a_server_that_breaks_the_protocol_is_a_lost_connection(broken: bytes) -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send_bytes(broken)
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(ConnectionLostError):
            await ask(transport, 1)
        assert not transport.is_open

    talk(behave, chat)


# Sizes.


def test_a_large_reply_within_the_limit_is_taken() -> None:
    def behave(peer: Peer) -> None:
        peer.send(observation(n=peer.receive_request()["data"]["n"], padding="x" * 4_000_000))
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        assert await ask(transport, 1) == 1
        assert await ask(transport, 2) == 2

    talk(behave, chat)


ONE_MB: Final = TransportOptions(max_message_size_mb=1, ping_interval_s=None)


def test_a_reply_over_the_limit_is_refused_with_1009_before_it_is_there_and_said_to_be_too_large() -> None:
    heard: list[tuple[int, bytes]] = []

    def behave(peer: Peer) -> None:
        peer.receive_request()
        # Only the header of a 200 MB frame: it is refused before it is there to be buffered.
        peer.send_bytes(b"\x81\x7f" + (200_000_000).to_bytes(8, "big") + b"x" * 1000)
        heard.append(peer.receive())
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(MessageTooLargeError, match="larger than 1048576 bytes"):
            await ask(transport, 1)
        with pytest.raises(ConnectionLostError, match="larger than 1048576 bytes"):  # not this one's mistake
            await ask(transport, 2)
        assert not transport.is_open

    talk(behave, chat, ONE_MB)
    kind, payload = heard[0]
    assert (kind, int.from_bytes(payload[:2], "big")) == (CLOSE, 1009)


def test_a_reply_over_the_limit_leaves_no_unretrieved_exception(caplog: pytest.LogCaptureFixture) -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send_bytes(b"\x81\x7f" + (200_000_000).to_bytes(8, "big"))
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(EnvHiveError):
            await ask(transport, 1)

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        talk(behave, chat, ONE_MB)
        gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_reply_over_the_limit_is_not_delivered_however_fast_it_comes() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        reply = frame(observation(n=1, padding="x" * 2_000_000))
        peer.send_bytes(reply[:100])
        peer.receive()
        peer.send_bytes(reply[100:])
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(MessageTooLargeError):
            await ask(transport, 1)

    talk(behave, chat, ONE_MB)


def test_a_reply_over_the_limit_is_refused_in_pieces_too() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        reply = observation(n=1, padding="x" * 3_000_000)
        peer.send(reply[:1_000_000], fin=False)
        peer.send(reply[1_000_000:2_000_000], CONTINUATION, fin=False)
        peer.send(reply[2_000_000:3_000_000], CONTINUATION, fin=False)
        peer.send(reply[3_000_000:], CONTINUATION)
        peer.ignore_everything()

    async def chat(transport: Transport) -> None:
        with pytest.raises(MessageTooLargeError):
            await ask(transport, 1)

    talk(behave, chat, ONE_MB)


# Ends.


def reset_connection(peer: Peer) -> None:
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()


@pytest.mark.parametrize("how", ["eof", "reset", "half a frame", "half a message", "close frame"])
def test_a_connection_that_ends_mid_request_fails_every_waiting_request(how: str) -> None:
    def behave(peer: Peer) -> None:
        for _ in range(20):
            peer.receive_request()
        reply = observation(n=1)
        if how == "reset":
            reset_connection(peer)
        elif how == "half a frame":
            peer.send_bytes(frame(reply)[:-5])
        elif how == "half a message":
            peer.send(reply, fin=False)
        elif how == "close frame":
            peer.send_bytes(close_frame(1011, "on fire"))
            peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        calls = [ask(transport, number) for number in range(20)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ConnectionLostError)
            assert isinstance(error, ConnectionError)
            assert (error.outcome, error.retryable) == ("infra_error", True)
            assert how != "close frame" or "1011: on fire" in str(error)
        assert not transport.is_open
        with pytest.raises(ConnectionLostError):
            await ask(transport, 21)

    talk(behave, chat)


def test_replies_that_came_before_the_end_are_delivered() -> None:
    def behave(peer: Peer) -> None:
        for _ in range(3):
            peer.receive_request()
        peer.send_bytes(frame(observation(n=0)) + frame(observation(n=1)) + close_frame(1000))
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        calls = [ask(transport, number) for number in range(3)]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert (first, second) == (0, 1)
        assert isinstance(third, ConnectionLostError)

    talk(behave, chat)


@pytest.mark.parametrize("code", [1000, 1001, 1008, 1011, 1012, 3000, 4999])
def test_a_close_frame_is_answered_with_its_own_code(code: int) -> None:
    heard: list[tuple[int, bytes]] = []

    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send_bytes(close_frame(code, "bye"))
        heard.append(peer.receive())
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(ConnectionLostError, match=f"{code}: bye"):
            await ask(transport, 1)

    talk(behave, chat)
    assert heard == [(CLOSE, code.to_bytes(2, "big"))]


def test_a_close_with_1009_is_a_message_too_large() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send_bytes(close_frame(1009, "message too big"))
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(MessageTooLargeError, match="1009: message too big"):
            await ask(transport, 1)

    talk(behave, chat)


def test_a_close_frame_without_a_code_is_answered_with_a_lawful_one() -> None:
    heard: list[tuple[int, bytes]] = []

    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send(b"", CLOSE)
        heard.append(peer.receive())
        peer.wait_until_gone()

    async def chat(transport: Transport) -> None:
        with pytest.raises(ConnectionLostError):
            await ask(transport, 1)

    talk(behave, chat)
    assert heard[0] in [(CLOSE, b""), (CLOSE, b"\x03\xe8")]


def test_closing_is_a_normal_closure_in_the_eyes_of_another_implementation() -> None:
    seen: list[ConnectionClosed] = []

    def handle(connection: ServerConnection) -> None:
        try:
            while True:
                connection.send(observation(**json.loads(connection.recv()).get("data", {})))
        except ConnectionClosed as closed:
            seen.append(closed)

    async def go(url: str) -> None:
        transport = await connect(url)
        assert await ask(transport, 1) == 1
        await transport.close()

    with serve(handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            asyncio.run(go(f"ws://127.0.0.1:{server.socket.getsockname()[1]}"))
        finally:
            server.shutdown()
            thread.join()
    received = seen[0].rcvd
    assert received is not None
    assert received.code in (1000, 1005)


def test_close_does_not_wait_for_a_server_that_never_says_goodbye_itself() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send(observation(n=1))
        peer.wait_until_gone()

    async def go(url: str) -> None:
        transport = await connect(url)
        assert await ask(transport, 1) == 1
        begun = time.monotonic()
        await transport.close()
        assert time.monotonic() - begun < 6.5
        await transport.close()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


def test_close_fails_the_waiting_requests_at_once() -> None:
    arrived = threading.Event()

    def behave(peer: Peer) -> None:
        peer.receive_request()
        arrived.set()
        peer.receive_request()  # the close
        raise GoneError

    async def chat(transport: Transport) -> None:
        waiting = asyncio.create_task(ask(transport, 1))
        assert await asyncio.to_thread(arrived.wait, 20)
        await transport.close()
        with pytest.raises(ConnectionLostError, match="The client was closed"):
            await waiting
        with pytest.raises(ConnectionLostError, match="The client was closed"):
            await ask(transport, 2)

    talk(behave, chat)


# Time.


def test_a_request_without_a_limit_waits_as_long_as_it_takes() -> None:
    release = threading.Event()

    def behave(peer: Peer) -> None:
        request = peer.receive_request()
        assert release.wait(20)
        peer.send(observation(**request["data"]))
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        waiting = asyncio.create_task(ask(transport, 1, timeout=None))
        with pytest.raises(RequestTimeoutError):
            await ask(transport, 2, timeout=0.1)
        assert not waiting.done()
        release.set()
        assert await waiting == 1

    talk(behave, chat)


def test_a_server_that_stops_answering_pings_is_noticed_and_the_waiting_request_fails() -> None:
    kinds: list[int] = []

    def behave(peer: Peer) -> None:
        while True:
            kinds.append(peer.receive()[0])

    async def chat(transport: Transport) -> None:
        begun = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await ask(transport, 1, timeout=None)
        assert 0.35 < time.monotonic() - begun < 10
        assert not transport.is_open

    talk(behave, chat, TransportOptions(ping_interval_s=0.2, ping_timeout_s=0.2))
    assert kinds[:2] == [TEXT, PING]


def test_a_server_that_falls_silent_while_nothing_is_asked_is_noticed_too() -> None:
    async def chat(transport: Transport) -> None:
        async with asyncio.timeout(10):
            while transport.is_open:
                await asyncio.sleep(0.01)
        with pytest.raises(ConnectionLostError):
            await ask(transport, 1)

    talk(Peer.wait_until_gone, chat, TransportOptions(ping_interval_s=0.2, ping_timeout_s=0.2))


def test_a_server_that_answers_pings_may_take_its_time() -> None:
    def behave(peer: Peer) -> None:
        request = json.loads(peer.receive()[1])
        for _ in range(2):
            kind, payload = peer.receive()
            assert kind == PING
            peer.send(payload, PONG)
        peer.send(observation(**request["data"]))
        peer.answer_everything()

    async def chat(transport: Transport) -> None:
        assert await ask(transport, 1, timeout=None) == 1

    talk(behave, chat, TransportOptions(ping_interval_s=0.5, ping_timeout_s=0.5))


def test_a_ping_time_out_longer_than_the_interval_is_cut_to_it() -> None:
    async def chat(transport: Transport) -> None:
        begun = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await ask(transport, 1, timeout=None)
        assert time.monotonic() - begun < 10

    talk(Peer.wait_until_gone, chat, TransportOptions(ping_interval_s=0.2, ping_timeout_s=60))


def test_without_an_interval_there_are_no_pings() -> None:
    kinds: list[int] = []

    def behave(peer: Peer) -> None:
        while CLOSE not in kinds:
            kinds.append(peer.receive()[0])

    async def chat(transport: Transport) -> None:
        with pytest.raises(RequestTimeoutError):
            await ask(transport, 1, timeout=0.5)
        assert transport.is_open

    talk(behave, chat, TransportOptions(ping_interval_s=None, ping_timeout_s=0.01))
    assert kinds == [TEXT, TEXT, CLOSE]


def test_pings_of_the_server_are_answered() -> None:
    def behave(peer: Peer) -> None:
        peer.shake_hands(and_send=frame(b"hello?", PING))
        assert peer.receive() == (PONG, b"hello?")
        peer.answer_everything()

    async def go(url: str) -> None:
        transport = await connect(url)
        assert await ask(transport, 1) == 1
        await transport.close()

    with peer_server(behave, shake_hands=False) as peers:
        asyncio.run(go(peers.url))
