"""Where a server is, and how to connect to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

_TOKEN: Final = re.compile(r"[!-~]+")
_NOT_IN_HEADERS: Final = {"\r", "\n", "\0"}


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How to connect, and how long to wait for what."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float | None = 60.0
    max_message_size_mb: float = 100.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str) or _NOT_IN_HEADERS & {*name, *value}:
                raise ValueError(f"The header {name!r} is not a name and a value in one line of text.")

    @property
    def has_credentials(self) -> bool:
        return any(name.lower() == "authorization" for name in self.headers)

    def with_token(self, token: str | None) -> Self:
        """The same with a token, or that of `ENVHIVE_TOKEN`; an `Authorization` among the headers wins over it."""
        token = os.environ.get("ENVHIVE_TOKEN", "").strip() if token is None else token
        if not token or self.has_credentials:
            return self
        if not _TOKEN.fullmatch(token):
            raise ValueError("The token must be one word of visible ASCII characters.")
        return replace(self, headers={**self.headers, "Authorization": f"Bearer {token}"})


def websocket_url(base_url: str) -> str:
    """Where the WebSocket of a server is.

    Example:
        >>> websocket_url("https://example.org/echo/")
        'wss://example.org/echo/ws'
    """
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    try:
        parts = urlsplit(base_url if "://" in base_url else f"ws://{base_url}")
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too large, an address without its closing bracket
        valid = False
    if not valid:
        raise ValueError(f"{base_url!r} is not the address of a server: it must look like http://host:port.")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/ws") else f"{path}/ws"
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, parts.query, ""))
