"""Tokens and limits of `envhive serve`: quotas over all workers, secrets in no log, and slow senders cut."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as connect_sync

from envhive import GenericEnvClient
from envhive.errors import SessionCapacityError, UnauthorizedError
from tests.integration.conftest import clean_environ
from tests.integration.test_asgi_servers import COMMANDS, served_by
from tests.support.processes import ServerProcess, envhive_serve, refused
from tests.support.servers import eventually

if TYPE_CHECKING:
    from tests.integration.conftest import Peer

pytestmark = pytest.mark.integration

ADA, BOB = "s3cret-of-ada", "s3cret-of-bob"
TOKENS = {"ENVHIVE_TOKENS": f"ada:{ADA}:5,bob:{BOB}"}


def get(server: ServerProcess, path: str, secret: str = BOB) -> Any:
    request = urllib.request.Request(f"{server.url}{path}", headers={"Authorization": f"Bearer {secret}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def test_a_quota_is_exact_over_all_workers_and_a_killed_workers_part_of_it_comes_back() -> None:
    async def admitted(server: ServerProcess, count: int) -> list[GenericEnvClient]:
        """Of so many clients at once, those that got a session."""
        clients = [GenericEnvClient(server.url, token=ADA) for _ in range(count)]
        outcomes = await asyncio.gather(*(client.reset() for client in clients), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, SessionCapacityError), outcome
                assert outcome.max_sessions == 5
                assert "'ada' is good for 5" in str(outcome)
        return [c for c, outcome in zip(clients, outcomes, strict=True) if not isinstance(outcome, BaseException)]

    async def scenario(server: ServerProcess) -> None:
        for _ in range(3):
            clients = await admitted(server, 20)
            assert len(clients) == 5
            listed = await asyncio.to_thread(get, server, "/sessions", ADA)
            assert [session["owner"] for session in listed] == ["ada"] * 5
            assert sorted(Counter(session["pid"] for session in listed).values()) == [2, 3]
            assert await asyncio.to_thread(get, server, "/sessions", BOB) == []
            async with GenericEnvClient(server.url, token=BOB) as others:
                await others.reset()
            for client in clients:
                await client.close()
            await asyncio.to_thread(eventually, lambda: get(server, "/health")["active_sessions"] == 0)
        clients = await admitted(server, 5)
        doomed = (await asyncio.to_thread(get, server, "/sessions", ADA))[0]["pid"]
        survivors = sum(s["pid"] != doomed for s in await asyncio.to_thread(get, server, "/sessions", ADA))
        os.kill(doomed, signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: get(server, "/health")["active_sessions"] == survivors)
        fresh = await admitted(server, 8)
        assert len(fresh) == 5 - survivors
        for client in (*clients, *fresh):
            await client.close()

    with envhive_serve("benchmark", "--workers", "2", "--max-sessions", "50", environ=TOKENS) as server:
        asyncio.run(scenario(server))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tokens_of_the_command_line_are_asked_for_by_every_worker(workers: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"ada:{ADA}\n")
    arguments = ("echo", "--workers", workers, "--token", f"@{path}", "--token", f"bob:{BOB}")
    with envhive_serve(*arguments, environ={"ENVHIVE_TOKENS": "eve:not-this-one"}) as server:
        for _ in range(6):  # each on a connection of its own, so that both workers are asked
            for secret in (ADA, BOB):
                with GenericEnvClient(server.url, token=secret).sync() as client:
                    client.reset()
            with pytest.raises(UnauthorizedError):
                GenericEnvClient(server.url, token="not-this-one").sync().reset()
            assert server.health() == {"status": "healthy"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_app_that_is_none_of_ours_asks_for_tokens_too(workers: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from fastapi import FastAPI\napp = FastAPI()\n\n@app.get('/health')\ndef health(): return {}\n\n"
        "@app.get('/secret')\ndef secret():\n    import os; return sorted(os.environ)\n"
    )
    with envhive_serve("own:app", "--workers", workers, cwd=tmp_path, environ=TOKENS) as server:
        variables = get(server, "/secret")
        assert "PATH" in variables
        assert "ENVHIVE_TOKENS" not in variables  # or whatever an environment starts would inherit it
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(server, "/secret", "wrong-token")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_secrets_are_in_no_log_at_any_level(workers: str) -> None:
    wrong = "wrong-but-s3cret"
    with envhive_serve("echo", "--workers", workers, "--log-level", "debug", environ=TOKENS) as server:
        for secret in (ADA, wrong):
            for address, headers in (
                (f"ws://127.0.0.1:{server.port}/ws?token={secret}", {}),
                (f"ws://127.0.0.1:{server.port}/ws", {"Authorization": f"Bearer {secret}"}),
                (f"ws://127.0.0.1:{server.port}/mcp?x=1&token={secret}", {}),
            ):
                try:
                    with connect_sync(address, additional_headers=headers, proxy=None) as ws:
                        ws.send('{"type":"reset"}')
                        ws.recv(timeout=10)
                except InvalidStatus as refused:
                    assert secret == wrong
                    assert refused.response.status_code == 401
                    assert secret not in str(refused.response.body)
            for path in ("/schema", f"/schema?token={secret}", "/nowhere"):
                try:
                    get(server, path, secret)
                except urllib.error.HTTPError as error:
                    assert secret not in error.read().decode()
        server.process.send_signal(signal.SIGTERM)
        output, errors = server.process.communicate(timeout=30)
    assert "/schema" in output + errors  # the log did tell of the requests
    assert "/ws" in output + errors
    for secret in (ADA, BOB, wrong):
        assert secret not in output + errors


def test_a_bad_token_stops_the_start_with_one_line_that_does_not_show_it() -> None:
    for arguments, environ in (
        (("--token", f"ada:{ADA}:many"), {}),
        ((), {"ENVHIVE_TOKENS": f"ada:{ADA}:many"}),
        (("--allow-origin", "lab"), {}),
    ):
        assert ADA not in refused("serve", "echo", *arguments, **environ)


@pytest.mark.parametrize(
    ("host", "environ", "warns"), [("0.0.0.0", {}, True), ("0.0.0.0", TOKENS, False), ("127.0.0.1", {}, False)]
)
def test_an_open_address_without_tokens_is_warned_of_once(host: str, environ: dict[str, str], warns: bool) -> None:
    with envhive_serve("echo", "--workers", "2", host=host, environ=environ) as server:
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.process.communicate(timeout=30)
    assert errors.count("ENVHIVE_TOKENS") == (1 if warns else 0)


def test_slow_and_endless_senders_are_cut_and_the_others_are_served() -> None:
    options = ("--head-timeout", "0.5", "--max-pending-connections", "20")
    with envhive_serve("echo", *options) as server, GenericEnvClient(server.url).sync() as client:
        client.reset()
        slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(40)]
        for sock in slow:
            try:
                sock.sendall(b"GET / HTTP/1.1\r\nX: ")
                assert sock.recv(100) == b""
            except ConnectionError:
                pass  # beyond the limit, so it was closed before it said anything
            sock.close()
        assert client.step({"message": "hello"}).observation["echoed_message"] == "hello"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000)
            assert sock.recv(100).startswith(b"HTTP/1.1 431 ")


def test_many_connections_at_once_are_no_attack() -> None:
    async def open_one(server: ServerProcess) -> str:
        async with connect(f"ws://127.0.0.1:{server.port}/ws?token={BOB}", proxy=None, open_timeout=60) as ws:
            await ws.send('{"type":"reset"}')
            kind: str = json.loads(await asyncio.wait_for(ws.recv(), 60))["type"]
            return kind

    async def scenario(server: ServerProcess) -> None:
        assert set(await asyncio.gather(*(open_one(server) for _ in range(300)))) == {"observation"}

    with envhive_serve("benchmark-async", environ=TOKENS) as server:
        asyncio.run(scenario(server))
        assert get(server, "/health")["max_sessions"] == 1000


SMALL_APP = f"""
import os
os.environ["ENVHIVE_TOKENS"] = "ada:{ADA}"
from envhive import create_app
from envhive.envs.echo import EchoAction, EchoEnvironment, EchoObservation
app = create_app(EchoEnvironment, EchoAction, EchoObservation)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_other_asgi_servers_ask_for_tokens_too(name: str, tmp_path: Path) -> None:
    (tmp_path / "small_app.py").write_text(SMALL_APP)
    with served_by(name, str(tmp_path)) as server:
        with pytest.raises(UnauthorizedError):
            GenericEnvClient(server.url).sync().reset()
        with GenericEnvClient(server.url, token=ADA).sync() as client:
            client.reset()
            assert [session["owner"] for session in get(server, "/sessions", ADA)] == ["ada"]
        with connect_sync(f"ws://127.0.0.1:{server.port}/ws?token={ADA}", proxy=None) as ws:
            ws.send('{"type":"reset"}')
            assert json.loads(ws.recv(timeout=10))["type"] == "observation"


PEER = """
import asyncio, json, sys
from openenv.core import GenericEnvClient

async def attempt(url, options):
    try:
        async with GenericEnvClient(base_url=url, **options) as client:
            await client.reset()
            return (await client.step({"message": "hello"})).observation["echoed_message"]
    except Exception as error:
        return f"{type(error).__name__}: {error}"

print(json.dumps([asyncio.run(attempt(sys.argv[1], options)) for options in json.loads(sys.argv[2])]))
"""


def test_openenvs_client_gets_in_with_a_header_and_not_without(peer: Peer) -> None:
    attempts: list[dict[str, Any]] = [{}]
    if peer.version == "0.10.0":  # 0.3.0's client takes no headers
        attempts.append({"headers": {"Authorization": f"Bearer {BOB}"}})
    with envhive_serve("echo", environ=TOKENS) as server:
        command = [str(peer.python), "-c", PEER, server.url, json.dumps(attempts)]
        done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused_it, *let_in = json.loads(done.stdout)
    assert "401" in refused_it
    assert let_in == ["hello"] * (len(attempts) - 1)
