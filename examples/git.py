"""An agent that reads its task and does it with git.

    envhive serve git
    python examples/git.py http://localhost:8000

A model would choose the commands from what it sees; here a few lines of rules do.
"""

from __future__ import annotations

import re
import sys

from envhive import EnvClient
from envhive.envs.git import GitAction, GitObservation, GitState


class Git(EnvClient[GitAction, GitObservation, GitState]): ...


def commands_for(task: str) -> list[list[str]]:
    if found := re.match(r"Merge the branch (\w+)", task):
        return [["fetch", "origin"], ["merge", f"origin/{found[1]}"], ["push", "origin", "main"]]
    (subject,) = re.findall(r"the commit '(.+)'", task)
    return [["revert", "--no-edit", f":/{subject}"], ["push", "origin", "main"]]


def main(url: str) -> None:
    with Git(url).sync() as env:
        for seed in range(4):
            task = env.reset(seed=seed).observation.task
            print(task)
            for arguments in commands_for(task):
                result = env.step(GitAction(arguments=arguments))
                print("  git", *arguments, "→", result.observation.exit_code)
            print("  reward", result.reward)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
