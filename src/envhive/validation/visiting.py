"""Using a server as a client would; what goes wrong is a finding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from envhive import GenericEnvClient
from envhive.checks import Broken, NotChecked
from envhive.errors import (
    EnvHiveError,
    EnvironmentFailureError,
    InvalidMessageError,
    SessionCapacityError,
    UnknownTypeError,
)
from envhive.validation.trying import Answer, Repertoire, call

SEED: Final = 42
EPISODE: Final = "validate"
_STEPS: Final = 5

Episode = tuple[list[tuple[Any, Any, bool]], Any]


class Visitor:
    """Asks one server. Each method raises `Broken` where the server or its environment fails.

    Args:
        url: Where the server is.
        sessions: How many sessions to open at once.
        timeout_s: How long any one request may take.
    """

    def __init__(self, url: str, sessions: int, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self.sessions = sessions
        self.timeout_s = timeout_s
        self.repertoire = Repertoire()
        self.names_episodes = True
        self._alone: list[Episode] = []

    async def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        try:
            return await asyncio.to_thread(call, self.url + path, method, body, self.timeout_s, **headers)
        except OSError as error:
            raise Broken(
                f"{self.url}{path} could not be asked: {getattr(error, 'reason', error)}.",
                "Is the server running there? See its log.",
            ) from None

    async def active_sessions(self) -> int | None:
        answer = await self.ask("/health")
        active = document_of(answer).get("active_sessions")
        return active if isinstance(active, int) else None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[GenericEnvClient]:
        client = GenericEnvClient(self.url, message_timeout_s=self.timeout_s)
        try:
            async with client:
                yield client
        except EnvHiveError as error:
            raise Broken(f"{type(error).__name__}: {error}", "See the server's log for the traceback.") from None

    async def open(self, stack: AsyncExitStack) -> list[GenericEnvClient]:
        """As many sessions as wanted, or as there is room for."""
        clients: list[GenericEnvClient] = []
        for _ in range(self.sessions):
            client = GenericEnvClient(self.url, message_timeout_s=self.timeout_s)
            try:
                await stack.enter_async_context(client)
                await self.reset(client)
            except SessionCapacityError:
                break
            except EnvHiveError as error:
                raise Broken(f"{type(error).__name__}: {error}", "See the server's log for the traceback.") from None
            clients.append(client)
        return clients

    async def episode_alone(self, number: int) -> Episode:
        """The episode as the first, the second... session sees it that is alone. Played once: it may be a browser's."""
        while len(self._alone) < number:
            async with self.client() as client:
                self._alone.append(await self.episode(client))
        return self._alone[number - 1]

    async def episode(self, client: GenericEnvClient) -> Episode:
        """What an episode shows, and the state at its end."""
        results = [await self.guard("reset", self.reset(client))]
        for index in range(_STEPS):
            if results[-1].done:
                break
            results.append(
                await self.guard("step", client.step(self.action(index, results[-1].observation), self.timeout_s))
            )
        state = await self.guard("state", client.state())
        return [(each.observation, each.reward, each.done) for each in results], state

    async def reset(self, client: GenericEnvClient) -> Any:
        """Begin the episode that all checks have; without a name, where the environment takes none."""
        try:
            if self.names_episodes:
                return await client.reset(seed=SEED, episode_id=EPISODE)
        except EnvironmentFailureError:
            begun = await client.reset(seed=SEED)
            self.names_episodes = False
            return begun
        except UnknownTypeError as error:
            raise NotChecked(str(error)) from None
        return await client.reset(seed=SEED)

    def action(self, index: int, seen: Any = None) -> Any:
        """What to step with, after an observation."""
        return self.repertoire.action(index, seen)

    async def guard(self, what: str, request: Any) -> Any:
        try:
            return await request
        except InvalidMessageError as error:
            raise Broken(
                f"{what} refuses the action that was made up for it: {error}",
                "Give one that fits: --action '{...}'.",
            ) from None
        except EnvironmentFailureError as error:
            raise Broken(f"{what} failed: {error}", "See the traceback in the server's log, or play it.") from None
        except EnvHiveError as error:
            raise Broken(f"{what} failed: {type(error).__name__}: {error}", "See the server's log.") from None

    async def must_live(self, client: GenericEnvClient, after: str) -> None:
        try:
            await client.state()
        except EnvironmentFailureError:
            pass  # its state may have nothing to tell before the first reset
        except UnknownTypeError as error:
            raise NotChecked(str(error)) from None
        except EnvHiveError as error:
            raise Broken(
                f"the session is gone after {after}: {type(error).__name__}: {error}",
                "Raise exceptions, and do not end the thread or process that the environment runs in.",
            ) from None


def document_of(answer: Answer) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
