"""Which of OpenEnv's names are which of EnvHive's. Names of `openenv` 0.10.0 and of the older `openenv_core`."""

from __future__ import annotations

from typing import Final

Names = dict[str, str]


def _from(home: str, *names: str) -> Names:
    return {name: f"{home}:{name}" for name in names}


_TYPES: Final = _from(
    "envhive.types",
    *("Action", "ConcurrencyConfig", "EnvironmentMetadata", "HealthStatus", "Observation", "ServerCapacityStatus"),
    *("ServerMode", "SessionInfo", "State"),
) | _from(
    "envhive.compat.messages",
    *("BaseMessage", "CodeExecResult", "GetTaskRangeRequest", "GetTaskRequest", "HealthResponse", "ListTasksRequest"),
    *("NumTasksRequest", "ResetRequest", "ResetResponse", "Scalar", "SchemaResponse", "StepRequest", "StepResponse"),
    *("WSCloseMessage", "WSErrorCode", "WSErrorResponse", "WSIncomingMessage", "WSObservationResponse"),
    *("WSResetMessage", "WSStateMessage", "WSStateResponse", "WSStepMessage"),
)
_MODEL_BASES: Final = _from("envhive.types", "Action", "Observation", "State")
_INTERFACES: Final = _from("envhive.environment", "Environment", "Transform") | _from(
    "envhive.compat.interfaces", "Message", "ModelTokenizer", "TaskProvider"
)
_TRANSFORMS: Final = _from("envhive.compat.interfaces", "CompositeTransform", "NullTransform")
_APPS: Final = {
    **_from("envhive.server.app", "create_app", "create_fastapi_app"),
    "HTTPEnvServer": "envhive.server.app:HTTPEnvServer",
}
_PAGES: Final = {
    # There is no page yet: the same app without one.
    "create_web_interface_app": "envhive.server.app:create_app",
    "load_environment_metadata": "envhive.compat.metadata:load_environment_metadata",
    "WebInterfaceManager": "envhive.compat.manager:WebInterfaceManager",
}
_SERIALIZATION: Final = _from(
    "envhive.compat.serialization",
    *("deserialize_action", "deserialize_action_with_preprocessing", "serialize_observation"),
)
_EXCEPTIONS: Final = _from(
    "envhive.errors",
    *("ConcurrencyConfigurationError", "EnvironmentFactoryError", "SessionCapacityError", "SessionNotFoundError"),
) | {"OpenEnvError": "envhive.errors:EnvHiveError", "SessionCreationError": "envhive.errors:SessionError"}
_TOOLS: Final = _from(
    "envhive.tools",
    *("CallToolAction", "CallToolObservation", "ListToolsAction", "ListToolsObservation", "RESERVED_TOOL_NAMES"),
    *("Tool", "ToolError", "ToolErrorType"),
)
_MCP_TYPES: Final = _TOOLS | _from(
    "envhive.compat.messages",
    *("JsonRpcError", "JsonRpcErrorCode", "JsonRpcRequest", "JsonRpcResponse", "McpMethod"),
    *("WSMCPMessage", "WSMCPResponse"),
)
_MCP: Final = _from("envhive.mcp_environment", "MCPEnvironment")
_ROUTES: Final = _from("envhive.compat.routes", "GetEndpointConfig")
_RUBRICS: Final = {
    "base": _from("envhive.rubrics", "Rubric"),
    "containers": _from("envhive.rubrics", "Gate", "RubricDict", "RubricList", "Sequential", "WeightedSum"),
    "llm_judge": _from("envhive.rubrics", "LLMJudge"),
    "trajectory": _from("envhive.rubrics", "ExponentialDiscountingTrajectoryRubric", "TrajectoryRubric"),
}
_STEP_RESULT: Final = _from("envhive.types", "StepResult")
_CLIENT: Final = _from("envhive.compat.clients", "EnvClient")
_GENERIC: Final = _from("envhive.compat.clients", "GenericAction", "GenericEnvClient")
_SYNC: Final = _from("envhive.compat.clients", "SyncEnvClient")
_MCP_CLIENT: Final = {
    "MCPClientBase": "envhive.compat.clients:MCPToolClient",
    "MCPToolClient": "envhive.compat.clients:MCPToolClient",
}
_HTTP_CLIENT: Final = _from("envhive.compat.http_client", "HTTPEnvClient")
_MODELS: Final = _from(
    "envhive.compat.llm",
    *("AnthropicClient", "LLMClient", "LLMResponse", "OpenAIClient", "ToolCall", "create_llm_client"),
)
_GIT: Final = _from("envhive.compat.git", "GitServerClient", "RepoInfo")
_EXECUTOR: Final = _from("envhive.compat.executor", "PyExecutor")
_URLS: Final = _from("envhive.compat.clients", "convert_to_ws_url", "hf_space_subdomain", "run_async_safely")
_PROVIDERS: Final = {
    "ContainerProvider": "envhive.providers.container:ContainerProvider",
    "KubernetesProvider": "envhive.providers.kubernetes:KubernetesProvider",
    "LocalDockerProvider": "envhive.providers.docker:LocalDockerProvider",
    **_from("envhive.compat.providers", "DockerSwarmProvider", "RuntimeProvider"),
}
_ENV_SERVER: Final = {
    **_TYPES,
    **_INTERFACES,
    **_TRANSFORMS,
    **_APPS,
    **_PAGES,
    **_SERIALIZATION,
    **_EXCEPTIONS,
    **_MCP_TYPES,
    **_MCP,
    **_ROUTES,
}
_CLIENTS: Final = {**_CLIENT, **_GENERIC, **_SYNC, **_MCP_CLIENT, **_HTTP_CLIENT}
_CORE: Final = {**_ENV_SERVER, **_STEP_RESULT, **_CLIENTS, **_MODELS}

