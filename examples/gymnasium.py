"""Balance a pole on a cart, by a rule of thumb.

envhive serve gymnasium --set env_id=CartPole-v1
python examples/gymnasium.py http://localhost:8000
"""

from __future__ import annotations

import sys

from envhive import GenericEnvClient


def decide(angle: float, speed: float) -> int:
    """Push to the side to which the pole is about to fall."""
    return int(angle + 0.3 * speed > 0)


def main(url: str) -> None:
    with GenericEnvClient(url).sync() as env:
        for seed in range(3):
            result, total = env.reset(seed=seed), 0.0
            while not result.done:
                _, _, angle, speed = result.observation["value"]
                result = env.step({"value": decide(angle, speed)})
                total += result.reward or 0.0
            print(f"seed {seed}: balanced for {total:.0f} steps")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
