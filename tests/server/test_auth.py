"""Tokens: what may be given, who is whose, and that secrets stay secret."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from envhive.errors import ConfigurationError
from envhive.server.auth import MOST_TOKENS, Tokens, bearer
from envhive.server.config import ServerConfig, as_origin

SECRET = "s3cret-of-ada"


def parse(*texts: str) -> Tokens:
    return Tokens.parse("--token", texts)


@pytest.mark.parametrize(
    ("text", "name", "quota"),
    [
        (SECRET, "default", None),
        (f"ada:{SECRET}", "ada", None),
        (f"ada.l_2-x:{SECRET}:12", "ada.l_2-x", 12),
        ("ada:QWxhZGRpbjpvcGVu+/~.==", "ada", None),
    ],
)
def test_a_token_has_a_name_and_may_have_a_quota(text: str, name: str, quota: int | None) -> None:
    (owner,) = parse(text).owners
    assert (owner.name, owner.quota, owner.number) == (name, quota, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "ada:",
        "ada:5",
        f":{SECRET}",
        f"ada lovelace:{SECRET}",
        f"ada:{SECRET}:",
        f"ada:{SECRET}:0",
        f"ada:{SECRET}:-1",
        f"ada:{SECRET}:many",
        f"ada:{SECRET}:1:2",
        f"ada:{SECRET} with a space",
        f"ada:{SECRET}\n",
        f"{SECRET}ü",
        f"{SECRET}:ada",
    ],
)
def test_nonsense_is_told_in_one_line_that_does_not_show_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse("first:another-secret", text)
    said = str(refused.value)
    assert "--token, token 2: " in said
    assert "\n" not in said
    assert SECRET not in said
    assert "short" not in said


@pytest.mark.parametrize("second", [f"ada:{SECRET}2", f"bob:{SECRET}"])
def test_names_and_secrets_differ(second: str) -> None:
    with pytest.raises(ConfigurationError, match=r"same (name|secret)") as refused:
        parse(f"ada:{SECRET}", second)
    assert SECRET not in str(refused.value)


def test_a_file_has_one_token_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who may train\n\nada:{SECRET}:3\n  bob:another-secret  \n")
    assert [owner.name for owner in parse("eve:yet-another", f"@{path}").owners] == ["eve", "ada", "bob"]
    path.write_text(f"ada:{SECRET}\nbob\n")
    with pytest.raises(ConfigurationError, match="tokens, line 2: "):
        parse(f"@{path}")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        parse(f"@{path}.missing")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="it is not text"):
        parse(f"@{path}")


def test_there_is_a_most() -> None:
    texts = [f"n{number}:secret-{number}" for number in range(MOST_TOKENS + 1)]
    assert len(parse(*texts[1:]).owners) == MOST_TOKENS
    with pytest.raises(ConfigurationError, match="too many"):
        parse(*texts)


def test_only_the_whole_secret_is_right() -> None:
    tokens = parse(f"ada:{SECRET}", "bob:another-secret:2")
    found = tokens.owner_of("another-secret")
    assert found is not None
    assert (found.name, found.quota, found.number) == ("bob", 2, 1)
    for wrong in ("", SECRET[:-1], SECRET + "x", SECRET.upper(), f"ada:{SECRET}", "ü" * 20, "\udc80"):
        assert tokens.owner_of(wrong) is None


def test_every_token_is_compared_in_constant_time_by_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def note(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    tokens = parse(f"ada:{SECRET}", "bob:another-secret", "eve:yet-another")
    monkeypatch.setattr(hmac, "compare_digest", note)
    for secret in (SECRET, "x", "x" * 10_000):
        compared.clear()
        tokens.owner_of(secret)
        assert len(compared) == 3
        assert {len(side) for pair in compared for side in pair} == {32}


def test_secrets_are_in_no_repr_and_travel_to_workers_as_hashes() -> None:
    tokens = parse(f"ada:{SECRET}:7", "bob:another-secret")
    sealed = json.dumps(tokens.sealed())
    assert SECRET not in sealed + repr(tokens) + repr(ServerConfig(tokens=tokens)) + repr(vars(type(tokens)))
    assert Tokens.unsealed(json.loads(sealed)) == tokens
    assert Tokens.unsealed(json.loads(sealed)).owner_of(SECRET) == tokens.owners[0]


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", ""),
        ("abc", ""),
        ("", ""),
        ("Bearer", ""),
    ],
)
def test_a_bearer_token_is_read_off_its_header(header: str, token: str) -> None:
    assert bearer(header) == token


def test_the_environment_gives_tokens_and_origins(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("eve:yet-another:1\n")
    environ = {
        "ENVHIVE_TOKENS": f" ada:{SECRET}, bob:another-secret:2 ,@{path},",
        "ENVHIVE_ALLOW_ORIGINS": "https://Lab.example/, http://localhost:3000",
    }
    config = ServerConfig.resolve(environ)
    assert [(owner.name, owner.quota) for owner in config.tokens.owners] == [("ada", None), ("bob", 2), ("eve", 1)]
    assert config.allow_origins == ("https://lab.example", "http://localhost:3000")
    with pytest.raises(ConfigurationError, match="ENVHIVE_TOKENS, token 2: ") as refused:
        ServerConfig.resolve({"ENVHIVE_TOKENS": f"ada:{SECRET},{SECRET}:x"})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["lab.example", "https://", "https://lab.example/page", "//lab.example", "null", "", "**"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be an origin"):
        as_origin("--allow-origin", text)


@pytest.mark.parametrize(
    ("variable", "field", "value"),
    [
        ("ENVHIVE_MAX_HEAD_SIZE", "max_head_size", 1024),
        ("ENVHIVE_HEAD_TIMEOUT", "head_timeout", 2.0),
        ("ENVHIVE_MAX_PENDING_CONNECTIONS", "max_pending_connections", 7),
    ],
)
def test_limits_come_from_the_environment_too(variable: str, field: str, value: Any) -> None:
    assert getattr(ServerConfig.resolve({variable: str(value)}), field) == value
    with pytest.raises(ConfigurationError, match=variable):
        ServerConfig.resolve({variable: "-1"})
