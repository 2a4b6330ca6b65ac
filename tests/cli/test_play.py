"""`envhive play`: by a script, and by hand."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envhive.cli.forms import LEFT, questions_for
from envhive.scaffold.project import Kind, Project, write_project
from tests.support.processes import ENVHIVE, children_of, envhive_serve, plain_environ


def project(folder: Path, kind: Kind = "basic") -> str:
    write_project(folder / "game", Project.named("game", kind).files())
    return str(folder / "game")


def play(target: str, *lines: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    typed = "".join(f"{line}\n" for line in lines)
    return subprocess.run(
        [ENVHIVE, "play", target, *options],
        env=plain_environ(),
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_episode_is_played_by_a_script(tmp_path: Path) -> None:
    lines = ["step", "101", "x", "50", "", "10", "25", '{"number": 30}', "json", '{"number": 40}', "state", "quit"]
    done = play(project(tmp_path), *lines, options=("--seed", "7"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "number (integer, 1 to 100): 101" in done.stdout
    assert "number is out of range: integer, 1 to 100" in done.stdout
    assert "number is a number: integer, 1 to 100" in done.stdout
    assert "step_count: 5" in done.stdout
    assert done.stdout.count("reward: 0") == 5
    assert done.stdout.endswith("5 step(s), total reward 0\n")


def test_the_end_of_an_episode_is_said_and_another_begins(tmp_path: Path) -> None:
    secret = 42  # of this seed; the episode is won if it still is
    done = play(project(tmp_path), str(secret), "7", "reset 7", "50", "reset seven", options=("--seed", "7"))
    assert done.returncode == 0
    assert "reward: 1\n  The episode is over: reset begins another." in done.stdout
    assert "There is no episode to step in: reset first" in done.stdout
    assert "A seed is a whole number, not 'seven'" in done.stdout
    assert done.stdout.endswith("2 step(s), total reward 1\n")


def test_mistakes_are_told_and_the_game_goes_on(tmp_path: Path) -> None:
    lines = ['{"number": 500}', "{number}", "json", "[1]", "tools", "call weigh", "help", "50"]
    done = play(project(tmp_path), *lines)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Input should be less than or equal to 100" in done.stdout
    assert "Expecting property name" in done.stdout
    assert "An action is a JSON object" in done.stdout
    assert "This environment has no tools." in done.stdout
    assert "There is no tool 'weigh'" in done.stdout
    assert "begins another episode" in done.stdout
    assert done.stdout.endswith("1 step(s), total reward 0\n")


def test_tools_are_listed_and_called(tmp_path: Path) -> None:
    lines = [
        "weigh",
        "[0]",
        "[1]",
        'call weigh {"left": [0], "right": [2]}',
        "nonsense",
        "step",
        "answer",
        "x",
        "3",
        "state",
    ]
    done = play(project(tmp_path, "mcp"), *lines, options=("--seed", "1"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "weigh(left, right)  Put boxes on the two scales." in done.stdout
    assert "tool (answer | weigh): answer" in done.stdout
    assert "box is a number: integer" in done.stdout
    assert "'nonsense' is no command" in done.stdout
    assert "weighings: 2" in done.stdout
    assert "step_count: 3" in done.stdout


def test_a_running_server_can_be_played_with() -> None:
    with envhive_serve("echo") as server:
        done = play(server.url, "step", "hello", "state")
        assert (done.returncode, done.stderr) == (0, "")
        assert "echoed_message: hello" in done.stdout


@pytest.mark.parametrize(
    ("target", "said"),
    [("http://127.0.0.1:9", "could not be asked"), ("no-such-thing", "is neither a shipped environment")],
)
def test_what_cannot_be_played_is_said(target: str, said: str) -> None:
    done = play(target)
    assert (done.returncode != 0, "Traceback" in done.stderr) == (True, False)
    assert said in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_server(number: signal.Signals, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ENVHIVE, "play", project(tmp_path)],
        env=plain_environ(TERM="dumb"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.close(theirs)
    assert process.stdout is not None
    with process.stdout, os.fdopen(ours):
        for line in process.stdout:
            if line.startswith("Enter asks"):
                break
        children = children_of(process.pid)
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(timeout=30) == 0
    assert "0 step(s), total reward 0" in rest
    assert "Traceback" not in rest
    assert children
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


# The questions.


def read(schema: dict[str, Any], text: str, **whole: Any) -> Any:
    (question,) = questions_for({"properties": {"it": schema}, **whole})[0]
    return question.read(text)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "yes", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "number", "exclusiveMinimum": 0}, "0.5", 0.5),
        ({"enum": ["a", 2]}, "2", 2),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"a"', "a"),
        ({"type": "string", "default": "x"}, "", LEFT),
        ({"$ref": "#/$defs/Way"}, "north", "north"),
    ],
)
def test_an_answer_is_read_as_its_schema_says(schema: dict[str, Any], text: str, value: Any) -> None:
    assert read(schema, text, **{"$defs": {"Way": {"enum": ["north", "south"]}}}) == value


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        ({"type": "boolean"}, "maybe", "it is yes or no"),
        ({"type": "number", "exclusiveMinimum": 0}, "0", "it is out of range: number, from 0"),
        ({"enum": ["a", "b"]}, "c", "it is one of a | b"),
        ({"type": "array"}, "{}", "it is a JSON list"),
        ({"type": "object"}, "{", "it is not JSON"),
        ({"type": "string", "minLength": 2}, "a", "it has at least 2"),
        ({"type": "string", "maxLength": 2}, "abc", "it has at most 2"),
        ({"type": "integer"}, "", "it is needed: integer"),
    ],
)
def test_an_answer_that_does_not_fit_is_told_why(schema: dict[str, Any], text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("|", r"\|")):
        read(schema, text, required=["it"])


def test_fields_with_one_value_are_not_asked_for() -> None:
    schema = {"properties": {"type": {"const": "move"}, "metadata": {"type": "object"}, "by": {"type": "integer"}}}
    questions, settled = questions_for(schema)
    assert ([question.name for question in questions], settled) == (["by"], {"type": "move"})
