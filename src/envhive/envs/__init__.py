"""The environments that ship with EnvHive: `envhive serve NAME`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final


@dataclass(frozen=True, slots=True)
class Shipped:
    """An environment that ships with EnvHive, and what it needs."""

    reference: str
    """Its class, in the form that `envhive serve` takes."""
    summary: str
    extra: str = ""
    """The extra that brings the packages it needs."""
    modules: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    """The programs it starts, each by the names it may have."""
    better_with: str = ""
    """A program that it can do without, though not as well."""

    def needs(self) -> list[str]:
        """Modules and programs that it does not work without."""
        return [*self.modules, *(names[0] for names in self.programs)]

    def missing(self) -> list[str]:
        """Those of them that are not there."""
        return [name for name in self.modules if find_spec(name) is None] + self._missing_programs()

    def _missing_programs(self) -> list[str]:
        return [names[0] for names in self.programs if not any(map(shutil.which, names))]

    def hint(self) -> str:
        """What to type to have them; empty if nothing is missing."""
        programs = self._missing_programs()
        steps = [f"pip install 'envhive[{self.extra}]'"] if len(self.missing()) > len(programs) else []
        return "; ".join(steps + ([f"install {', '.join(programs)}"] if programs else []))


HEADLESS_SHELL: Final = "chromium-headless-shell"
"""Chromium without windows: a session begins, and steps, for half the CPU."""
CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


SHIPPED: Final[dict[str, Shipped]] = {
    "atari": Shipped(
        "envhive.envs.atari:AtariEnvironment", "the Atari 2600's games", "atari", ("ale_py", "numpy", "PIL")
    ),
    "benchmark": Shipped("envhive.envs.benchmark:BenchmarkEnvironment", "waits as long as it is told; for measuring"),
    "benchmark-async": Shipped("envhive.envs.benchmark:AsyncBenchmarkEnvironment", "the same, written as coroutines"),
    "browsergym": Shipped(
        "envhive.envs.browsergym:BrowserGymEnvironment",
        "a web browser with tasks on local pages",
        extra="browsergym",
        modules=("browsergym", "playwright", "PIL"),
        programs=((*CHROMIUM, HEADLESS_SHELL),),
    ),
    "chat": Shipped("envhive.envs.chat:ChatEnvironment", "keeps a conversation; the reward is by transforms"),
    "coding": Shipped(
        "envhive.envs.coding:CodingEnvironment",
        "runs Python in a sandbox; the reward is by tests",
        better_with="bwrap",
    ),
    "dipg_safety": Shipped(
        "envhive.envs.dipg_safety:DipgSafetyEnvironment", "grades careful answers about made-up medical passages"
    ),
    "echo": Shipped("envhive.envs.echo:EchoEnvironment", "says back what it is told; for a first look"),
    "git": Shipped("envhive.envs.git:GitEnvironment", "a git repository with a task in it", programs=(("git",),)),
    "gymnasium": Shipped(
        "envhive.envs.gymnasium:GymnasiumEnvironment",
        "any environment that is registered with Gymnasium",
        "gymnasium",
        ("gymnasium", "numpy", "PIL"),
    ),
    "openspiel": Shipped(
        "envhive.envs.openspiel:OpenSpielEnvironment", "the turn games of OpenSpiel", "openspiel", ("pyspiel",)
    ),
    "reasoning_gym": Shipped(
        "envhive.envs.reasoning_gym:ReasoningGymEnvironment",
        "the questions of Reasoning Gym, with its scorers",
        "reasoning-gym",
        ("reasoning_gym", "numpy"),
    ),
    "textarena": Shipped(
        "envhive.envs.textarena:TextArenaEnvironment",
        "Wordle and the other word games of TextArena",
        "textarena",
        ("textarena", "nltk", "numpy"),
    ),
}
