"""The socket of a connection: looked up, connected, and hung up on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit


class Dialing:
    """Makes the socket of a connection, and can hang up while picows still waits for the handshake."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    async def dial(self, url: Any) -> socket.socket:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        look_up = functools.partial(socket.getaddrinfo, url.host, url.port, type=socket.SOCK_STREAM)
        if url.host == "localhost" or _is_address(url.host):
            addresses = look_up()  # needs no network, so it does not wait
        else:
            addresses = await loop.run_in_executor(_resolver, look_up)
        for family, kind, protocol, _, address in addresses:
            candidate = socket.socket(family, kind, protocol)
            candidate.setblocking(False)
            try:
                await loop.sock_connect(candidate, address)
            except OSError as error:
                candidate.close()
                failure = failure or error
            except asyncio.CancelledError:
                candidate.close()
                raise
            else:
                self._socket = candidate
                return candidate
        raise failure or OSError(f"{url.host} has no address")

    def hang_up(self) -> None:
        """Shut the socket down; whoever reads from it sees the end and closes it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _make_resolver() -> None:
    """One thread for all look-ups of all clients, started with the first that needs the network."""
    global _resolver
    _resolver = ThreadPoolExecutor(1, thread_name_prefix="envhive-dns")


_resolver: ThreadPoolExecutor
_make_resolver()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_resolver)  # a forked child has the pool, but not its thread


def why(error: BaseException, whom: str = "server") -> str:
    """What went wrong, in words."""
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused. Is the {whom} running there?"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a server, never for one on this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or (_is_address(host) and _is_here(ipaddress.ip_address(host))):
        return None
    import urllib.request  # 15 ms to import, and seldom needed

    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get("https" if url.startswith("wss") else "http") or proxies.get("all")


def _is_here(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Also 0.0.0.0, which a server listens on, and which its log may have named as its address."""
    return address.is_loopback or address.is_unspecified


def is_of_proxy(error: Exception) -> bool:
    """Whether it is a proxy's refusal: picows passes on what its library for proxies raises."""
    return type(error).__module__.partition(".")[0] == "python_socks"


def by_way_of(proxy: str | None) -> str:
    """A proxy as messages name it, without its password."""
    if proxy is None:
        return ""
    parts = urlsplit(proxy)
    return f" through the proxy {parts.hostname}:{parts.port}" if parts.port else f" through the proxy {parts.hostname}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
