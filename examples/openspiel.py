"""Play tic-tac-toe against random moves: win if you can, else keep the other from winning.

envhive serve openspiel --set game=tic_tac_toe
python examples/openspiel.py http://localhost:8000
"""

from __future__ import annotations

import sys
from collections import Counter

from envhive import EnvClient
from envhive.envs.openspiel import OpenSpielAction, OpenSpielObservation, OpenSpielState

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
GOOD_CELLS = [4, 0, 2, 6, 8, 1, 3, 5, 7]


class OpenSpiel(EnvClient[OpenSpielAction, OpenSpielObservation, OpenSpielState]): ...


def decide(seen: OpenSpielObservation) -> OpenSpielAction:
    board = seen.text.replace("\n", "")
    for mark in "xo":  # a line of ours to complete, then one of theirs to block
        for line in LINES:
            cells = [board[cell] for cell in line]
            if cells.count(mark) == 2 and "." in cells:
                return OpenSpielAction(action_id=line[cells.index(".")])
    return OpenSpielAction(action_id=next(cell for cell in GOOD_CELLS if cell in seen.legal_actions))


def main(url: str) -> None:
    ends: Counter[float | None] = Counter()
    with OpenSpiel(url).sync() as env:
        for seed in range(20):
            result = env.reset(seed=seed)
            while not result.done:
                result = env.step(decide(result.observation))
            ends[result.reward] += 1
    print(f"{ends[1.0]} won, {ends[0.0]} drawn, {ends[-1.0]} lost")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
