"""A server class of its own, and replies in a form of its own, as some projects have them."""

import openenv.core.env_server.http_server as http_server
from fastapi import FastAPI

from server.hall import HallEnvironment, View, Walk

_usual = http_server.serialize_observation


def _with_layout(observation):
    data = _usual(observation)
    data["observation"]["done"] = observation.done
    data["observation"]["layout"] = HallEnvironment.DOORS
    return data


http_server.serialize_observation = _with_layout


class HallServer(http_server.HTTPEnvServer):
    def __init__(self):
        super().__init__(env=HallEnvironment, action_cls=Walk, observation_cls=View, max_concurrent_envs=4)
        self.sample = self._env_factory()

    def register_routes(self, app):
        super().register_routes(app)

        @app.get("/about")
        def about(token: str = "none"):
            return {
                "action": self.action_cls.__name__,
                "observation": self.observation_cls.__name__,
                "state": self.state_cls.__name__,
                "doors": self.sample.DOORS,
                "sessions": len(self._sessions),
                "token": token,
            }


app = FastAPI(title="hall")
HallServer().register_routes(app)
