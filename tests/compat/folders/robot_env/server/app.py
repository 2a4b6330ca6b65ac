from openenv.core.env_server.http_server import HTTPEnvServer, create_fastapi_app  # noqa: F401

from fastapi import FastAPI
from server.robot import Command, Report, RobotEnvironment

_shared = RobotEnvironment("R2", arms=2)

app = FastAPI(title="robots")
server = HTTPEnvServer(lambda: _shared, Command, Report)
server.register_routes(app)


@app.get("/capacity")
def capacity():
    return {"most": server.max_concurrent_envs, "active": server.active_sessions}
