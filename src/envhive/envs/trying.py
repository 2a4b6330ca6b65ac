"""Settings that are tried before a server starts: shared by the environments that ship."""

from __future__ import annotations

from typing import Any, Self

from envhive.environment import ActT, Environment, ObsT, StateT


class TriedEnvironment(Environment[ActT, ObsT, StateT]):
    """One that is made with its settings before the first session comes, so that the start refuses bad ones."""

    @classmethod
    def for_settings(cls, **settings: Any) -> type[Self]:
        """The class itself, once one was made."""
        cls(**settings).close()
        return cls
