from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

try:
    from .desk_environment import DeskEnvironment
except ImportError:
    from server.desk_environment import DeskEnvironment

app = create_app(DeskEnvironment, CallToolAction, CallToolObservation, env_name="desk_env")
