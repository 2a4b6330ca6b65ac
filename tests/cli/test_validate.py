"""`envhive validate`: what it says of good environments, and of planted faults."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from envhive.cli import main
from envhive.scaffold.project import Project, write_project
from tests.support.processes import ENVHIVE, children_of, envhive_serve, plain_environ
from tests.support.servers import eventually

STAGES = ["static", "contract", "live"]


def validate(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [ENVHIVE, "validate", *arguments]
    return subprocess.run(command, env=plain_environ(**environ), capture_output=True, text=True, timeout=120)


def report_on(*arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    done = validate(*arguments, "--json", **environ)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def report_from_here(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The same of a command that runs in this process: its start is most of what it costs."""
    done = CliRunner().invoke(main, ["validate", *arguments, "--json"])
    assert done.stderr == ""
    return done.exit_code, json.loads(done.stdout)


def found_in(report: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    return [(stage, finding) for stage in report["stages"] for finding in report["stages"][stage]["findings"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound environment, as `envhive init game` makes it."""
    write_project(tmp_path / "game", Project.named("game", "basic").files())
    return tmp_path / "game"


def test_a_sound_folder_has_nothing_to_mend(folder: Path) -> None:
    code, report = report_on(str(folder))
    assert found_in(report) == []
    assert (code, report["ok"], list(report["stages"])) == (0, True, STAGES)
    assert len(report["stages"]["contract"]["passed"]) == 10
    assert "sessions side by side do not disturb each other" in report["stages"]["live"]["passed"]
    (skipped,) = report["stages"]["live"]["skipped"]
    assert skipped.startswith("OpenEnv's own client can use it: OpenEnv is not installed here")


# Planted faults.


class Fault(NamedTuple):
    """A change to a sound folder, and what is to be said of it."""

    name: str
    plant: Callable[[Path], None]
    stage: str
    level: str
    problem: str
    advice: str


def change(path: str, old: str, new: str) -> Callable[[Path], None]:
    """A fault that is planted by writing something else in a file."""

    def plant(folder: Path) -> None:
        text = (folder / path).read_text()
        assert old in text, f"{path} has no {old!r} to change"
        (folder / path).write_text(text.replace(old, new))

    return plant


def environment(old: str, new: str) -> Callable[[Path], None]:
    return change("game/environment.py", old, new)


def remove(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path).unlink()


INIT = "        super().__init__()\n"
STEP = '        if self._over:\n            raise RuntimeError("There is no episode to step in: reset first")\n'
STATE = "    @property\n    def state(self) -> GameState:\n        return self._state\n"
FIRST = 'return Hint(text="A number from 1 to 100?", tries_left=TRIES)'

FAULTS = [
    Fault("no manifest", remove("openenv.yaml"), "static", "error", "openenv.yaml is not there", "Write one"),
    Fault(
        "a manifest that is no YAML",
        change("openenv.yaml", "name: game", "name: [game"),
        *("static", "error", "openenv.yaml cannot be read", "Mend the line"),
    ),
    Fault(
        "a manifest that names a missing module",
        change("openenv.yaml", "game.environment:", "game.elsewhere:"),
        *("static", "error", "there is no game/elsewhere.py", "Correct `app:`"),
    ),
    Fault(
        "a manifest that names a missing class",
        change("openenv.yaml", ":GameEnvironment", ":Nobody"),
        *("static", "error", "names Nobody, which", "give the name of the environment class"),
    ),
    Fault(
        "a manifest without a port",
        change("openenv.yaml", "port: 8000\n", ""),
        *("static", "warning", "does not say port", "Add `port: 8000`"),
    ),
    Fault(
        "a syntax error",
        environment("def reset(self,", "def reset(self"),
        *("static", "error", "environment.py:", "py_compile"),
    ),
    Fault(
        "a README without front matter",
        lambda folder: (folder / "README.md").write_text("# Game\n"),
        *("static", "error", "does not begin with the front matter", "Put these lines first"),
    ),
    Fault(
        "a README with another port",
        change("README.md", "app_port: 8000\n", ""),
        *("static", "error", "app_port: None", "Write `app_port: 8000`"),
    ),
    Fault(
        "a container that nobody can reach",
        change("Dockerfile", "HOST=0.0.0.0 ", ""),
        *("static", "error", "listens inside the container only", "ENV HOST=0.0.0.0"),
    ),
    Fault(
        "a container that runs as root",
        change("Dockerfile", "USER player\n", ""),
        *("static", "warning", "as root", "USER player"),
    ),
    Fault(
        "a project without the server",
        change("pyproject.toml", '"envhive>=0.1"', ""),
        *("static", "warning", "does not name envhive", 'Add "envhive"'),
    ),
    Fault(
        "a module that needs another",
        environment("import random", "import no_such_package, random"),
        *("contract", "error", "needs the module 'no_such_package', which is not installed", "Mend that"),
    ),
    Fault(
        "a module that ends the program",
        environment("TRIES = 7", "TRIES = 7\nraise SystemExit(3)"),
        *("contract", "error", "importing it raised SystemExit: 3", "out of a module's top level"),
    ),
    Fault(
        "a module that a library refuses",
        lambda folder: doubly_declared(folder),
        *("contract", "error", "as it is already a Pydantic model", "Mend that line"),
    ),
    Fault(
        "a module that a library refuses, by its own line",
        lambda folder: doubly_declared(folder),
        *("contract", "error", "game/models.py:", "Mend that line"),
    ),
    Fault(
        "an environment that takes no name for an episode",
        lambda folder: nameless(folder),
        *("contract", "warning", "an episode cannot be given a name: reset raised ValueError", "Take episode_id into"),
    ),
    Fault(
        "no state",
        environment(STATE, ""),
        *("contract", "error", "does not define state", "Mend that"),
    ),
    Fault(
        "a state that is a method",
        environment("    @property\n", ""),
        *("contract", "error", "state is a method", "Put @property above"),
    ),
    Fault(
        "a step that returns a dict",
        environment("return Hint(text=text, tries_left=left, reward=0.0, done=self._over)", 'return {"text": text}'),
        *("contract", "error", "step returns dict, but Hint is declared", "Return the declared class"),
    ),
    Fault(
        "a step that returns nothing",
        environment("return Hint(text=text, tries_left=left, reward=0.0, done=self._over)", "pass"),
        *("contract", "error", "step returns nothing", "return MyObservation"),
    ),
    Fault(
        "an observation that is no JSON",
        environment(FIRST, 'return Hint(text="?", tries_left=TRIES, metadata={"world": object()})'),
        *("contract", "error", "cannot be sent as JSON", "Keep only what JSON has"),
    ),
    Fault(
        "a seed that is ignored",
        environment(FIRST, "return Hint(text=str(uuid.uuid4()), tries_left=TRIES)"),
        *("contract", "warning", "two episodes with seed 42", "that reset(seed) seeds"),
    ),
    Fault(
        "state that instances share",
        environment("self._state", "type(self)._state"),
        *("contract", "error", "while another instance is being used", "Keep all state on the instance"),
    ),
    Fault(
        "a second close that raises",
        environment(STATE, STATE + "\n    def close(self) -> None:\n        del self._state\n"),
        *("contract", "error", "a second close() fails", "do nothing when it has been done"),
    ),
    Fault(
        "types that are not declared",
        lambda folder: untyped(folder),
        *("contract", "warning", "does not say what its action and observation is", "Derive from Environment["),
    ),
    Fault(
        "a constructor that raises",
        environment(INIT, '        raise OSError("no display")\n'),
        *("contract", "error", "the constructor raised OSError: no display", "See the traceback"),
    ),
    Fault(
        "a constructor that blocks",
        environment(INIT, "        import threading\n\n        threading.Event().wait()\n"),
        *("contract", "error", "did not come to an end within 4 s", "Look for what it waits for"),
    ),
    Fault(
        "a step that exits",
        environment(STEP, "        raise SystemExit(1)\n"),
        *("contract", "error", "step raised SystemExit", "See the traceback"),
    ),
    Fault(
        "a step that ends the process",
        environment(STEP, "        import os\n\n        os._exit(7)\n"),
        *("contract", "error", "ended its whole process (code 7)", "Raise an exception instead"),
    ),
    Fault(
        "one session at a time",
        environment("    SUPPORTS_CONCURRENT_SESSIONS = True", "    SUPPORTS_CONCURRENT_SESSIONS = False"),
        *("contract", "warning", "a server takes one session at a time", "SUPPORTS_CONCURRENT_SESSIONS = True"),
    ),
    Fault(
        "a step before reset that fails by accident",
        environment("        self._over = True\n", ""),
        *("live", "warning", "a step before reset fails by accident", "Set every attribute in __init__"),
    ),
    Fault(
        "steps that are not counted",
        environment("state.step_count += 1", "state.episode_id = state.episode_id"),
        *("live", "warning", "step_count was 0 before a step and 0 after it", "add 1 in each step"),
    ),
    Fault(
        "an action that takes anything",
        lambda folder: unchecked(folder),
        *(
            "live",
            "warning",
            "an action whose 'number' is an object was taken as a good one",
            "Declare the action's fields",
        ),
    ),
]


def unchecked(folder: Path) -> None:
    change("game/models.py", "number: int", "number: Annotated[int, BeforeValidator(lambda given: 1)]")(folder)
    change("game/models.py", "import Field", "import BeforeValidator, Field")(folder)
    change("game/models.py", "from envhive", "from typing import Annotated\n\nfrom envhive")(folder)


def doubly_declared(folder: Path) -> None:
    change("game/models.py", "class Guess", "@dataclass\nclass Guess")(folder)
    change("game/models.py", "from envhive", "from pydantic.dataclasses import dataclass\n\nfrom envhive")(folder)


def nameless(folder: Path) -> None:
    begin = "        self._secret = random"
    environment(begin, f'        if episode_id:\n            raise ValueError("No.")\n{begin}')(folder)


def untyped(folder: Path) -> None:
    environment("Environment[Guess, Hint, GameState]", "Environment")(folder)
    environment("action: Guess", "action")(folder)
    environment("-> Hint", "")(folder)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_what_to_do_is_said(fault: Fault, folder: Path) -> None:
    fault.plant(folder)
    live = [] if fault.stage == "live" else ["--no-live"]
    patience = "4" if "within 4 s" in fault.problem else "60"  # a busy machine is no fault of the folder's
    code, report = report_from_here(str(folder), "--timeout", patience, *live)
    matching = [(stage, finding["level"]) for stage, finding in found_in(report) if fault.problem in finding["problem"]]
    assert matching, found_in(report)
    assert matching[0] == (fault.stage, fault.level)
    advice = [finding["advice"] for _, finding in found_in(report) if fault.problem in finding["problem"]]
    assert fault.advice in advice[0]
    assert code == (0 if report["ok"] else 1)
    assert code == 1 or fault.level == "warning"


def test_shared_state_is_found_over_the_wire_too(folder: Path) -> None:
    environment("self._state", "type(self)._state")(folder)
    code, report = report_on(str(folder))
    assert code == 1
    (problem,) = [each["problem"] for each in report["stages"]["live"]["findings"] if each["level"] == "error"]
    assert "of 8 sessions at once" in problem


def test_an_environment_of_one_session_is_tried_with_one(folder: Path) -> None:
    environment("    SUPPORTS_CONCURRENT_SESSIONS = True", "    SUPPORTS_CONCURRENT_SESSIONS = False")(folder)
    code, report = report_on(str(folder))
    assert (code, report["errors"], report["warnings"]) == (0, 0, 1)
    side_by_side = "sessions side by side do not disturb each other: the server takes one session at a time"
    assert side_by_side in report["stages"]["live"]["skipped"]
    assert report_on(str(folder), "--strict", "--no-live")[0] == 1


def test_without_a_way_to_load_it_no_server_is_tried(folder: Path) -> None:
    remove("game/environment.py")(folder)
    done = validate(str(folder), "--no-live")
    assert (done.returncode, done.stderr) == (1, "")
    _, report = report_on(str(folder))
    assert report["stages"]["live"]["skipped"] == ["all of it: there is nothing to serve before the above is mended"]


def test_when_it_is_told_to_end_it_leaves_nothing_behind(folder: Path) -> None:
    waits = (
        "        import pathlib, threading\n\n        pathlib.Path('there').touch()\n        threading.Event().wait()\n"
    )
    environment(INIT, waits)(folder)
    command = [ENVHIVE, "validate", str(folder), "--timeout", "600"]
    with subprocess.Popen(command, env=plain_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        eventually((folder / "there").exists, within=30)  # a folder's code runs in the folder
        children = children_of(process.pid)
        process.terminate()
        assert process.wait(timeout=30) == 1
    assert children
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


# Other subjects.


def test_a_target_is_checked_without_a_folder() -> None:
    code, report = report_on("echo")
    assert (code, found_in(report), list(report["stages"])) == (0, [], ["contract", "live"])


def test_a_running_server_is_checked_as_it_is() -> None:
    with envhive_serve("echo", "--max-sessions", "3") as server:
        code, report = report_on(server.url, "--sessions", "16")
        assert (code, found_in(report), list(report["stages"])) == (0, [], ["live"])
        assert server.health()["active_sessions"] == 0


def test_an_environment_that_takes_no_name_for_an_episode_is_checked_without(folder: Path) -> None:
    nameless(folder)
    code, report = report_on(str(folder))
    assert (code, [finding["check"] for _, finding in found_in(report)]) == (0, ["reset returns an observation"])
    assert "an episode runs" in report["stages"]["live"]["passed"]


def test_what_production_mode_does_not_offer_is_not_checked() -> None:
    with envhive_serve("echo", "--mode", "production") as server:
        code, report = report_on(server.url)
        assert (code, found_in(report)) == (0, [])
        skipped = report["stages"]["live"]["skipped"]
        assert "an episode runs: 'reset' is not available in production mode; `--mode simulation` offers it" in skipped


def test_a_server_that_asks_for_a_token_is_checked_with_one() -> None:
    with envhive_serve("echo", "--token", "ada:a-long-secret") as server:
        code, report = report_on(server.url.replace("http", "ws"), ENVHIVE_TOKEN="a-long-secret")
        assert (code, found_in(report)) == (0, [])
        code, report = report_on(server.url)
        assert (code, report["errors"] > 0) == (1, True)


def test_a_server_that_is_not_there_is_said(folder: Path) -> None:
    done = validate("http://127.0.0.1:9")
    assert (done.returncode, done.stderr) == (1, "")
    assert "could not be asked: [Errno 111] Connection refused" in done.stdout
    assert "Is the server running there?" in done.stdout


def test_the_report_for_people_says_what_to_do(folder: Path) -> None:
    environment("    @property\n", "")(folder)
    done = validate(str(folder), "--no-live")
    assert (done.returncode, done.stderr) == (1, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    place = lines.index("state is a method.")
    assert lines[place - 1].startswith("error")
    assert lines[place + 1] == "To do: Put @property above `def state`."
    assert lines[-1].endswith("is not as it should be: 1 error(s), 0 warning(s)")


def test_given_actions_are_used_and_must_fit(folder: Path) -> None:
    code, report = report_on(str(folder), "--action", '{"number": 50}', "--no-live")
    assert (code, found_in(report)) == (0, [])
    code, report = report_on(str(folder), "--action", '{"number": 500}', "--no-live")
    ((stage, finding),) = found_in(report)
    assert (code, stage, finding["check"]) == (1, "contract", "the given actions fit")
    assert "less than or equal to 100" in finding["problem"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["echo", "--action", "number=7"], "Quote it: --action"),
        (["echo", "--action", "[1]"], "is no JSON object"),
        ([], "Missing argument"),
        (["chess"], "'chess' is neither a shipped environment"),
        (["./no-such-folder"], "`envhive init NAME` makes a folder"),
        (["no_such_module.game:Game", "--json"], "Go to the folder that it is in, or install it."),
    ],
)
def test_a_command_that_is_not_understood_is_said(arguments: list[str], said: str) -> None:
    done = validate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["chess", "./no-such-folder", "no_such_module:Game"])
def test_an_unknown_target_is_one_line(target: str) -> None:
    assert len(validate(target).stderr.strip().splitlines()) == 1


BOARD = """
from envhive import Action, Environment, Observation, State


class Move(Action):
    square: int


class Board(Observation):
    legal_actions: list[int] = []


class Game(Environment[Move, Board, State]):
    \"\"\"Nine squares, of which the middle ones come last.\"\"\"

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.free = []
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.free = [8, 6, 2, 5, 3, 1]
        self._state = State(episode_id=episode_id, step_count=0)
        return Board(legal_actions=list(self.free))

    def step(self, action, timeout_s=None, **kwargs):
        if action.square not in self.free:
            raise ValueError(f"{action.square} is not legal: {self.free} are")
        self.free.remove(action.square)
        self._state.step_count += 1
        return Board(legal_actions=list(self.free), reward=0.0, done=not self.free)

    @property
    def state(self):
        return self._state
"""


def test_a_game_is_played_with_legal_actions(tmp_path: Path) -> None:
    (tmp_path / "board.py").write_text(BOARD)
    command = [ENVHIVE, "validate", "board:Game", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=plain_environ(), capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    assert found_in(report) == []
    assert {"an episode runs", "it can be used over HTTP alone"} <= set(report["stages"]["live"]["passed"])
    command += ["--action", '{"square": 0}', "--no-live"]
    done = subprocess.run(command, cwd=tmp_path, env=plain_environ(), capture_output=True, text=True, timeout=120)
    assert "0 is not legal" in done.stdout  # what a person gives is taken as it is
