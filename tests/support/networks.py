"""Two hosts of a test's own, and a cable between them that loses and delays packets, or is cut.

`tc netem` would do the same, but many kernels come without it. Here a thread carries the packets from one tun device
to the other, so what is lost is really lost, and TCP has to send it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import pytest

T = TypeVar("T")

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x0001 | 0x1000
_LARGEST_PACKET: Final = 65536

_libc: Final = ctypes.CDLL(None, use_errno=True)


def inside(namespace: str, function: Callable[[], T]) -> T:
    """Call a function on a thread that is in a network namespace."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def there() -> None:
        try:
            with Path(f"/run/netns/{namespace}").open() as opened:
                if _libc.setns(opened.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "this namespace cannot be entered")
            outcome.append(function())
        except BaseException as error:  # it is raised again where somebody can see it
            failure.append(error)

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


class Host:
    """A network namespace with one device, the end of a cable."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def run(self, function: Callable[[], T]) -> T:
        """Call a function here: its sockets are on this host."""
        return inside(self.name, function)

    def plug_in(self, peer: str) -> int:
        """Give it a device and an address. Returns the descriptor from which its packets are read."""
        descriptor = self.run(_open_tun)
        _run("ip", "-n", self.name, "link", "set", "lo", "up")
        _run("ip", "-n", self.name, "addr", "add", self.address, "peer", peer, "dev", "cable")
        _run("ip", "-n", self.name, "link", "set", "cable", "up")
        return descriptor


class Cable:
    """Carries packets between two devices, as badly as it is told to."""

    def __init__(self, ends: tuple[int, int], loss: float, delay_s: tuple[float, float], seed: int) -> None:
        self._across = {ends[0]: ends[1], ends[1]: ends[0]}
        self._loss = loss
        self._delay = delay_s
        self._dice = random.Random(seed)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._carry)
        self.is_cut = False
        self.carried = self.lost = 0

    @contextmanager
    def working(self) -> Iterator[Cable]:
        self._thread.start()
        try:
            yield self
        finally:
            os.close(self._stopped)
            self._thread.join()
            for descriptor in (*self._across, self._stop):
                os.close(descriptor)

    def _carry(self) -> None:
        poll = select.poll()
        for descriptor in (*self._across, self._stop):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while True:
            wait = None if not self._under_way else max(0.0, self._under_way[0][0] - time.monotonic()) * 1000
            for descriptor, _ in poll.poll(wait):
                if descriptor == self._stop:
                    return
                self._take(descriptor, os.read(descriptor, _LARGEST_PACKET))
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self._under_way)
                with contextlib.suppress(OSError):  # the device is down
                    os.write(to, packet)

    def _take(self, descriptor: int, packet: bytes) -> None:
        if self.is_cut or self._dice.random() < self._loss:
            self.lost += 1
            return
        self.carried += 1
        due = time.monotonic() + self._dice.uniform(*self._delay)
        heapq.heappush(self._under_way, (due, self.carried, self._across[descriptor], packet))


@contextmanager
def two_hosts(
    *, loss: float = 0.0, delay_s: tuple[float, float] = (0.0, 0.0), seed: int = 0
) -> Iterator[tuple[Host, Host, Cable]]:
    """Two hosts, and the cable between them. Skips the test, and says why, where such things cannot be had."""
    if shutil.which("ip") is None or os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("network namespaces need root, iproute2 and /dev/net/tun")
    name = uuid4().hex[:6]
    hosts = Host(f"hive-a{name}", "10.213.8.1"), Host(f"hive-b{name}", "10.213.8.2")
    with ExitStack() as stack:
        for host in hosts:
            try:
                _run("ip", "netns", "add", host.name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
            stack.callback(_run, "ip", "netns", "delete", host.name)
        ends = hosts[0].plug_in(hosts[1].address), hosts[1].plug_in(hosts[0].address)
        yield *hosts, stack.enter_context(Cable(ends, loss, delay_s, seed).working())


def _open_tun() -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"cable", _IFF_TUN_NO_PI))
    return descriptor


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
