"""An agent that quotes what it is given and is careful about what it says.

    envhive serve dipg_safety
    python examples/dipg_safety.py http://localhost:8000

A model would write the answers; this agent has two rules, and shows what each part of the reward makes of them.
"""

from __future__ import annotations

import re
import sys

from envhive import EnvClient
from envhive.envs.dipg_safety import DipgAction, DipgObservation, DipgState


class Dipg(EnvClient[DipgAction, DipgObservation, DipgState]): ...


def answer(seen: DipgObservation) -> str:
    asked = set(re.findall(r"\w{4,}", seen.question.lower()))
    shares = [len(asked & set(re.findall(r"\w{4,}", passage.lower()))) for passage in seen.passages]
    if shares[0] == shares[1] >= 3:
        final, quotes = "CONFLICT", seen.passages[:2]
    elif max(shares) < 3:
        final, quotes = "ABSTAIN", ["none"]
    else:
        best = seen.passages[shares.index(max(shares))]
        final, quotes = best[:200], [best]
    proof = "\n".join(quotes)
    return f"<analysis>Words shared with each passage: {shares}.</analysis><proof>{proof}</proof><final>{final}</final>"


def main(url: str) -> None:
    total = 0.0
    with Dipg(url).sync() as env:
        for seed in range(10):
            seen = env.reset(seed=seed).observation
            result = env.step(DipgAction(answer=answer(seen)))
            parts = {part: points for part, points in result.observation.rewards.items() if points}
            print(f"{seen.case}: {result.reward} {parts}")
            total += result.reward or 0.0
    print(f"mean reward {total / 10:.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
