"""Gymnasium's environments, each served under the types of its own spaces."""

from __future__ import annotations

import os
import re
import threading
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, Field, create_model

from envhive.environment import Environment
from envhive.envs.encoding import ImageData
from envhive.envs.episode import Episode
from envhive.envs.gymnasium.models import GymnasiumAction, GymnasiumObservation, GymnasiumState

_one_draws: Final = threading.Lock()
"""Many environments draw with pygame, whose pictures are wrong where several threads draw at once."""


class GymnasiumEnvironment(Environment[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """Any environment that is registered with Gymnasium, by its id.

    Args:
        env_id: Its id; `package.module:Id-v0` imports the module that registers it.
        render: Whether observations carry a picture.
        options: Further keywords for `gymnasium.make`.

    Example:
        >>> env = GymnasiumEnvironment("CartPole-v1")
        >>> [round(number, 3) for number in env.reset(seed=1).value]
        [0.001, 0.045, -0.036, 0.045]
        >>> env.step(GymnasiumAction(value=1)).reward
        1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True
    observation_cls: ClassVar[type[GymnasiumObservation]] = GymnasiumObservation

    def __init__(self, env_id: str = "CartPole-v1", render: bool = False, **options: Any) -> None:
        super().__init__()
        from envhive.envs.gymnasium import spaces  # loads Gymnasium, which the models alone do not need

        self._spaces = spaces
        self._env = _make(env_id, render, options)
        self._env_id = env_id
        self._render = self._env.render_mode if render else None
        self._episode = Episode()

    @classmethod
    def for_settings(cls, **settings: Any) -> type[Self]:
        """The same environment with models that have the types of its spaces."""
        from envhive.envs.gymnasium import spaces

        env = cls(**settings)
        name = "".join(part[:1].upper() + part[1:] for part in re.split(r"\W+", env._env_id.rpartition(":")[2]))
        action_type = spaces.type_of(env._env.action_space, f"{name}Action_value", outgoing=False)
        value_type = spaces.type_of(env._env.observation_space, f"{name}Observation_value", outgoing=True)
        env.close()
        action_cls: Any = _with_value(GymnasiumAction, f"{name}Action", action_type)
        observation_cls: Any = _with_value(GymnasiumObservation, f"{name}Observation", value_type)
        # What a server reads the models off, as if the class had been written with them.
        bases = (Environment[action_cls, observation_cls, GymnasiumState],)
        members = {"__orig_bases__": bases, "observation_cls": observation_cls, "__doc__": cls.__doc__}
        return type(f"{name}Environment", (cls,), members)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> GymnasiumObservation:
        """Begin an episode; further keywords are Gymnasium's `options`."""
        self._episode.end()
        value, info = self._env.reset(seed=seed, options=options or None)
        self._episode.begin(episode_id)
        return self._observe(value, info)

    def step(self, action: GymnasiumAction, timeout_s: float | None = None, **kwargs: Any) -> GymnasiumObservation:
        self._episode.require_running()
        element = self._spaces.decode(self._env.action_space, action.value)
        value, reward, terminated, truncated, info = self._env.step(element)
        self._episode.advance(done=bool(terminated or truncated))
        return self._observe(
            value,
            info,
            reward=float(reward),
            done=bool(terminated or truncated),
            terminated=bool(terminated),
            truncated=bool(truncated),
        )

    def _observe(self, value: Any, info: dict[str, Any], **outcome: Any) -> GymnasiumObservation:
        encoded = self._spaces.encode(self._env.observation_space, value)
        return self.observation_cls(value=encoded, info=self._spaces.plain(info), **self._picture(), **outcome)

    def _picture(self) -> dict[str, Any]:
        if self._render is None:
            return {}
        with _one_draws:
            drawn = self._env.render()
        return {"image": ImageData.of(drawn)} if self._render == "rgb_array" else {"text": drawn}

    @property
    def state(self) -> GymnasiumState:
        return GymnasiumState(
            episode_id=self._episode.id,
            step_count=self._episode.steps,
            env_id=self._env_id,
            action_space=self._spaces.describe(self._env.action_space),
            observation_space=self._spaces.describe(self._env.observation_space),
        )

    def close(self) -> None:
        if self._render is None:
            self._env.close()
        else:
            with _one_draws:  # the last act of those that draw with pygame is to quit it
                self._env.close()


def _with_value(base: type[BaseModel], name: str, value_type: Any) -> type[BaseModel]:
    """A model derived from another, whose `value` has this type."""
    described = Field(description=base.model_fields["value"].description)
    return create_model(name, __base__=base, value=(value_type, described))


def _make(env_id: str, render: bool, options: dict[str, Any]) -> Any:
    import gymnasium

    if not render:
        return gymnasium.make(env_id, disable_env_checker=True, **options)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # many draw with pygame, which would look for a screen
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    creator: Any = gymnasium.spec(env_id).entry_point
    if isinstance(creator, str):
        creator = gymnasium.envs.registration.load_env_creator(creator)
    modes = getattr(creator, "metadata", {}).get("render_modes", [])
    mode = next((mode for mode in ("rgb_array", "ansi") if mode in modes), None)
    if mode is None:
        raise ValueError(f"{env_id} has nothing to render: it offers {', '.join(modes) or 'no render modes'}")
    return gymnasium.make(env_id, disable_env_checker=True, render_mode=mode, **options)
