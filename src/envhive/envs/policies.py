"""A random policy for each environment that ships, to test and to measure them with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

Policy = Callable[[random.Random, dict[str, Any]], dict[str, Any]]
"""Makes an action of the observation before it; both as JSON has them."""

_GUESSES: Final = ("apple", "brick", "chair", "dream", "field", "house", "lemon", "music", "night", "plant", "stone")


def _any_legal(generator: random.Random, seen: dict[str, Any]) -> dict[str, Any]:
    return {"action_id": generator.choice(seen["legal_actions"])}


RANDOM_POLICIES: Final[dict[str, Policy]] = {
    "atari": _any_legal,
    "benchmark": lambda generator, seen: {},
    "benchmark-async": lambda generator, seen: {},
    "browsergym": lambda generator, seen: {"action": f"scroll(0, {generator.randrange(-200, 200)})"},
    "chat": lambda generator, seen: {"content": generator.choice(_GUESSES)},
    "coding": lambda generator, seen: {"code": f"print({generator.randrange(100)} ** 2)"},
    "dipg_safety": lambda generator, seen: {"answer": generator.choice(_GUESSES)},
    "echo": lambda generator, seen: {"message": generator.choice(_GUESSES)},
    "git": lambda generator, seen: {"arguments": [generator.choice(("status", "log", "diff", "branch"))]},
    "gymnasium": lambda generator, seen: {"value": generator.randrange(2)},
    "openspiel": _any_legal,
    "reasoning_gym": lambda generator, seen: {"answer": str(generator.randrange(-100, 100))},
    "textarena": lambda generator, seen: {"message": f"[{generator.choice(_GUESSES)}]"},
}
"""By the environment's name; each plays what is served without further settings."""
