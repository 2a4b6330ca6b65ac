"""A trainer steps the same tool, for rewards. First: envhive serve treasure:Treasure (in this folder)."""

from envhive import MCPToolClient
from envhive.tools import CallToolAction

with MCPToolClient("http://localhost:8000").sync() as env:
    for episode in range(3):
        env.reset(seed=episode)
        squares, rewards, done = [(x, y) for x in range(5) for y in range(5)], [], False
        while not done:
            x, y = squares[len(squares) // 2]
            result = env.step(CallToolAction(tool_name="dig", arguments={"x": x, "y": y}))
            rewards.append(result.reward)
            done = result.done
            if not done:
                away = int(result.observation.result["data"].split()[0])
                squares = [(a, b) for a, b in squares if abs(a - x) + abs(b - y) == away]
        print(f"episode {episode}: {rewards}")
