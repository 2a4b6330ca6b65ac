"""Play Pong by the console's memory: follow the ball.

envhive serve atari --set game=pong --set frame=ram
python examples/atari.py http://localhost:8000
"""

from __future__ import annotations

import sys

from envhive import EnvClient
from envhive.envs.atari import AtariAction, AtariObservation, AtariState

BALL, PADDLE = 54, 51  # where Pong keeps how high they are
STEPS = 500


class Atari(EnvClient[AtariAction, AtariObservation, AtariState]): ...


def decide(seen: AtariObservation) -> AtariAction:
    ram = seen.ram or []
    ahead = ram[BALL] - ram[PADDLE]
    move = "NOOP" if ram[BALL] == 0 or abs(ahead) < 4 else "LEFT" if ahead > 0 else "RIGHT"
    return AtariAction(action_id=seen.action_meanings.index(move))


def main(url: str) -> None:
    with Atari(url).sync() as env:
        result = env.reset(seed=1)
        for _ in range(STEPS):
            if result.done:
                break
            result = env.step(decide(result.observation))
        state = env.state()
        print(f"{state.step_count} steps, {state.frame_number} frames, score {state.score:.0f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
