"""OpenEnv's own clients, under remote control. Run by a peer's Python.

Each line on stdin is a JSON list of calls, made all at once; the line on stdout that answers it is the list of their
outcomes, in the same order. A call is `[client, method, args, kwargs]`; the method `make` makes the client, and `open`
makes one and connects it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
from typing import Any

from openenv.core import EnvClient, GenericEnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Action, Observation, State


class CountAction(Action):
    word: str
    add: int = 1


class CountObservation(Observation):
    word: str
    total: int
    seed: int | None = None


class CountState(State):
    total: int


class TypedClient(EnvClient):
    """A typed client in the form that environments ship: the models refuse fields that they do not know."""

    def _step_payload(self, action: CountAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[CountObservation]:
        reward, done = payload["reward"], payload["done"]
        observation = CountObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> CountState:
        return CountState(**payload)

    def step(self, action: dict[str, Any], **kwargs: Any) -> Any:
        """Calls come in as JSON; an action is made of them here, as a user of this client would."""
        return super().step(CountAction(**action), **kwargs)


_clients: dict[str, Any] = {}


def make_client(kind: str, url: str) -> Any:
    if kind == "sync":
        return GenericEnvClient(base_url=url).sync()
    return {"generic": GenericEnvClient, "typed": TypedClient}[kind](base_url=url)


async def make_call(name: str, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if method in ("make", "open"):
        _clients[name] = make_client(*args)
        if method == "make":
            return None
        method, args = "connect", []
    client = _clients[name]
    function = getattr(client, method)
    if not isinstance(client, EnvClient):
        return await asyncio.to_thread(function, *args, **kwargs)
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def outcome_of(call: list[Any]) -> dict[str, Any]:
    try:
        return {"result": as_json(await make_call(*call))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def as_json(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return {"class": type(value).__name__, **value.model_dump(mode="json")}
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value if isinstance(value, (dict, str, int, float, bool)) else None


async def main() -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        outcomes = await asyncio.gather(*(outcome_of(call) for call in json.loads(line)))
        print(json.dumps(outcomes), flush=True)


asyncio.run(main())
