"""An episode with OpenEnv's own client: a script for a Python that has OpenEnv, given a URL, an action and a seed."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from typing import Any


async def _done(value: Any) -> Any:
    """Clients of some releases are asynchronous."""
    return await value if inspect.isawaitable(value) else value


async def episode(url: str, action: dict[str, Any], seed: int) -> None:
    """Reset, step, state, close."""
    from openenv.core import GenericEnvClient  # type: ignore[import-not-found, unused-ignore]

    client = GenericEnvClient(base_url=url)
    try:
        await _done(client.connect())
        await _done(client.reset(seed=seed))
        result = await _done(client.step(action))
        if not isinstance(result.done, bool):
            raise TypeError(f"done is {result.done!r}")
        await _done(client.state())
    finally:
        await _done(client.close())


if __name__ == "__main__":
    asyncio.run(episode(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))
