"""What the load may open: file descriptors, ports, and the loopback addresses that multiply the ports."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from envhive.errors import ConfigurationError

RESERVED_FILES: Final = 128
"""Left to a load process for everything but sessions."""
_SESSIONS_PER_PROCESS: Final = 256
"""Fewer than so many do not keep a second load process busy."""
_MOST_ADDRESSES: Final = 64
_MOST_PROCESSES: Final = 4
"""More load processes than this, or than there are cores, are started only if they are asked for by number."""
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_PORTS: Final = 16_384  # 49152 to 65535, where the system does not say


class ServerFilesError(ConfigurationError):
    """The server that was started here may not open as many files as there would be sessions."""


class Budget(msgspec.Struct, frozen=True):
    """How so many sessions are spread: over processes, and over addresses that they come from."""

    shares: list[int]
    """Sessions of each load process."""
    sources: list[str]
    """Addresses to connect from; empty for whatever the system picks."""


def raise_file_limit() -> int:
    """Allow this process, and all it starts, as many files as the system does; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def local_ports() -> int:
    """How many ports outgoing connections may have, for each pair of addresses."""
    try:
        first, last = map(int, _PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return _USUAL_PORTS
    return last - first + 1


def cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def is_loopback(url: str) -> bool:
    """Whether a server's address can only mean this machine."""
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def usable_sources() -> int:
    """How many loopback addresses connections can come from: all of 127.0.0.0/8 on Linux, one elsewhere."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            return 1
    return _MOST_ADDRESSES


def allot(
    sessions: int,
    *,
    files: int,
    ports: int,
    addresses: int,
    processes: int | None = None,
    available_cores: int = 1,
    server_processes: int | None = None,
) -> Budget:
    """Spread `sessions` over load processes and source addresses, or say in one line why that cannot be done.

    `addresses` is how many source addresses there are: 0 for a server elsewhere, where there is no choice.
    `server_processes` is how many a server has that was started from here, and so has the same limit of open files.
    """
    per_process = files - RESERVED_FILES
    if per_process < 1:
        raise ConfigurationError(
            f"The limit of {files} open files leaves none for sessions: raise it (ulimit -n) and try again."
        )
    needed = -(-sessions // per_process)
    if server_processes is not None and sessions > per_process * server_processes:
        raise ServerFilesError(
            f"{sessions} sessions are more than {server_processes} server process(es) of {files} open files can hold "
            f"({per_process * server_processes}): give more --workers, or raise the limit of open files (ulimit -n)."
        )
    most = max(available_cores, _MOST_PROCESSES)
    if processes is None and needed > most:
        raise ConfigurationError(
            f"{sessions} sessions need {needed} load processes of {per_process} open files each, and this machine has "
            f"{available_cores} core(s): ask for at most {most * per_process} sessions, or insist with --processes."
        )
    number = processes or max(min(available_cores, -(-sessions // _SESSIONS_PER_PROCESS)), needed)
    if number < needed:
        raise ConfigurationError(
            f"{sessions} sessions need {needed} load processes of {per_process} open files each, not {number}: "
            f"give --processes {needed}, or raise the limit of open files (ulimit -n)."
        )
    if sessions > ports * max(addresses, 1):
        raise ConfigurationError(
            f"{sessions} sessions need more ports than the {ports * max(addresses, 1)} there are to connect from: "
            f"ask for fewer sessions, or widen net.ipv4.ip_local_port_range."
        )
    number = min(number, sessions)
    shares = [sessions // number + (place < sessions % number) for place in range(number)]
    # A closed connection keeps its port for a minute, so a quarter of the ports is what one address is asked for.
    wanted = min(-(-sessions // max(ports // 4, 1)), addresses)
    sources = [f"127.0.0.{number}" for number in range(1, wanted + 1)] if wanted > 1 else []
    return Budget(shares, sources)
