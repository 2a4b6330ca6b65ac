"""OpenEnv's `WebInterfaceManager`: one environment for the people who look at a page, and the log of what they did."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from envhive.compat.serialization import deserialize_action_with_preprocessing, serialize_observation
from envhive.environment import Environment
from envhive.inspection import MethodPlan, plan_for
from envhive.types import EnvironmentMetadata


class ActionLog(BaseModel):
    """One step that was taken on the page."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    timestamp: str
    action: dict[str, Any]
    observation: dict[str, Any]
    reward: float | None = None
    done: bool
    step_count: int


class EpisodeState(BaseModel):
    """What a page shows of the episode."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    episode_id: str | None = None
    step_count: int
    current_observation: dict[str, Any] | None = None
    action_logs: list[ActionLog] = Field(default_factory=list)
    is_reset: bool = True


class WebInterfaceManager:
    """One environment, stepped by hand; all pages that are connected see the same.

    Args:
        env: The environment, or what makes one.
        action_cls: What `step` takes.
        observation_cls: What `reset` and `step` return.
        metadata: What to say of it.
    """

    MAX_ACTION_LOGS: ClassVar[int] = 1000

    def __init__(
        self,
        env: Any,
        action_cls: type[Any],
        observation_cls: type[Any],
        metadata: EnvironmentMetadata | None = None,
    ) -> None:
        self.env = env if isinstance(env, Environment) else env()
        self.action_cls = action_cls
        self.observation_cls = observation_cls
        name = type(self.env).__name__
        self.metadata = metadata or EnvironmentMetadata(name=name, description=f"{name} environment")
        self.episode_state = EpisodeState(step_count=0)
        self.connected_clients: list[Any] = []
        # One thread, always the same: some libraries belong to the thread that they were first used on.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="envhive-page")

    async def reset_environment(self, reset_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Begin an episode, with those of the keywords that the environment takes."""
        plan = plan_for(type(self.env)).reset
        observation = await self._call(plan, **plan.select(dict(reset_kwargs or {})))
        serialized = serialize_observation(observation)
        self.episode_state = EpisodeState(
            episode_id=self.env.state.episode_id, step_count=0, current_observation=serialized["observation"]
        )
        await self._send_state_update()
        return serialized

    async def step_environment(self, action_data: dict[str, Any]) -> dict[str, Any]:
        """Take a step with what was typed into a form."""
        action = deserialize_action_with_preprocessing(action_data, self.action_cls)
        observation = await self._call(plan_for(type(self.env)).step, action)
        serialized = serialize_observation(observation)
        state = self.env.state
        log = ActionLog(
            timestamp=datetime.now().isoformat(),
            action=action.model_dump(exclude={"metadata"}),
            observation=serialized["observation"],
            reward=observation.reward,
            done=observation.done,
            step_count=state.step_count,
        )
        self.episode_state = EpisodeState(
            episode_id=state.episode_id,
            step_count=state.step_count,
            current_observation=serialized["observation"],
            action_logs=[*self.episode_state.action_logs, log][-self.MAX_ACTION_LOGS :],
            is_reset=False,
        )
        await self._send_state_update()
        return serialized

    def get_state(self) -> dict[str, Any]:
        """Where the environment stands."""
        state: dict[str, Any] = self.env.state.model_dump()
        return state

    async def connect_websocket(self, websocket: Any) -> None:
        """Take in a page, and tell it what there is to see."""
        await websocket.accept()
        self.connected_clients.append(websocket)
        await self._send_state_update()

    async def disconnect_websocket(self, websocket: Any) -> None:
        """Forget a page."""
        if websocket in self.connected_clients:
            self.connected_clients.remove(websocket)

    async def _send_state_update(self) -> None:
        update = json.dumps({"type": "state_update", "episode_state": self.episode_state.model_dump()})
        for client in list(self.connected_clients):
            try:
                await client.send_text(update)
            except (OSError, RuntimeError):  # it has left; Starlette says so in either way
                await self.disconnect_websocket(client)

    async def _call(self, plan: MethodPlan, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment: coroutines here, others where they hold up nobody else."""
        method = getattr(self.env, plan.name)
        if plan.is_async:
            return await method(*args, **kwargs)
        return await self._run_sync_in_thread_pool(method, *args, **kwargs)

    # What pages of others, which replace methods of this class, call by these names.

    async def _run_sync_in_thread_pool(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        job = functools.partial(func, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, job)

    @staticmethod
    def _get_valid_kwargs(
        sig: inspect.Signature, kwargs: dict[str, Any], skip_params: set[str] | None = None
    ) -> dict[str, Any]:
        takes_any = any(each.kind is each.VAR_KEYWORD for each in sig.parameters.values())
        skipped = skip_params or set()
        return {
            name: value
            for name, value in kwargs.items()
            if (takes_any or name in sig.parameters) and name not in skipped
        }
