"""One environment for the people who look at a page."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from typing import Any

import pytest
from pydantic import ValidationError

from envhive import Action, Environment, Observation, State
from envhive.compat.manager import WebInterfaceManager
from envhive.types import EnvironmentMetadata


class Add(Action):
    action_id: int


class Sum(Observation):
    total: int = 0


class Adding(Environment[Add, Sum, State]):
    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Sum:
        self.threads.add(threading.get_ident())
        self.total = seed or 0
        self._state = State(episode_id=episode_id, step_count=0)
        return Sum(total=self.total)

    def step(self, action: Add, **kwargs: Any) -> Sum:
        self.threads.add(threading.get_ident())
        self.total += action.action_id
        self._state.step_count += 1
        return Sum(total=self.total, reward=float(action.action_id), done=self.total > 9)

    @property
    def state(self) -> State:
        return self._state


class Waiting(Adding):
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> Sum:
        await asyncio.sleep(0)
        return self.reset(seed, episode_id)


class Page:
    """A WebSocket, as far as it is used."""

    def __init__(self, gone: bool = False) -> None:
        self.gone = gone
        self.accepted = False
        self.seen: list[Any] = []

    async def accept(self) -> None:
        self.accepted = True

    async def send_text(self, text: str) -> None:
        if self.gone:
            raise RuntimeError("Cannot call send once a close message has been sent")
        self.seen.append(json.loads(text))


@pytest.mark.parametrize("env", [Adding, Waiting, Adding()])
def test_an_episode_is_played_and_logged(env: Any) -> None:
    async def play() -> None:
        manager = WebInterfaceManager(env, Add, Sum)
        begun = await manager.reset_environment({"seed": 3, "episode_id": "e", "unknown": 1})
        assert begun == {"observation": {"total": 3, "metadata": {}}, "reward": None, "done": False}
        stepped = await manager.step_environment({"action_id": "7"})
        assert stepped == {"observation": {"total": 10, "metadata": {}}, "reward": 7.0, "done": True}
        assert manager.get_state() == {"episode_id": "e", "step_count": 1}
        told = manager.episode_state
        assert (told.episode_id, told.step_count, told.is_reset) == ("e", 1, False)
        assert told.current_observation == {"total": 10, "metadata": {}}
        (log,) = told.action_logs
        assert (log.action, log.reward, log.done, log.step_count) == ({"action_id": 7}, 7.0, True, 1)
        await manager.reset_environment()
        assert (manager.episode_state.action_logs, manager.episode_state.is_reset) == ([], True)

    asyncio.run(play())


def test_plain_methods_run_on_one_thread_beside_the_loop() -> None:
    async def play() -> Any:
        manager = WebInterfaceManager(Adding, Add, Sum)
        await manager.reset_environment()
        await manager.step_environment({"action_id": 1})
        await manager.step_environment({"action_id": 2})
        return manager.env

    env = asyncio.run(play())
    assert len(env.threads) == 1
    assert threading.get_ident() not in env.threads


def test_only_so_many_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebInterfaceManager, "MAX_ACTION_LOGS", 2)

    async def play() -> list[int]:
        manager = WebInterfaceManager(Adding, Add, Sum)
        await manager.reset_environment()
        for number in (1, 2, 3):
            await manager.step_environment({"action_id": number})
        return [log.action["action_id"] for log in manager.episode_state.action_logs]

    assert asyncio.run(play()) == [2, 3]


def test_pages_are_told_of_each_change_and_those_that_left_are_forgotten() -> None:
    async def play() -> None:
        manager = WebInterfaceManager(Adding, Add, Sum)
        page, gone = Page(), Page(gone=True)
        await manager.connect_websocket(page)
        await manager.connect_websocket(gone)
        assert (page.accepted, manager.connected_clients) == (True, [page])
        await manager.reset_environment({"seed": 4})
        assert page.seen[-1]["type"] == "state_update"
        assert page.seen[-1]["episode_state"]["current_observation"]["total"] == 4
        await manager.disconnect_websocket(page)
        await manager.disconnect_websocket(page)
        assert manager.connected_clients == []

    asyncio.run(play())


def test_a_bad_action_is_refused_and_changes_nothing() -> None:
    async def play() -> None:
        manager = WebInterfaceManager(Adding, Add, Sum)
        await manager.reset_environment()
        with pytest.raises(ValidationError):
            await manager.step_environment({"action_id": "seven"})
        assert manager.episode_state.is_reset

    asyncio.run(play())


def test_it_says_what_it_shows() -> None:
    assert WebInterfaceManager(Adding, Add, Sum).metadata.name == "Adding"
    told = EnvironmentMetadata(name="sums", description="Adds")
    assert WebInterfaceManager(Adding, Add, Sum, told).metadata is told


def test_pages_that_replace_a_method_find_what_openenvs_is_made_of() -> None:
    async def scenario() -> None:
        manager = WebInterfaceManager(Adding, Add, Sum)
        threads = [await manager._run_sync_in_thread_pool(threading.get_ident) for _ in range(2)]
        assert threads[0] == threads[1] != threading.get_ident()

    asyncio.run(scenario())
    takes_two, takes_any = inspect.signature(lambda a, b: 0), inspect.signature(lambda **more: 0)
    given = {"a": 1, "b": 2, "c": 3}
    assert WebInterfaceManager._get_valid_kwargs(takes_two, given, {"b"}) == {"a": 1}
    assert WebInterfaceManager._get_valid_kwargs(takes_any, given) == given
