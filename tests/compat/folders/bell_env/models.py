from dataclasses import dataclass, field  # noqa: F401

from core.env_server.types import Action, Observation, State


class Ring(Action):
    times: int = 1


class Heard(Observation):
    sound: str = ""


__all__ = ["Heard", "Ring", "State"]
