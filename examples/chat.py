"""An agent that answers until its answer is found right.

    envhive serve chat --set 'reward_pattern=\\b12\\b' --set turns=3
    python examples/chat.py http://localhost:8000

A model would write the answers from the conversation so far; here they are written down.
"""

from __future__ import annotations

import sys

from envhive import EnvClient
from envhive.envs.chat import ChatAction, ChatObservation, ChatState

QUESTION = {"role": "user", "content": "How many months has a year?"}
ANSWERS = ["Let me think.", "A year has 12 months."]


class Chat(EnvClient[ChatAction, ChatObservation, ChatState]): ...


def main(url: str) -> None:
    with Chat(url).sync() as env:
        env.reset(system_prompt="Answer in one sentence.", messages=[QUESTION])
        for answer in ANSWERS:
            result = env.step(ChatAction(content=answer))
            if result.reward:
                break
            env.step(ChatAction(role="user", content="That was no answer. Try again."))
        for message in result.observation.messages:
            print(f"{message.role}: {message.content}")
        print("reward", result.reward)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
