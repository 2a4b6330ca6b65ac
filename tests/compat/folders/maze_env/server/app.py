from openenv.core.env_server import create_fastapi_app

from ..models import MazeAction, MazeObservation, MazeState
from .environment import MazeEnvironment

app = create_fastapi_app(
    MazeEnvironment, MazeAction, MazeObservation, max_concurrent_envs=512, state_cls=MazeState
)
