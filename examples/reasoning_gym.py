"""Add up the numbers of a chain_sum question, which Python can do.

envhive serve reasoning_gym --set dataset=chain_sum
python examples/reasoning_gym.py http://localhost:8000
"""

from __future__ import annotations

import re
import sys

from envhive import EnvClient
from envhive.envs.reasoning_gym import ReasoningGymAction, ReasoningGymObservation, ReasoningGymState


class ReasoningGym(EnvClient[ReasoningGymAction, ReasoningGymObservation, ReasoningGymState]): ...


def decide(question: str) -> ReasoningGymAction:
    terms = re.findall(r"([+-]?) ?(\d+)", question.partition(":")[2] or question)
    total = sum(-int(number) if sign == "-" else int(number) for sign, number in terms)
    return ReasoningGymAction(answer=str(total))


def main(url: str) -> None:
    total = 0.0
    with ReasoningGym(url).sync() as env:
        for seed in range(10):
            question = env.reset(seed=seed).observation.question
            result = env.step(decide(question))
            total += result.reward or 0.0
    print(f"{total:.0f} of 10 right, the last of them: {question!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
