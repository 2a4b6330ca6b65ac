"""Environments that sessions do not share: who has which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envhive.errors import SessionCapacityError


class Instances:
    """Which session has which environment, where nobody has said that sessions may share one.

    Some factories hand out one instance to all: a second session would play in the first one's game. Only ids are kept
    here: an environment is to end where its session runs it, not when it is forgotten here.
    """

    def __init__(self, gives_way: Callable[[str, str], bool]) -> None:
        self._gives_way = gives_way
        """Whether the session of the first id ends; if nobody needs it, also for the sake of the second."""
        self._holders: dict[int, str] = {}
        self._had: dict[str, int] = {}
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def claim(self, env: Any, session_id: str, again: Callable[[], None]) -> bool:
        """Let a session have an environment. False if another has it that ends: `again` is called when it has ended.

        Raises `SessionCapacityError` if another session has it, and goes on.
        """
        key = id(env)
        holder = self._holders.setdefault(key, session_id)
        if holder != session_id:
            if not self._gives_way(holder, session_id):
                raise SessionCapacityError(
                    1,
                    1,
                    "The environment's factory hands out one instance, which another session has. "
                    "Set --max-sessions to share it on purpose.",
                )
            if self._holders.setdefault(key, session_id) != session_id:  # it has not ended at once
                self._waiting.setdefault(key, []).append(again)
                return False
        self._had[session_id] = key
        return True

    def give_back(self, session_id: str) -> None:
        """The session's environment, if it has one, is closed or left behind. May be called twice."""
        key = self._had.pop(session_id, None)
        if key is not None:
            del self._holders[key]
            for again in self._waiting.pop(key, ()):
                again()
