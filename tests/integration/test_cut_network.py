"""A peer that vanishes without a word gives its place back. The network is real: two namespaces and a cable, cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from tests.support.processes import envhive_serve
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

SERVER_HOST, CLIENT_HOST = "10.213.7.1", "10.213.7.2"

CLIENT = """
import sys, time
from websockets.sync.client import connect
with connect(sys.argv[1], proxy=None, ping_interval=None) as ws:
    ws.send('{"type":"reset"}')
    ws.recv(timeout=10)
    print("ready", flush=True)
    time.sleep(60)
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def two_hosts() -> Iterator[tuple[str, list[str], str]]:
    """Two hosts of our own, joined by a cable: the name of one, how to run a command on the other, and its end."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    name = uuid4().hex[:6]
    one, other, cable = f"hive-s{name}", f"hive-c{name}", f"vh{name}"
    made = []
    try:
        for space, device, address in ((one, "eth0", SERVER_HOST), (other, cable, CLIENT_HOST)):
            try:
                run("ip", "netns", "add", space)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
            made.append(space)
            run("ip", "netns", "exec", space, "ip", "link", "set", "lo", "up")
            if space == other:
                run("ip", "-n", other, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", one)
                for at, end, host in ((one, "eth0", SERVER_HOST), (other, device, address)):
                    run("ip", "-n", at, "addr", "add", f"{host}/24", "dev", end)
                    run("ip", "-n", at, "link", "set", end, "up")
        yield one, ["ip", "netns", "exec", other], cable
    finally:
        for space in made:
            run("ip", "netns", "delete", space)


def test_a_peer_whose_network_is_cut_gives_its_slot_back_within_the_configured_time() -> None:
    with two_hosts() as (at_server, at_client, cable):
        options = ("echo", "--max-sessions", "1", "--ping-interval", "0.5", "--ping-timeout", "1")
        with envhive_serve(*options, host="0.0.0.0", namespace=at_server) as server:
            address = f"ws://{SERVER_HOST}:{server.port}/ws"
            client = subprocess.Popen([*at_client, sys.executable, "-c", CLIENT, address], stdout=subprocess.PIPE)
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == b"ready\n"
                for _ in range(10):  # silent, but there: it answers pings, and keeps its place
                    assert server.health()["active_sessions"] == 1
                cut_at = time.monotonic()
                run(*at_client, "ip", "link", "set", cable, "down")
                eventually(lambda: server.health()["active_sessions"] == 0, within=10)
                assert time.monotonic() - cut_at > 0.5, "it went for another reason than the cut"
            finally:
                client.kill()
                client.communicate()