MODULES: Final[dict[str, Names]] = {
    "openenv": {**_GENERIC, **_SYNC, "__version__": "envhive.compat.names:VERSION"},
    "openenv.core": _CORE,
    "openenv.core.client_types": _STEP_RESULT,
    "openenv.core.containers": {},
    "openenv.core.containers.runtime": _PROVIDERS | _from("envhive.compat.providers", "UVProvider"),
    "openenv.core.containers.runtime.providers": _PROVIDERS,
    "openenv.core.containers.runtime.uv_provider": _from("envhive.compat.providers", "UVProvider"),
    "openenv.core.env_client": {**_CLIENT, **_STEP_RESULT},
    "openenv.core.env_server": _ENV_SERVER,
    "openenv.core.env_server.base_transforms": {
        **_TRANSFORMS,
        **_from("envhive.environment", "Transform"),
        **_from("envhive.types", "Observation"),
    },
    "openenv.core.env_server.exceptions": _EXCEPTIONS,
    "openenv.core.env_server.http_server": {
        **_APPS,
        **_TYPES,
        **_INTERFACES,
        **_SERIALIZATION,
        **_EXCEPTIONS,
        **_MCP_TYPES,
        **_ROUTES,
    },
    "openenv.core.env_server.interfaces": {
        **_INTERFACES,
        **_from("envhive.types", "Action", "EnvironmentMetadata", "Observation", "State"),
        **_from("envhive.environment", "ActT", "ObsT", "StateT"),
    },
    "openenv.core.env_server.mcp_environment": {
        **_MCP,
        **_TOOLS,
        **_MODEL_BASES,
        **_from("envhive.environment", "Environment"),
        **_from("envhive.compat.clients", "run_async_safely"),
        **_from("envhive.mcp_environment", "get_server_tools"),
    },
    "openenv.core.env_server.mcp_types": {**_MCP_TYPES, **_MODEL_BASES},
    "openenv.core.env_server.route_config": {
        **_ROUTES,
        **_from("envhive.compat.routes", "register_get_endpoints"),
    },
    "openenv.core.env_server.serialization": {**_SERIALIZATION, **_MODEL_BASES},
    "openenv.core.env_server.types": _TYPES,
    "openenv.core.env_server.web_interface": {
        **_PAGES,
        **_SERIALIZATION,
        **_MODEL_BASES,
        **_from("envhive.compat.manager", "ActionLog", "EpisodeState"),
        **_from("envhive.environment", "Environment"),
        **_from("envhive.types", "EnvironmentMetadata"),
    },
    "openenv.core.generic_client": {**_GENERIC, **_CLIENT, **_STEP_RESULT},
    "openenv.core.http_env_client": {**_HTTP_CLIENT, **_STEP_RESULT},
    "openenv.core.llm_client": _MODELS,
    "openenv.core.mcp_client": {**_MCP_CLIENT, **_CLIENT, **_STEP_RESULT, **_TOOLS, **_MODEL_BASES},
    "openenv.core.rubrics": {name: home for names in _RUBRICS.values() for name, home in names.items()},
    **{f"openenv.core.rubrics.{module}": {**_RUBRICS["base"], **names} for module, names in _RUBRICS.items()},
    "openenv.core.sync_client": {**_SYNC, **_STEP_RESULT},
    "openenv.core.tools": {**_EXECUTOR, **_GIT},
    "openenv.core.tools.git_server_client": _GIT,
    "openenv.core.tools.local_python_executor": {**_EXECUTOR, **_from("envhive.compat.messages", "CodeExecResult")},
    "openenv.core.utils": _URLS,
}
"""Each module, with where its names are. `openenv_core` and `core` are the same as `openenv.core`."""

STAND_INS: Final[dict[str, Names]] = {
    "openenv.core.env_server.gradio_theme": _from("envhive.compat.pages", "OPENENV_GRADIO_CSS", "OPENENV_GRADIO_THEME"),
    "openenv.core.env_server.gradio_ui": _from("envhive.compat.pages", "build_gradio_app", "get_gradio_display_title"),
}
"""Modules that are there only where OpenEnv is not installed, so that what imports them can be imported."""

ELSEWHERE: Final[dict[str, Names]] = {
    "openenv": _from("openenv.auto", "AutoAction", "AutoEnv"),
}
"""Names that are only there if OpenEnv is installed, as they come from modules that EnvHive does not replace."""

NEEDS: Final = {"fastmcp": ("MCPEnvironment", "get_server_tools")}
"""Names that need a package of their own; `import *` leaves them out where it is not installed."""

VERSION: Final = "0.10.0"
"""Of the OpenEnv whose names these are."""
