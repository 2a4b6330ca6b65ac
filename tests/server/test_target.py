"""What `envhive serve TARGET` finds, and what it says when it finds nothing."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from fastapi.testclient import TestClient

from envhive.envs import SHIPPED, Shipped
from envhive.errors import ConcurrencyConfigurationError, ConfigurationError, TargetError
from envhive.server.config import forced
from envhive.server.hive import Hive
from envhive.server.target import Target, describe_target, load_target, must_be_known
from envhive.types import ServerMode

MODELS = """
    from envhive import Action, Observation

    class Roll(Action):
        sides: int = 6

    class Rolled(Observation):
        number: int = 0
    """

ENVIRONMENT = """
    from envhive import Environment, State
    from {models} import Roll, Rolled

    class DiceEnvironment(Environment[Roll, Rolled, State]):
        def reset(self, **kwargs):
            return Rolled()

        def step(self, action, **kwargs):
            return Rolled(number=action.sides)

        @property
        def state(self):
            return State()
    """

APP = """
    from envhive import create_app

    try:
        from ..models import Roll, Rolled
        from .environment import DiceEnvironment
    except ImportError:
        from models import Roll, Rolled
        from server.environment import DiceEnvironment

    app = create_app(DiceEnvironment, Roll, Rolled, env_name="dice")
    """


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in. What is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    from_here = [name for name in set(sys.modules) - before if is_imported_from(tmp_path, name)]
    for name in from_here:  # in two steps: a namespace package asks for its parent when it is looked at
        del sys.modules[name]
    importlib.invalidate_caches()


def is_imported_from(folder: Path, name: str) -> bool:
    module = sys.modules[name]
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place and Path(place).is_relative_to(folder) for place in places)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf-8")
    importlib.invalidate_caches()


def write_dice(folder: Path, manifest: str, models: str = "models") -> None:
    """An environment's folder in the layout that OpenEnv's have."""
    write(folder / "openenv.yaml", manifest)
    write(folder / "models.py", MODELS)
    write(folder / "server" / "environment.py", ENVIRONMENT.format(models=models))
    write(folder / "server" / "app.py", APP)


def write_dice_module(folder: Path, more: str = "") -> None:
    """The same environment in two modules, with more at the end of the second."""
    write(folder / "dice_models.py", MODELS)
    write(folder / "dice.py", dedent(ENVIRONMENT.format(models="dice_models")) + dedent(more))


def action_fields(target: Target) -> set[str]:
    """The fields of the action that a target's app takes, as the app itself tells them."""
    schema: dict[str, Any] = TestClient(target.app).get("/schema").json()
    return set(schema["action"]["properties"])


