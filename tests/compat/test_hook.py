"""OpenEnv's names are EnvHive's, in a process that asked for that."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import envhive
from envhive import compat
from envhive.compat.hook import ROOTS
from envhive.compat.names import MODULES
from envhive.errors import ConfigurationError, TargetError
from envhive.server.target import load_target
from envhive.wire.observations import encode_observation
from tests.test_layers import loaded_by


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hook, and nothing of it afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    compat.install()
    yield
    compat.uninstall()
    for name in [name for name in set(sys.modules) - before if name.split(".")[0] in (*ROOTS, "theirs")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def run(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(dedent(code), namespace)
    return namespace


# What COMPAT.md counted in public repositories: a folder that uses only these must run.
COUNTED = {
    "openenv.core.env_server.types": "Observation State Action EnvironmentMetadata WSErrorResponse WSErrorCode "
    "HealthStatus HealthResponse CodeExecResult",
    "openenv.core.env_server": "create_app State Observation Environment Action create_fastapi_app",
    "openenv.core.env_server.interfaces": "Environment Observation Action Transform State ModelTokenizer Message",
    "openenv.core.client_types": "StepResult",
    "openenv.core.env_client": "EnvClient StepResult",
    "openenv.core.env_server.http_server": "create_app create_fastapi_app HTTPEnvServer",
    "openenv.core": "EnvClient create_app State Observation Environment Action GenericEnvClient",
    "openenv.core.env_server.mcp_types": "CallToolAction ListToolsAction CallToolObservation ListToolsObservation Tool "
    "ToolError ToolErrorType",
    "openenv_core.env_server.types": "State Observation Action",
    "core.env_server.types": "State Observation Action",
    "openenv.core.env_server.mcp_environment": "MCPEnvironment",
    "openenv.core.mcp_client": "MCPToolClient",
    "openenv_core.env_server.interfaces": "Environment",
    "openenv_core.env_server.http_server": "create_app",
    "openenv_core.env_server": "create_app Environment",
    "openenv_core.client_types": "StepResult",
    "openenv.core.containers.runtime": "ContainerProvider",
    "openenv.core.env_server.web_interface": "load_environment_metadata create_web_interface_app",
    "openenv.core.env_server.serialization": "serialize_observation",
    "openenv_core.env_client": "EnvClient",
    "openenv.core.rubrics.base": "Rubric",
    "openenv.core.llm_client": "create_llm_client LLMClient",
    "core.env_server": "create_app Environment",
    "openenv.core.rubrics.trajectory": "ExponentialDiscountingTrajectoryRubric",
    "openenv.core.rubrics": "Rubric",
    "openenv.core.containers.runtime.providers": "LocalDockerProvider",
    "openenv_core": "HTTPEnvClient",
    "openenv.core.env_server.base_transforms": "CompositeTransform",
    "openenv.core.tools.git_server_client": "GitServerClient",
    "core.client_types": "StepResult",
    "core.env_client": "EnvClient",
    "core.env_server.http_server": "create_app",
    "core.env_server.interfaces": "Environment",
    "openenv": "core",
}

# What OpenEnv 0.10.0 offers in `__all__`, besides.
OFFERED = {
    "openenv.core": "AnthropicClient GenericAction LLMResponse MCPClientBase MCPToolClient OpenAIClient SyncEnvClient "
    "ToolCall",
    "openenv.core.env_server": "Transform TaskProvider Message ModelTokenizer SchemaResponse HealthResponse "
    "ListTasksRequest NumTasksRequest GetTaskRequest GetTaskRangeRequest HealthStatus ServerMode WSErrorCode "
    "BaseMessage WSIncomingMessage WSResetMessage WSStepMessage WSStateMessage WSCloseMessage WSObservationResponse "
    "WSStateResponse WSErrorResponse ConcurrencyConfig ServerCapacityStatus SessionInfo OpenEnvError "
    "ConcurrencyConfigurationError SessionCapacityError SessionNotFoundError SessionCreationError "
    "EnvironmentFactoryError CompositeTransform NullTransform HTTPEnvServer create_web_interface_app "
    "WebInterfaceManager deserialize_action deserialize_action_with_preprocessing serialize_observation "
    "GetEndpointConfig Tool ToolError ToolErrorType ListToolsAction CallToolAction ListToolsObservation "
    "CallToolObservation WSMCPMessage WSMCPResponse RESERVED_TOOL_NAMES MCPEnvironment JsonRpcErrorCode JsonRpcError "
    "JsonRpcRequest JsonRpcResponse McpMethod",
    "openenv.core.tools": "PyExecutor GitServerClient RepoInfo",
    "openenv.core.tools.local_python_executor": "PyExecutor CodeExecResult",
    "openenv.core.env_server.web_interface": "ActionLog EpisodeState WebInterfaceManager",
    "openenv": "GenericEnvClient GenericAction SyncEnvClient",
}


@pytest.mark.parametrize("module", COUNTED)
def test_what_real_environments_import_is_there(hook: None, module: str) -> None:
    found = run(f"from {module} import {', '.join(COUNTED[module].split())}")
    assert all(found[name] is not None for name in COUNTED[module].split())


@pytest.mark.parametrize("module", OFFERED)
def test_what_openenv_offers_is_there(hook: None, module: str) -> None:
    run(f"from {module} import {', '.join(OFFERED[module].split())}")
    assert set(OFFERED[module].split()) <= set(importlib.import_module(module).__all__)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_the_table_leads_to_something(hook: None, module: str) -> None:
    imported = importlib.import_module(module)
    for name in MODULES[module]:
        assert getattr(imported, name) is not None


def test_a_thing_is_the_same_by_all_its_names(hook: None) -> None:
    for path in ("openenv.core.env_server.types", "openenv.core.env_server", "openenv.core", "openenv_core", "core"):
        assert importlib.import_module(path).Action is envhive.Action
    for path in ("openenv.core.env_server.http_server", "openenv_core.env_server", "core.env_server"):
        assert importlib.import_module(path).create_app is envhive.create_app


def test_modules_are_imported_in_all_the_ways_there_are(hook: None) -> None:
    found = run(
        """
        import openenv
        import openenv.core.env_server.types as types
        from openenv.core import env_server
        from openenv.core.env_server import *
        """
    )
    assert found["types"].State is found["State"] is found["env_server"].State is envhive.State
    assert found["openenv"].core.env_server.types is found["types"]
    assert found["openenv"].__version__ == "0.10.0"
    assert {"create_app", "MCPEnvironment", "WSErrorCode", "OpenEnvError"} <= set(found)
    assert "create_app" in dir(found["env_server"])


def test_create_app_can_be_looked_at(hook: None) -> None:
    create_app = run("from openenv.core.env_server import create_app")["create_app"]
    parameters = inspect.signature(create_app).parameters
    assert "gradio_builder" in parameters
    assert "Callable" in str(parameters["env"].annotation)
    assert typing.get_type_hints(create_app)["env_name"] == str | None


def test_classes_on_these_bases_can_be_pickled(hook: None) -> None:
    action = run("from openenv.core.env_server.mcp_types import CallToolAction as A; a = A(tool_name='x')")["a"]
    assert pickle.loads(pickle.dumps(action)) == action


def test_importing_types_loads_no_web_framework() -> None:
    loaded = loaded_by("from envhive import compat; compat.install(); from openenv.core.env_server.types import Action")
    assert not loaded & {"fastapi", "starlette", "uvicorn", "mcp", "fastmcp"}


def test_modules_of_the_page_can_be_imported_and_draw_none(hook: None) -> None:
    found = run("""
        from openenv.core.env_server.gradio_theme import OPENENV_GRADIO_CSS, OPENENV_GRADIO_THEME
        from openenv.core.env_server.gradio_ui import build_gradio_app, get_gradio_display_title
        from openenv.core.env_server import gradio_ui
        import openenv_core.env_server.gradio_ui
    """)
    assert found["get_gradio_display_title"](None, "word game") == "OpenEnv Agentic Environment: word game"
    with pytest.raises(ConfigurationError, match=r"pip install openenv beside EnvHive, or step .* `envhive play`"):
        found["gradio_ui"].build_gradio_app(None, [], None, False)
    with pytest.raises(ModuleNotFoundError, match="no '_nonsense' in it"):
        run("from openenv.core.env_server.gradio_ui import _nonsense")


# What is not there.


@pytest.mark.parametrize(
    ("statement", "where", "name"),
    [
        ("from openenv.core.env_server.types import Nonsense", "openenv.core.env_server.types", "Nonsense"),
        ("from openenv.core import Nonsense", "openenv.core", "Nonsense"),
        ("import openenv.core.nonsense", "openenv.core", "nonsense"),
        ("from openenv_core.nonsense import x", "openenv_core", "nonsense"),
        ("import openenv.core.evals", "openenv.core", "evals"),
        ("from openenv import AutoEnv", "openenv", "AutoEnv"),
        ("import core.nonsense", "core", "nonsense"),
    ],
)
def test_a_name_that_is_not_mapped_is_told(hook: None, statement: str, where: str, name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        run(statement)
    assert f"EnvHive stands in for {where}, and has no {name!r} in it" in str(caught.value)
    assert "install openenv beside EnvHive" in str(caught.value)


def test_asking_whether_a_name_is_there_is_answered(hook: None) -> None:
    module = importlib.import_module("openenv.core")
    assert hasattr(module, "LLMClient")
    assert not hasattr(module, "nonsense")
    assert not hasattr(module, "__wrapped__")


def test_a_folder_that_needs_such_a_name_is_refused_in_one_line(
    hook: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openenv.yaml").write_text("app: theirs:app\n")
    (tmp_path / "theirs.py").write_text("from openenv.core.harness import Harness\n")
    with pytest.raises(
        TargetError, match=r"theirs cannot be loaded\. EnvHive stands in .* no 'harness' in it"
    ) as caught:
        load_target(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


# Packages of everyday names, and a real OpenEnv.


def write_package(folder: Path, **modules: str) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


def test_a_folders_own_core_is_its_own(hook: None, tmp_path: Path) -> None:
    write_package(tmp_path / "core", rules="ANSWER = 42\n")
    sys.path.insert(0, str(tmp_path))
    assert importlib.import_module("core.rules").ANSWER == 42
    assert Path(importlib.import_module("core").__file__ or "") == tmp_path / "core" / "__init__.py"
    # What it does not have is OpenEnv's of old.
    assert importlib.import_module("core.env_server.types").Action is envhive.Action
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'core.nonsense'"):
        importlib.import_module("core.nonsense")


def test_an_installed_openenv_is_used_only_for_what_is_not_replaced(hook: None, tmp_path: Path) -> None:
    write_package(tmp_path / "openenv")
    write_package(
        tmp_path / "openenv" / "core",
        evals="from .env_server.types import Action\nfrom openenv.core import State\n",
        client_types="raise AssertionError('the real one was loaded')\n",
    )
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    evals = importlib.import_module("openenv.core.evals")
    assert evals.Action is envhive.Action
    assert evals.State is envhive.State
    assert importlib.import_module("openenv.core.client_types").StepResult is envhive.StepResult
    with pytest.raises(ModuleNotFoundError, match="Nor has the openenv that is installed here"):
        importlib.import_module("openenv.core.nonsense")


def test_a_replaced_module_has_the_rest_of_its_names_from_an_installed_openenv(hook: None, tmp_path: Path) -> None:
    write_package(tmp_path / "openenv")
    write_package(tmp_path / "openenv" / "core")
    write_package(
        tmp_path / "openenv" / "core" / "env_server",
        types="class Action: ...\n",
        web_interface="from __future__ import annotations\n"
        "from pydantic import BaseModel\n"
        "from .types import Action\n"
        "class WebInterfaceManager: ...\n"
        "class _Field(BaseModel):\n    of: type[Action]\n"
        "def _fields(action_cls):\n    return _Field(of=action_cls)\n",
        serialization="raise RuntimeError('it needs something else')\n",
    )
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    found = run("from openenv.core.env_server.web_interface import _fields, WebInterfaceManager")
    assert found["_fields"](envhive.Action).of is envhive.Action
    assert found["WebInterfaceManager"].__module__ == "envhive.compat.manager"
    with pytest.raises(ModuleNotFoundError, match=r"no '_nonsense' in it\. Nor has the openenv"):
        run("from openenv.core.env_server.web_interface import _nonsense")
    with pytest.raises(ModuleNotFoundError, match=r"no '_nonsense' in it\. Nor has the openenv"):
        run("from openenv.core.env_server import _nonsense")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it needs something else"):
            run("from openenv.core.env_server.serialization import _helper")
    compat.uninstall()
    assert not [name for name in sys.modules if name.startswith("openenv.core.env_server.web_interface")]


def test_the_page_is_that_of_an_installed_openenv(hook: None, tmp_path: Path) -> None:
    for folder in ("openenv", "openenv/core", "openenv/core/env_server"):
        write_package(tmp_path / folder)
    (tmp_path / "openenv/core/env_server/gradio_ui.py").write_text(
        "from .types import Action\nbuild_gradio_app = len\n"
    )
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    found = run("from openenv.core.env_server.gradio_ui import Action, build_gradio_app")
    assert (found["Action"], found["build_gradio_app"]) == (envhive.Action, len)


def test_what_an_app_replaces_stays_replaced_whoever_asks_for_it_then_and_by_whatever_name(hook: None) -> None:
    observation = envhive.Observation(done=True)
    found = run("""
        import openenv.core.env_server.http_server as http_server
        usual = http_server.serialize_observation
        http_server.serialize_observation = lambda observation: {**usual(observation), "mine": True}
        from openenv_core.env_server.http_server import serialize_observation
    """)
    assert "mine" not in found["serialize_observation"](observation)
    assert b'"mine":true' in encode_observation(observation)


# The hook itself.


def test_without_the_hook_nothing_is_different() -> None:
    compat.uninstall()
    assert "openenv" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="No module named 'openenv_core'"):
        importlib.import_module("openenv_core")


def test_installing_twice_is_installing_once(hook: None) -> None:
    finders = list(sys.meta_path)
    assert compat.install()
    assert sys.meta_path == finders


def test_an_openenv_that_was_imported_before_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compat.uninstall()
    monkeypatch.setitem(sys.modules, "openenv", ModuleType("openenv"))
    finders = list(sys.meta_path)
    assert not compat.install()
    assert sys.meta_path == finders
    assert "was imported before" in caplog.text


# Folders that are loaded in other ways than their manifest says.


def test_a_folder_whose_modules_are_parts_of_a_package_is_loaded_as_one(hook: None, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    write_package(folder, models="from openenv.core import Action, Observation\nclass Go(Action): ...\n")
    write_package(
        folder / "server",
        app="from ..models import Go, Observation\nfrom openenv.core import Environment, create_app\n"
        "class Env(Environment):\n"
        "    def reset(self): return Observation()\n"
        "    def step(self, action): return Observation()\n"
        "    state = None\n"
        "app = create_app(Env, Go, Observation, env_name='theirs')\n",
    )
    (folder / "openenv.yaml").write_text("app: server.app:app\n")
    before = Path.cwd()
    try:
        assert load_target(str(folder)).app.title == "theirs on EnvHive"
        assert "theirs.server.app" in sys.modules
    finally:
        importlib.import_module("os").chdir(before)
        for name in [name for name in sys.modules if name.split(".")[0] == "server"]:
            del sys.modules[name]
