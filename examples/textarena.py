"""Play Wordle: guess a word that agrees with all that is known.

envhive serve textarena --set game=Wordle-v0
python examples/textarena.py http://localhost:8000
"""

from __future__ import annotations

import re
import sys

from envhive import EnvClient
from envhive.envs.textarena import TextArenaAction, TextArenaObservation, TextArenaState
from envhive.envs.textarena.arena import common_nouns

WORDS = [word for word in common_nouns() if len(word) == 5]


class TextArena(EnvClient[TextArenaAction, TextArenaObservation, TextArenaState]): ...


def marks(guess: str, secret: str) -> str:
    """G: the right letter; Y: a letter that is elsewhere in the word; X: neither."""
    left = [theirs for ours, theirs in zip(guess, secret, strict=True) if ours != theirs]
    found = ""
    for ours, theirs in zip(guess, secret, strict=True):
        found += "G" if ours == theirs else "Y" if ours in left else "X"
        if found[-1] == "Y":
            left.remove(ours)
    return found


def decide(prompt: str) -> TextArenaAction:
    known = re.findall(r"Feedback:\n([A-Z ]+)\n([GYX ]+)\n", prompt)
    known = [(guess.replace(" ", "").lower(), seen.replace(" ", "")) for guess, seen in known]
    fitting = (word for word in WORDS if all(marks(guess, word) == seen for guess, seen in known))
    return TextArenaAction(message=f"[{next(fitting)}]")


def main(url: str) -> None:
    with TextArena(url).sync() as env:
        for seed in range(5):
            result, guesses = env.reset(seed=seed), 0
            while not result.done:
                action, guesses = decide(result.observation.prompt), guesses + 1
                result = env.step(action)
            print(f"seed {seed}: {action.message} after {guesses} guesses, reward {result.reward:.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
