from dataclasses import dataclass

from openenv_core.env_server.types import Action, Observation, State


class Switch(Action):
    on: bool


class Light(Observation):
    lumen: int = 0


class LampState(State):
    on: bool = False


@dataclass
class Bulb:
    lumen: int = 800
