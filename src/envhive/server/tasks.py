"""Task sets: environments that come with splits of tasks offer them at `/{env_name}/...`."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from envhive.server.auth import Owner
from envhive.server.gate import Caller
from envhive.server.hive import Hive

_UNSUPPORTED: Final = (AttributeError, NotImplementedError, IndexError)


class TaskError(BaseModel):
    detail: str


_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": TaskError, "description": "There is no such task"},
    404: {"model": TaskError, "description": "The server has another environment"},
    501: {"model": TaskError, "description": "The environment has no task sets"},
    503: {"model": TaskError, "description": "No session is free"},
}


class SplitRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    split: str = Field(description="Name of the task split")


class TaskRequest(SplitRequest):
    index: int = Field(description="Index of the task within the split")


class TaskRangeRequest(SplitRequest):
    start: int | None = Field(default=None, description="First index")
    stop: int | None = Field(default=None, description="Index after the last")


def register_task_routes(app: FastAPI, hive: Hive) -> None:
    """Put the task endpoints on an app."""
    name = hive.blueprint.env_name

    @app.get("/list_environments", tags=["Tasks"])
    async def list_environments() -> list[str]:
        """The one environment this server has."""
        return [name]

    @app.get("/{env_name}/splits", responses=_ERRORS, tags=["Tasks"])
    async def splits(owner: Caller, env_name: str) -> list[dict[str, Any]]:
        """The environment's task splits."""
        return [_as_split(split) for split in await _ask(hive, owner, env_name, "list_splits")]

    @app.post("/{env_name}/tasks", responses=_ERRORS, tags=["Tasks"])
    async def tasks(owner: Caller, env_name: str, request: SplitRequest) -> dict[str, Any]:
        """All tasks of a split."""
        return {"tasks": _jsonable(await _ask(hive, owner, env_name, "list_tasks", request.split)), "env_name": name}

    @app.post("/{env_name}/num_tasks", responses=_ERRORS, tags=["Tasks"])
    async def num_tasks(owner: Caller, env_name: str, request: SplitRequest) -> dict[str, Any]:
        """How many tasks a split has."""
        return {"num_tasks": await _ask(hive, owner, env_name, "num_tasks", request.split)}

    @app.post("/{env_name}/task", responses=_ERRORS, tags=["Tasks"])
    async def task(owner: Caller, env_name: str, request: TaskRequest) -> dict[str, Any]:
        """One task of a split."""
        return {"task": _jsonable(await _ask(hive, owner, env_name, "get_task", request.split, request.index))}

    @app.post("/{env_name}/task_range", responses=_ERRORS, tags=["Tasks"])
    async def task_range(owner: Caller, env_name: str, request: TaskRangeRequest) -> dict[str, Any]:
        """The tasks from `start` up to `stop`."""
        found = await _ask(hive, owner, env_name, "get_task_range", request.split, request.start, request.stop)
        return {"tasks": _jsonable(found)}


async def _ask(hive: Hive, owner: Owner | None, env_name: str, method: str, *args: Any) -> Any:
    """Call a task method on an environment made for it, where that environment's code runs."""
    if env_name.lower() != hive.blueprint.env_name.lower():
        raise HTTPException(404, f"unknown environment {env_name!r}")

    async with hive.visit(owner) as session:
        if await session.ask(functools.partial(_is_async, method)):
            answer, error = await session.ask_async(functools.partial(_call_async, method, args))
        else:
            answer, error = await session.ask(functools.partial(_call, method, args))
    if isinstance(error, IndexError):
        raise HTTPException(400, "Invalid task index") from error
    if error is not None:
        raise HTTPException(501, f"{method} is not supported for this environment") from error
    return answer


# What is asked of an environment may have to be pickled, for one in a process of its own; so these are no closures.


def _is_async(method: str, env: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(env, method, None))


def _call(method: str, args: tuple[Any, ...], env: Any) -> tuple[Any, Exception | None]:
    try:
        return getattr(env, method)(*args), None
    except _UNSUPPORTED as error:
        return None, error


async def _call_async(method: str, args: tuple[Any, ...], env: Any) -> tuple[Any, Exception | None]:
    try:
        return await getattr(env, method)(*args), None
    except _UNSUPPORTED as error:
        return None, error


def _as_split(split: Any) -> dict[str, Any]:
    if isinstance(split, str):
        return {"name": split, "type": split if split in ("train", "validation", "test") else "validation"}
    described = _jsonable(split)
    return described if isinstance(described, dict) else {"name": str(split), "type": "validation"}


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, fallback=str)
