"""The files of a new environment's folder, from templates."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from envhive.errors import ConfigurationError
from envhive.scaffold.spaces import GymModels, read_spaces

Kind = Literal["basic", "mcp", "gymnasium"]
KINDS: Final[tuple[Kind, ...]] = ("basic", "mcp", "gymnasium")
DEFAULT_GYM_ID: Final = "CartPole-v1"

_LONGEST_NAME: Final = 40
_TAKEN: Final = {
    "envhive",
    "openenv",
    "openenv_core",
    "server",
    "test",
    "tests",
    "core",
    "gymnasium",
    "pydantic",
    "fastmcp",
}
_SUFFIX: Final = ".tmpl"
_SUMMARIES: Final[dict[Kind, str]] = {
    "basic": "Guess a number from 1 to 100 in seven tries.",
    "mcp": "Find the heavy box with a pair of scales. Its actions are tools.",
    "gymnasium": "{gym_id} from Gymnasium.",
}
_CHANGES: Final[dict[Kind, str]] = {
    "basic": """\
`{package}/models.py` says what an action, an observation and the state are; `{package}/environment.py` what they do.
Put the reward and `done` on the observation.""",
    "mcp": """\
Each method of `{package}/environment.py` that is marked with `@tool` is a tool: its type hints are its schema, and its
docstring is what agents read. Rewards are given in `step`.""",
    "gymnasium": """\
`{package}/models.py` was written from the spaces of {gym_id}. Give its fields the names and descriptions that an agent
should read.""",
}
_REWARDS: Final[dict[Kind, str]] = {
    "basic": "[0.0, 1.0]",
    "mcp": "[0.0, 1.0]",
    "gymnasium": "[-1000.0, 1000.0] # of one step; {gym_id} may give less",
}
_TAGS: Final[dict[Kind, str]] = {"basic": "game", "mcp": "tools", "gymnasium": "control"}
_TOOL_CALL: Final = '{"type": "call_tool", "tool_name": "weigh", "arguments": {"left": [0], "right": [1]}}'
_DEPENDENCIES: Final[dict[Kind, tuple[str, ...]]] = {
    "basic": ("envhive>=0.1",),
    "mcp": ("envhive[mcp]>=0.1",),
    "gymnasium": ("envhive>=0.1", "gymnasium>=1.0"),
}


@dataclass(frozen=True, slots=True)
class Project:
    """What a new environment is called, in each of the places where it has a name."""

    kind: Kind
    package: str
    gym_id: str = DEFAULT_GYM_ID
    with_server: bool = False

    @classmethod
    def named(cls, name: str, kind: Kind, gym_id: str = DEFAULT_GYM_ID, with_server: bool = False) -> Project:
        return cls(kind, package_name(name), gym_id, with_server)

    @property
    def class_name(self) -> str:
        """Of the environment, without the `Environment` at its end.

        Example:
            >>> Project("basic", "word_game_env").class_name
            'WordGame'
        """
        words = self.package.split("_")
        while len(words) > 1 and words[-1] in ("env", "environment"):
            words.pop()
        return "".join(word.capitalize() for word in words if word)

    @property
    def title(self) -> str:
        return " ".join(word.capitalize() for word in self.package.split("_") if word)

    def files(self) -> dict[str, str]:
        """What each file of the folder is to hold, by its path."""
        models = read_spaces(self.gym_id) if self.kind == "gymnasium" else None
        words = self._words(models)
        groups = ["common", self.kind, *(["server"] if self.with_server else [])]
        return {
            self._path(name): _fill(text, words) for group in groups for name, text in sorted(_templates(group).items())
        }

    def _path(self, template: str) -> str:
        """Where a template's file goes: `package__models.py` is models.py in the package."""
        folder, separator, name = template.partition("__")
        if not separator:
            return template
        name = "__init__.py" if name == "init__.py" else name
        return f"{self.package if folder == 'package' else folder}/{name}"

    def _words(self, models: GymModels | None) -> dict[str, str]:
        environment = f"{self.package}.environment"
        words = {
            "package": self.package,
            "distribution": self.package.replace("_", "-"),
            "title": self.title,
            "cls": self.class_name,
            "gym_id": self.gym_id,
            "summary": _SUMMARIES[self.kind].format(gym_id=self.gym_id),
            "about": _SUMMARIES[self.kind].format(gym_id=self.gym_id),
            "change": _CHANGES[self.kind].format(package=self.package, gym_id=self.gym_id),
            "app": "server.app:app" if self.with_server else f"{environment}:{self.class_name}Environment",
            "dependencies": ", ".join(f'"{each}"' for each in _DEPENDENCIES[self.kind]),
            "scripts": '\n[project.scripts]\nserver = "server.app:main"\n' if self.with_server else "",
            "wheel_packages": ", ".join(
                f'"{each}"' for each in (self.package, *(["server"] if self.with_server else []))
            ),
            "reward_range": _REWARDS[self.kind].format(gym_id=self.gym_id),
            "declared_tools": "[weigh, answer]" if self.kind == "mcp" else "[]",
            "tag": _TAGS[self.kind],
            "sample_action": '{"number": 50}',
            "action_cls": "Guess",
            "observation_cls": "Hint",
            "envhive_names": "create_app",
        }
        if self.kind == "mcp":
            words["sample_action"] = _TOOL_CALL
            words |= {"action_cls": "Action", "observation_cls": "Observation"}
            words["envhive_names"] = "Action, Observation, create_app"
        if models is not None:
            words |= {"action_cls": "GymAction", "observation_cls": "GymObservation"}
            words |= models.words()
        imports = [f"from {environment} import {self.class_name}Environment"]
        if self.kind != "mcp":
            imports.append(f"from {self.package}.models import {words['action_cls']}, {words['observation_cls']}")
        words["package_imports"] = "\n".join(imports)
        return words


def package_name(name: str) -> str:
    """The Python name for what a person calls their environment; raises with what is wrong with it.

    Example:
        >>> package_name("Word-Game")
        'word_game'
    """
    package = re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")
    if not package.isidentifier() or keyword.iskeyword(package) or len(package) > _LONGEST_NAME:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a Python package. Take letters, digits and dashes, "
            f"a letter first, at most {_LONGEST_NAME}: word-game."
        )
    if package in _TAKEN or package in sys.stdlib_module_names:
        raise ConfigurationError(f"{package!r} is the name of another Python package. Take another: {package}-env.")
    return package


def write_project(folder: Path, contents: dict[str, str], *, force: bool = False) -> None:
    """Write the files. A folder that has something in it is left alone, unless `force`."""
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder} is a file. Take another name.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise ConfigurationError(
            f"{folder} is there and is not empty. Take another name, or write over what is there with --force."
        )
    try:
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be written: {error.strerror}.") from None


def _templates(group: str) -> dict[str, str]:
    folder = files("envhive.scaffold") / "templates" / group
    return {
        each.name.removesuffix(_SUFFIX): each.read_text(encoding="utf-8")
        for each in folder.iterdir()
        if each.name.endswith(_SUFFIX)
    }


def _fill(text: str, words: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found[1]], text)
