"""An agent that repairs its program until the tests pass.

    envhive serve coding --set time_limit_s=2
    python examples/coding.py http://localhost:8000

A model would write the attempts from what it sees; here they are written down.
"""

from __future__ import annotations

import sys

from envhive import EnvClient
from envhive.envs.coding import CodingAction, CodingObservation, CodingState

TESTS = ["assert fib(0) == 0", "assert fib(1) == 1", "assert fib(10) == 55", "assert fib(90) == 2880067194370816120"]
ATTEMPTS = [
    "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 3)",
    "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
    "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
]


class Coding(EnvClient[CodingAction, CodingObservation, CodingState]): ...


def main(url: str) -> None:
    with Coding(url).sync() as env:
        env.reset(seed=1, tests=TESTS)
        for code in ATTEMPTS:
            result = env.step(CodingAction(code=code))
            seen = result.observation
            passed = sum(test.passed for test in seen.tests)
            print(f"{passed} of {len(TESTS)} tests pass", f"(it met the {seen.limit} limit)" if seen.limit else "")
            if result.done:
                print("solved")
                break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
