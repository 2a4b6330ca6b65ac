"""Tokenizers: any object with the two methods below, or a name that transformers knows."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast


class Tokenizer(Protocol):
    """What the chat environment asks of a tokenizer. Those of transformers have it."""

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool = True) -> Any:
        """The tokens of a conversation."""

    def decode(self, token_ids: Sequence[int]) -> Any:
        """The text of tokens."""


@functools.lru_cache(maxsize=8)
def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by a name or folder that transformers knows; one instance for all sessions of a process."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"The tokenizer {name!r} needs the package transformers: pip install 'envhive[chat]'", name=error.name
        ) from error
    return cast(Tokenizer, transformers.AutoTokenizer.from_pretrained(name))


def tokens_of(tokenizer: Tokenizer, conversation: list[dict[str, str]]) -> list[int]:
    """The tokens of a conversation, in whichever form the tokenizer gives them."""
    found = tokenizer.apply_chat_template(conversation, tokenize=True)
    if hasattr(found, "keys"):  # newer releases of transformers give the mask along with them
        found = found["input_ids"]
    flat = found[0] if len(found) and isinstance(found[0], (list, tuple)) else found
    return [int(token) for token in flat]
