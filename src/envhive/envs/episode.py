"""Where an episode stands: shared by the environments that ship."""

from __future__ import annotations

import uuid


class Episode:
    """Which episode it is, how many steps it has, and whether it goes on.

    Example:
        >>> episode = Episode()
        >>> episode.begin("e1")
        >>> episode.require_running()
        >>> episode.advance(done=True)
        >>> episode.require_running()
        Traceback (most recent call last):
        RuntimeError: The episode has ended: reset to begin another.
    """

    def __init__(self) -> None:
        self.id: str | None = None
        self.steps = 0
        self._running = False

    def begin(self, episode_id: str | None) -> None:
        self.id, self.steps, self._running = episode_id or str(uuid.uuid4()), 0, True

    def end(self) -> None:
        """What comes before the next `begin` is no step of this episode."""
        self._running = False

    def require_running(self) -> None:
        if not self._running:
            raise RuntimeError(
                "There is no episode yet: reset first."
                if self.id is None
                else "The episode has ended: reset to begin another."
            )

    def advance(self, *, done: bool) -> None:
        self.steps += 1
        self._running = not done
