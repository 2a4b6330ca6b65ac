"""An agent that does its errands in the shop.

    envhive serve browsergym
    python examples/browsergym.py http://localhost:8000

A model would choose the actions from the page; here a few rules do.
"""

from __future__ import annotations

import re
import sys

from envhive import EnvClient
from envhive.envs.browsergym import BrowserAction, BrowserObservation, BrowserState


class Browser(EnvClient[BrowserAction, BrowserObservation, BrowserState]): ...


def element(seen: BrowserObservation, words: str) -> str:
    """The number of an element, by its words in the accessibility tree."""
    return re.findall(rf"\[(\d+)\] {re.escape(words)}", seen.page)[0]


def click(seen: BrowserObservation, words: str) -> str:
    return f"click('{element(seen, words)}')"


def next_action(seen: BrowserObservation) -> str:
    if found := re.search(r"as (.+)\.", seen.goal):
        if seen.title != "News":
            return click(seen, "link 'News'")
        if found[1] not in seen.page:
            number = element(seen, "textbox 'Name'")
            return f"fill('{number}', '{found[1]}')"
        return click(seen, "button 'Subscribe'")
    (ware,) = re.findall(r"(?:does the|Put one) (.+?) (?:cost|in the)", seen.goal)
    if seen.title == ware and "cost" in seen.goal:
        return f"send_msg_to_user('{re.findall(r'Price: ([0-9.]+)', seen.page)[0]}')"
    wanted = "button 'Put in basket'" if seen.title == ware else f"link '{ware if seen.title == 'Wares' else 'Wares'}'"
    return click(seen, wanted)


def main(url: str) -> None:
    with Browser(url).sync() as env:
        for seed in (1, 2, 3):
            result = env.reset(seed=seed)
            print(result.observation.goal)
            while not result.done and env.state().step_count < 10:
                action = next_action(result.observation)
                print(" ", action)
                result = env.step(BrowserAction(action=action))
            print("  reward", result.reward)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
