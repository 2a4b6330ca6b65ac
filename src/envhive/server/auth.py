"""Tokens: who may use a server, and how many sessions each may have."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envhive.errors import ConfigurationError

TOKENS_VARIABLE: Final = "ENVHIVE_TOKENS"
MOST_TOKENS: Final = 1000
DEFAULT_NAME: Final = "default"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET: Final = re.compile(r"[A-Za-z0-9._~+/-]{8,512}=*")
"""What a bearer token may look like. At least eight characters: `ada:5` is a forgotten secret, not a short one."""
_QUOTA: Final = re.compile(r"[1-9][0-9]{0,8}")
_FORM: Final = "it must be SECRET, NAME:SECRET or NAME:SECRET:QUOTA"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whoever holds a token."""

    name: str
    quota: int | None
    """Most sessions at once; None: as many as the server has."""
    number: int
    """Its place among the tokens, the same in all workers."""


class Tokens:
    """The tokens of a server. Of a secret only the hash is kept.

    Example:
        >>> tokens = Tokens.parse("--token", ["ada:correct-horse:4", "battery-staple"])
        >>> tokens.owner_of("correct-horse")
        Owner(name='ada', quota=4, number=0)
        >>> tokens.owner_of("wrong-horse") is None
        True
        >>> tokens
        Tokens(ada, default)
    """

    __slots__ = ("_digests", "owners")

    def __init__(self, entries: Iterable[tuple[str, int | None, bytes]] = ()) -> None:
        entries = list(entries)
        self.owners: Final = tuple(Owner(name, quota, number) for number, (name, quota, _) in enumerate(entries))
        self._digests: Final = tuple(digest for _, _, digest in entries)

    @classmethod
    def parse(cls, source: str, texts: Iterable[str]) -> Tokens:
        """Read tokens, and files of them (`@path`, one a line); a mistake is told by its place, never by its text."""
        entries: list[tuple[str, int | None, bytes]] = []
        for place, text in _places(source, texts):
            name, secret, quota = _split(place, text)
            digest = _digest(secret)
            if any(name == other for other, _, _ in entries):
                raise ConfigurationError(f"{place}: there is a token of the same name before it.")
            if any(digest == other for _, _, other in entries):
                raise ConfigurationError(f"{place}: there is a token with the same secret before it.")
            entries.append((name, quota, digest))
        if len(entries) > MOST_TOKENS:
            raise ConfigurationError(f"{source}: {len(entries)} tokens are too many, {MOST_TOKENS} may be given.")
        return cls(entries)

    def owner_of(self, secret: str) -> Owner | None:
        """Whose secret this is. It takes as long for a wrong one as for a right one."""
        digest, found = _digest(secret), None
        for owner, known in zip(self.owners, self._digests, strict=True):
            if hmac.compare_digest(known, digest):
                found = owner
        return found

    def sealed(self) -> list[list[Any]]:
        """The tokens for another process, as JSON can carry them."""
        return [[o.name, o.quota, digest.hex()] for o, digest in zip(self.owners, self._digests, strict=True)]

    @classmethod
    def unsealed(cls, sealed: list[list[Any]]) -> Tokens:
        return cls((name, quota, bytes.fromhex(digest)) for name, quota, digest in sealed)

    def __bool__(self) -> bool:
        return bool(self.owners)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and self.sealed() == other.sealed()

    def __hash__(self) -> int:
        return hash(self._digests)

    def __repr__(self) -> str:
        return f"Tokens({', '.join(owner.name for owner in self.owners)})"


NO_TOKENS: Final = Tokens()


def bearer(header: str) -> str:
    """The token in an `Authorization` header; empty if there is none."""
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def _places(source: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each token, with words for where it stands."""
    for number, text in enumerate(texts, 1):
        if not text.startswith("@"):
            yield f"{source}, token {number}", text
            continue
        path = Path(text[1:])
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigurationError(f"{source}: the tokens in {path} cannot be read: {why}.") from None
        for line_number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                yield f"{path}, line {line_number}", line.strip()


def _split(place: str, text: str) -> tuple[str, str, int | None]:
    parts = text.split(":")
    if len(parts) > 3:
        raise ConfigurationError(f"{place}: {_FORM}.")
    name, secret = (DEFAULT_NAME, text) if len(parts) == 1 else parts[:2]
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{place}: the name must be of letters, digits, '.', '_' and '-' ({_FORM}).")
    if not _SECRET.fullmatch(secret):
        raise ConfigurationError(
            f"{place}: the secret must be 8 characters at least, letters, digits and -._~+/ ({_FORM})."
        )
    if len(parts) == 3 and not _QUOTA.fullmatch(parts[2]):
        raise ConfigurationError(f"{place}: the quota must be a positive integer ({_FORM}).")
    return name, secret, int(parts[2]) if len(parts) == 3 else None
