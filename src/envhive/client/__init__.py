"""Talking to environment servers: EnvHive's own and OpenEnv's."""

from envhive.client.client import EnvClient, GenericEnvClient
from envhive.client.mcp import MCPToolClient, SyncMCPToolClient
from envhive.client.sync import SyncEnvClient
from envhive.types import StepResult

__all__ = ["EnvClient", "GenericEnvClient", "MCPToolClient", "StepResult", "SyncEnvClient", "SyncMCPToolClient"]
