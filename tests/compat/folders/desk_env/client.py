from openenv.core.mcp_client import MCPToolClient


class DeskEnv(MCPToolClient):
    """A desk with tools on it."""
