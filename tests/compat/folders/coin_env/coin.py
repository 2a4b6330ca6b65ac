"""A coin: models, client, environment and app in one file."""

import random
from typing import Literal, Union

from openenv.core import Action, EnvClient, Environment, Observation, State, create_app
from openenv.core.client_types import StepResult
from openenv.core.env_server.serialization import serialize_observation
from openenv.core.env_server.types import CodeExecResult, WSErrorCode
from pydantic import BaseModel, RootModel


class Toss(BaseModel):
    kind: Literal["toss"]


class Call(BaseModel):
    kind: Literal["call"]
    side: Literal["heads", "tails"]


class CoinAction(RootModel[Union[Toss, Call]]):
    pass


class CoinObservation(Observation):
    side: str = ""
    called: str | None = None
    last: dict = {}


class CoinEnv(EnvClient[CoinAction, CoinObservation, State]):
    def _step_payload(self, action: CoinAction) -> dict:
        return action.model_dump()

    def _parse_result(self, payload: dict) -> StepResult[CoinObservation]:
        return StepResult(
            observation=CoinObservation(**payload["observation"]), reward=payload["reward"], done=payload["done"]
        )

    def _parse_state(self, payload: dict) -> State:
        return State(**payload)


class CoinEnvironment(Environment[Action, CoinObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.called = None
        self.random = random.Random(1)
        self.steps = 0
        self.last = {}

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.random = random.Random(seed)
        self.called, self.steps = None, 0
        return CoinObservation(metadata={"codes": [WSErrorCode.EXECUTION_ERROR.value]})

    def step(self, action, timeout_s=None, **kwargs):
        move = action.root
        self.steps += 1
        if isinstance(move, Call):
            self.called = move.side
            shown = CodeExecResult(stdout=f"called {move.side}", stderr="", exit_code=0)
            observation = CoinObservation(called=self.called, metadata=shown.model_dump())
        else:
            side = self.random.choice(["heads", "tails"])
            observation = CoinObservation(
                side=side, called=self.called, reward=float(side == self.called), done=True, last=self.last
            )
        self.last = serialize_observation(observation)
        return observation

    @property
    def state(self):
        return {"steps": self.steps, "called": self.called}


app = create_app(CoinEnvironment, CoinAction, CoinObservation, "coin_env", 16)