def refusal(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        load_target(target)
    return str(caught.value)


# What is found.


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_shipped_environment_is_known_by_name(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.app.title == f"{name} on EnvHive"


def test_a_shipped_environment_takes_its_own_actions() -> None:
    assert action_fields(load_target("echo")) == {"message", "metadata"}


def test_a_shipped_name_wins_over_a_folder_of_that_name(here: Path) -> None:
    (here / "echo").mkdir()
    assert load_target("echo").name == "echo"


def test_a_class_is_served_with_the_models_it_declares(here: Path) -> None:
    write_dice_module(here)
    target = load_target("dice:DiceEnvironment")
    assert target.name == "dice:DiceEnvironment"
    assert target.app.title == "DiceEnvironment on EnvHive"
    assert action_fields(target) == {"sides", "metadata"}


def test_a_class_inside_a_package_or_another_class_is_found(here: Path) -> None:
    write_dice_module(here / "games", "class Box:\n    inner = DiceEnvironment\n")
    write(here / "games" / "dice_models.py", "")
    write(here / "dice_models.py", MODELS)
    assert action_fields(load_target("games.dice:DiceEnvironment")) == {"sides", "metadata"}
    assert action_fields(load_target("games.dice:Box.inner")) == {"sides", "metadata"}


def test_a_function_with_a_return_annotation_is_served(here: Path) -> None:
    write_dice_module(here, "def make() -> DiceEnvironment:\n    return DiceEnvironment()\n")
    target = load_target("dice:make")
    assert target.app.title == "make on EnvHive"
    assert action_fields(target) == {"sides", "metadata"}


def test_an_app_is_served_as_it_is(here: Path) -> None:
    write_dice_module(
        here,
        """
        from envhive import create_app
        app = create_app(DiceEnvironment, Roll, Rolled, env_name="mine")
        """,
    )
    target = load_target("dice:app")
    assert target.app is sys.modules["dice"].app
    assert target.app.title == "mine on EnvHive"


def test_an_app_of_their_own_with_an_environments_routes_is_known_as_that_environment(here: Path) -> None:
    write_dice_module(
        here,
        """
        from fastapi import FastAPI
        from envhive import HTTPEnvServer
        app = FastAPI(title="theirs")
        HTTPEnvServer(DiceEnvironment, Roll, Rolled).register_routes(app)
        """,
    )
    described = describe_target(load_target("dice:app"))
    assert described["limit"].startswith("1 session(s) at once, as DiceEnvironment does not set")
    assert described["action"] == {}


def test_an_app_that_is_an_object_with_an_async_call_is_served_as_it_is(here: Path) -> None:
    write(
        here / "wrapped.py",
        """
        class Wrapper:
            async def __call__(self, scope, receive, send): ...

        app = Wrapper()
        """,
    )
    assert type(load_target("wrapped:app").app).__name__ == "Wrapper"


def test_an_option_of_the_command_reaches_the_app_of_a_module(here: Path) -> None:
    write_dice_module(
        here,
        """
        from envhive import create_app
        DiceEnvironment.SUPPORTS_CONCURRENT_SESSIONS = True
        app = create_app(DiceEnvironment, Roll, Rolled, max_concurrent_envs=50)
        """,
    )
    with forced(max_sessions=3):
        target = load_target("dice:app")
    assert target.app.state.envhive.max_concurrent_envs == 3


def test_an_app_without_an_environment_is_known_as_that(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hive, "all", set())
    write(here / "plain.py", "from fastapi import FastAPI\napp = FastAPI()\n")
    assert describe_target(load_target("plain:app")) == {"name": "plain:app", "has_environment": False}
    write_dice_module(
        here,
        """
        from fastapi import FastAPI
        from envhive import create_app
        app = FastAPI()
        app.mount("/dice", create_app(DiceEnvironment, Roll, Rolled))
        """,
    )
    assert describe_target(load_target("dice:app")) == {"name": "dice:app", "has_environment": True}


def test_the_commands_mode_wins_over_that_of_routes_which_an_app_registers(here: Path) -> None:
    write_dice_module(
        here,
        """
        from fastapi import FastAPI
        from envhive import HTTPEnvServer
        app = FastAPI()
        HTTPEnvServer(DiceEnvironment, Roll, Rolled).register_routes(app, mode="production")
        """,
    )
    assert TestClient(load_target("dice:app").app).post("/reset").status_code == 404
    del sys.modules["dice"]
    with forced(mode=ServerMode.SIMULATION):
        assert TestClient(load_target("dice:app").app).post("/reset").status_code == 200


def test_too_many_sessions_for_a_class_are_refused(here: Path) -> None:
    write_dice_module(here)
    with forced(max_sessions=3), pytest.raises(ConcurrencyConfigurationError, match="DiceEnvironment cannot serve 3"):
        load_target("dice:DiceEnvironment")


# Folders.


@pytest.mark.parametrize("manifest", ["name: dice\napp: server.app:app\n", "name: dice\n"])
def test_a_folder_is_run_from_inside(here: Path, manifest: str) -> None:
    write_dice(here / "dice_env", manifest)
    target = load_target("dice_env")
    assert target.name == "dice"
    assert action_fields(target) == {"sides", "metadata"}
    assert Path.cwd() == here / "dice_env"


def test_a_folder_that_names_its_package_is_run_from_its_parent(here: Path) -> None:
    write_dice(here / "dice_env", "app: dice_env.server.app:app\n", models="dice_env.models")
    target = load_target("./dice_env")
    assert target.name == "dice_env"
    assert action_fields(target) == {"sides", "metadata"}
    assert "dice_env.server.app" in sys.modules


def test_a_folder_may_be_named_from_further_above(here: Path) -> None:
    write_dice(here / "envs" / "dice_env", "app: envs.dice_env.server.app:app\n", models="envs.dice_env.models")
    assert action_fields(load_target("envs/dice_env")) == {"sides", "metadata"}
    assert "envs.dice_env.server.app" in sys.modules


def test_what_is_above_a_folder_does_not_count_where_it_lies_elsewhere_now(here: Path) -> None:
    write_dice(here / "downloads" / "dice_env", "app: envs.dice_env.server.app:app\n", models="dice_env.models")
    assert action_fields(load_target("downloads/dice_env")) == {"sides", "metadata"}
    assert "dice_env.server.app" in sys.modules


def test_an_app_may_come_from_a_function(here: Path) -> None:
    write_dice(here / "dice_env", "app: server.making:make\n")
    making = "from server.app import app\n\n\ndef make(debug=False):\n    return app"
    write(here / "dice_env" / "server" / "making.py", making)
    assert action_fields(load_target("dice_env")) == {"sides", "metadata"}


def test_a_function_that_runs_a_server_is_not_called(here: Path) -> None:
    write_dice(here / "dice_env", "app: server.running:main\n")
    write(here / "dice_env" / "server" / "running.py", "def main():\n    raise SystemExit('it ran')")
    assert "is neither an environment class nor an ASGI app" in refusal("dice_env")


def test_the_folder_may_be_the_current_one(here: Path) -> None:
    write_dice(here / "dice_env", "name: dice\napp: server.app:app\n")
    os.chdir(here / "dice_env")
    assert load_target(".").name == "dice"


def test_the_folder_may_be_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dice(here / "far" / "dice_env", "name: dice\napp: server.app:app\n")
    (here / "work").mkdir()
    monkeypatch.chdir(here / "work")
    assert load_target(str(here / "far" / "dice_env")).name == "dice"


@pytest.mark.parametrize("manifest", ["app: server.app:app\n", "app: dice_env.server.app:app\n"])
@pytest.mark.parametrize("has_init", [True, False])
def test_a_folder_by_another_name_than_its_package_is_known_by_both(
    here: Path, monkeypatch: pytest.MonkeyPatch, manifest: str, has_init: bool
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    folder = here / "dice-space"
    write_dice(folder, manifest, models="dice_env.models")
    write(folder / "pyproject.toml", '[tool.setuptools.package-dir]\ndice_env = "."\n"dice_env.server" = "server"\n')
    if has_init:
        write(folder / "__init__.py", "WHOSE = 'ours'\n")
    assert action_fields(load_target(str(folder))) == {"sides", "metadata"}
    assert not has_init or importlib.import_module("dice_env").WHOSE == "ours"


def test_an_installed_package_comes_before_the_folders(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    write(here / "installed" / "dice_env" / "models.py", MODELS.replace("sides", "edges"))
    write(here / "installed" / "dice_env" / "__init__.py", "")
    sys.path.append(str(here / "installed"))
    write_dice(here / "dice-space", "app: server.app:app\n")
    write(here / "dice-space" / "server" / "app.py", APP.replace("from models", "from dice_env.models"))
    write(here / "dice-space" / "pyproject.toml", '[tool.setuptools.package-dir]\ndice_env = "."\n')
    assert action_fields(load_target("dice-space")) == {"edges", "metadata"}


def test_a_folder_with_its_package_in_a_folder_of_sources_is_run(here: Path) -> None:
    write_dice(here / "dice", "app: server.app:app\n", models="dice_of_ours.models")
    write(here / "dice" / "src" / "dice_of_ours" / "models.py", MODELS)
    write(here / "dice" / "pyproject.toml", '[tool.setuptools.package-dir]\n"" = "src"\n')
    assert action_fields(load_target("dice")) == {"sides", "metadata"}


@pytest.mark.parametrize("text", ["[tool", "tool = 3\n", "[tool.setuptools]\npackage-dir = 'src'\n"])
def test_a_pyproject_that_makes_no_sense_does_not_keep_a_folder_from_being_served(here: Path, text: str) -> None:
    write_dice(here / "dice", "app: server.app:app\n")
    write(here / "dice" / "pyproject.toml", text)
    assert action_fields(load_target("dice")) == {"sides", "metadata"}


def test_a_folder_may_name_a_class(here: Path) -> None:
    write_dice(here / "dice_env", "app: server.environment:DiceEnvironment\n")
    assert action_fields(load_target("dice_env")) == {"sides", "metadata"}


def test_a_folder_without_a_manifest_is_told(here: Path) -> None:
    (here / "empty").mkdir()
    assert refusal("empty") == f"{here / 'empty'} has no openenv.yaml, which would name the app to serve."


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        ("app: [server.app\n", "cannot be read"),
        ("just text\n", "must hold a mapping such as `app: server.app:app`"),
        ("", "must hold a mapping such as `app: server.app:app`"),
        ("- app\n", "must hold a mapping such as `app: server.app:app`"),
        ("app: server.app\n", "app must name a module and an app, as in server.app:app"),
        ("app: 5\n", "app must name a module and an app, as in server.app:app"),
        ("app:\n", "app must name a module and an app, as in server.app:app"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_told_with_its_path(here: Path, manifest: str, complaint: str) -> None:
    write_dice(here / "dice_env", manifest)
    text = refusal("dice_env")
    assert str(here / "dice_env" / "openenv.yaml") in text
    assert complaint in text
    assert len(text.splitlines()) == 1


def test_a_manifest_that_is_no_text_is_told(here: Path) -> None:
    write_dice(here / "dice_env", "")
    (here / "dice_env" / "openenv.yaml").write_bytes(b"app: \xff\xfe")
    assert "cannot be read" in refusal("dice_env")


# What is not found.


@pytest.mark.parametrize("target", ["chess", "./nowhere", "dice.py"])
def test_an_unknown_target_is_told_with_all_that_it_could_be(here: Path, target: str) -> None:
    text = refusal(target)
    assert repr(target) in text
    for name in SHIPPED:
        assert name in text
    assert "package.module:EnvClass" in text
    assert "a folder" in text


@pytest.mark.parametrize("target", ["nowhere:app", "nowhere.at.all:app"])
def test_a_module_that_is_not_there_is_told_with_where_it_was_looked_for(here: Path, target: str) -> None:
    text = refusal(target)
    assert f"There is no module {target.split(':')[0]!r} here ({here}) or among the installed ones." in text
    assert "Go to the folder" in text


@pytest.mark.parametrize("target", ["chess", "./nowhere", "nowhere.at.all:app"])
def test_what_cannot_be_known_is_refused_before_anything_is_loaded(here: Path, target: str) -> None:
    with pytest.raises(TargetError) as caught:
        must_be_known(target)
    assert str(caught.value) == refusal(target)


@pytest.mark.parametrize("target", ["echo", "dice:Whatever", "envhive.elsewhere:app", "dice_env"])
def test_what_may_be_there_is_not_refused_by_its_name(here: Path, target: str) -> None:
    write_dice_module(here)
    (here / "dice_env").mkdir()
    must_be_known(target)
    assert "dice" not in sys.modules


def test_a_syntax_error_is_told_with_its_place(here: Path) -> None:
    write(here / "helper.py", "x = 1\ndef broken(:\n    pass\n")
    write(here / "typo.py", "import helper\n")
    assert refusal("typo:app") == f"{here / 'helper.py'}:2: invalid syntax: def broken(:"


def test_a_module_below_one_that_is_no_package_is_told(here: Path) -> None:
    write_dice_module(here)
    assert "There is no module 'dice.deeper'" in refusal("dice.deeper:app")


@pytest.mark.parametrize("attribute", ["Missing", "DiceEnvironment.inner"])
def test_a_name_that_the_module_does_not_have_is_told(here: Path, attribute: str) -> None:
    write_dice_module(here)
    assert refusal(f"dice:{attribute}") == f"The module 'dice' has no {attribute!r}."


def test_a_module_that_needs_another_one_is_told_which(here: Path) -> None:
    write(here / "needy.py", "import a_module_that_nobody_has\n")
    assert refusal("needy:app") == "needy needs the module 'a_module_that_nobody_has', which is not installed."


def test_a_class_that_is_no_environment_is_told(here: Path) -> None:
    write_dice_module(here)
    assert refusal("dice:Rolled") == "dice:Rolled is a class without a step method, so it is no environment."


def test_an_environment_that_is_not_finished_is_told_with_what_it_lacks(here: Path) -> None:
    write(
        here / "half.py",
        """
        from envhive import Environment

        class Half(Environment):
            def step(self, action, **kwargs): ...
        """,
    )
    assert refusal("half:Half") == "half:Half cannot be served: it does not define reset, state."


@pytest.mark.parametrize(
    ("name", "kind"), [("number", "int"), ("instance", "DiceEnvironment"), ("unannotated", "function")]
)
def test_what_is_neither_environment_nor_app_is_told_with_its_type(here: Path, name: str, kind: str) -> None:
    write_dice_module(here, "number = 7\ninstance = DiceEnvironment()\ndef unannotated(): return instance\n")
    assert refusal(f"dice:{name}") == f"dice:{name} is neither an environment class nor an ASGI app, but {kind}."


def test_a_fault_of_the_modules_own_is_not_disguised(here: Path) -> None:
    write(here / "faulty.py", "raise LookupError('the dice are gone')\n")
    with pytest.raises(LookupError, match="the dice are gone"):
        load_target("faulty:app")


def test_a_refused_target_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        load_target("chess")


@pytest.mark.parametrize("target", [":app", ".dice:app"])
def test_a_target_without_a_module_is_refused_in_words(here: Path, target: str) -> None:
    assert target in refusal(target)


def test_an_app_that_is_a_plain_function_is_served_as_it_is(here: Path) -> None:
    write(here / "bare.py", "async def app(scope, receive, send): ...\n")
    assert load_target("bare:app").app is sys.modules["bare"].app


def test_a_package_inside_a_folder_of_its_own_name_is_found(here: Path) -> None:
    write_dice(here / "dice_env" / "dice_env", "", models="dice_env.models")
    write(here / "dice_env" / "dice_env" / "__init__.py", "")
    write(here / "dice_env" / "openenv.yaml", "app: dice_env.server.app:app\n")
    assert action_fields(load_target("dice_env")) == {"sides", "metadata"}


def test_a_folders_manifest_may_name_the_class(here: Path) -> None:
    write(here / "dice" / "openenv.yaml", "name: dice\napp: rolling.environment:DiceEnvironment\n")
    write(here / "dice" / "rolling" / "models.py", MODELS)
    write(here / "dice" / "rolling" / "environment.py", ENVIRONMENT.format(models="rolling.models"))
    target = load_target("dice")
    assert (target.name, action_fields(target)) == ("dice", {"sides", "metadata"})


# What is set.


def test_settings_go_to_the_constructor(here: Path) -> None:
    (here / "levels.py").write_text(
        "from envhive import Action, Environment, Observation, State\n"
        "class Levels(Environment[Action, Observation, State]):\n"
        "    def __init__(self, level: int = 1) -> None:\n"
        "        self.level = level\n"
        "    def reset(self, **kwargs): return Observation(metadata={'level': self.level})\n"
        "    def step(self, action: Action) -> Observation: return Observation()\n"
        "    @property\n"
        "    def state(self): return State()\n"
    )
    app = load_target("levels:Levels", {"level": 3}).app
    assert app.state.envhive.hive.blueprint.factory().level == 3
    with pytest.raises(TargetError, match="Levels has no setting 'speed'; it has level"):
        load_target("levels:Levels", {"speed": 3})


def test_an_environment_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    needy = Shipped("envhive.envs.echo:EchoEnvironment", "", "wonders", ("no_such_module",), (("no-such-program",),))
    monkeypatch.setitem(SHIPPED, "wonder", needy)
    told = refusal("wonder")
    assert "wonder needs no_such_module, no-such-program" in told
    assert "pip install 'envhive[wonders]'; install no-such-program" in told


def test_a_class_may_refuse_settings_or_fit_itself_to_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fitting.py").write_text(
        dedent(MODELS)
        + dedent("""
            from envhive import Environment, State

            class Dice(Environment[Roll, Rolled, State]):
                def __init__(self, sides=6):
                    self.sides = sides

                @classmethod
                def for_settings(cls, sides=6):
                    if sides < 2:
                        raise ValueError(f"no die has {sides} sides")
                    return type(f"Dice{sides}", (cls,), {})

                def reset(self, **kwargs):
                    return Rolled()

                def step(self, action, **kwargs):
                    return Rolled(number=self.sides)

                @property
                def state(self):
                    return State()
            """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    served = load_target("fitting:Dice", {"sides": 8}).app.state.envhive.hive.blueprint.factory()
    assert (type(served).__name__, served.sides) == ("Dice8", 8)
    with pytest.raises(TargetError, match="Dice cannot be served so: ValueError: no die has 1 sides"):
        load_target("fitting:Dice", {"sides": 1})


def test_a_class_that_needs_settings_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "levels.py").write_text(
        dedent("""
            from envhive.envs.echo import EchoEnvironment

            class Level(EchoEnvironment):
                def __init__(self, level, *, seed, hard=False):
                    super().__init__()
                    self.level = level
            """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TargetError, match=r"without level and seed: --set level=\.\.\., or"):
        load_target("levels:Level")
    with pytest.raises(TargetError, match="Level cannot be made without seed"):
        load_target("levels:Level", {"level": 3})
    assert load_target("levels:Level", {"level": 3, "seed": 1}).app.state.envhive.hive.blueprint.factory().level == 3
