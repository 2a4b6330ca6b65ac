"""`envhive play`: step an environment by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from envhive.cli.asking import RunningServer
from envhive.cli.completion import complete_target
from envhive.cli.forms import LEFT, Question, questions_for
from envhive.errors import EnvHiveError, EnvironmentFailureError, RequestError

if TYPE_CHECKING:
    from envhive.client.sync import SyncEnvClient
    from envhive.types import StepResult

_HELP: Final = """\
  Enter, or step     asks for each field of the action, then does it
  {"field": ...}     does an action written as JSON; json asks for one
  reset [SEED]       begins another episode
  state              shows where the environment stands
  tools, call NAME   lists tools, calls one, where the environment has some
  help, quit         Ctrl-D and Ctrl-C quit, too"""


class _Quit(Exception):  # noqa: N818
    """The person wants to go."""


@click.command(
    epilog="\b\nExamples:\n"
    "  envhive play ./word-game\n"
    "  envhive play my_package.game:GameEnvironment --seed 7\n"
    "  envhive play http://localhost:8000\n"
    "  printf 'step\\n50\\nstate\\n' | envhive play ./word-game"
)
@click.argument("target", metavar="TARGET|URL", shell_complete=complete_target)
@click.option("--seed", type=int, help="Seed of the first episode.")
def play(target: str, seed: int | None) -> None:
    """Step an environment by hand, in the terminal.

    TARGET is whatever `envhive serve` takes; a server of it runs for as long as you play. The questions are made from
    the action's schema. Where a running server asks for a token, set ENVHIVE_TOKEN.
    """
    from envhive.bench.servers import signals_as_ctrl_c
    from envhive.client.client import GenericEnvClient  # late: --help need not wait for them
    from envhive.validation.serving import http_url, is_url, local_server

    with signals_as_ctrl_c(), nullcontext() if is_url(target) else local_server(target) as server:
        url = http_url(target) if server is None else server.url
        schema = RunningServer(url).ask("/schema")
        try:
            with GenericEnvClient(url, message_timeout_s=None).sync() as env:
                Table(env, schema["action"], input).play(seed)
        except EnvHiveError as error:
            raise click.ClickException(f"{error} ({url})") from None


class Table:
    """Where a person and an environment sit."""

    def __init__(
        self, env: SyncEnvClient[Any, Any, Any], action_schema: dict[str, Any], read: Callable[[str], str]
    ) -> None:
        from rich.console import Console

        self.env = env
        self.questions, self.settled = questions_for(action_schema)
        self.console = Console(soft_wrap=True, highlight=False)
        self.tools: dict[str, dict[str, Any]] = {}
        self._read = read
        self._steps = 0
        self._reward = 0.0

    def play(self, seed: int | None) -> None:
        """Until the person quits, or there is nothing more to read."""
        try:
            self._find_tools()
            self._reset(seed)
            self._say("Enter asks for an action; help tells the rest.")
            while True:
                self._do(self._ask("> ").strip())
        except (_Quit, KeyboardInterrupt):
            pass
        self._say(f"{self._steps} step(s), total reward {self._reward:g}")

    def _do(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        try:
            if word in ("quit", "exit"):
                raise _Quit
            if word == "help":
                self._say(_HELP)
            elif word == "reset":
                self._reset(_seed(rest) if rest else None)
            elif word == "state":
                self._show_fields(self.env.state())
            elif word == "tools":
                self._list_tools()
            elif word == "call" or word in self.tools:
                self._call(word if word != "call" else rest)
            elif word in ("", "step"):
                self._step(self._fill())
            elif word == "json":
                self._step(json.loads(self._ask("action (JSON object): ")))
            elif line.startswith("{"):
                self._step(json.loads(line))
            else:
                self._step(self._single(line))
        except ValueError as error:
            self._complain(str(error))
        except (RequestError, EnvironmentFailureError) as error:
            self._complain(str(error))
        except EnvHiveError as error:
            self._complain(f"{error} `reset` begins anew.")

    # Actions.

    def _single(self, line: str) -> dict[str, Any]:
        """A line that is no command is the value of the only field that is needed."""
        needed = [question for question in self.questions if question.required]
        if len(needed) != 1:
            raise ValueError(f"{line!r} is no command. Enter asks for an action; help tells the rest.")
        return {**self.settled, needed[0].name: needed[0].read(line)}

    def _fill(self) -> dict[str, Any]:
        if self.tools:
            name = self._ask(f"tool ({' | '.join(self.tools)}): ").strip()
            return self._tool_call(name)
        return {**self.settled, **self._answers(self.questions)}

    def _answers(self, questions: list[Question]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for question in questions:
            description = question.schema.get("description")
            if description:
                self.console.print(f"  {description}", style="dim", markup=False)
            while True:
                try:
                    value = question.read(self._ask(f"{question}: "))
                    break
                except ValueError as error:
                    self._complain(str(error))
            if value is not LEFT:
                found[question.name] = value
        return found

    def _step(self, action: Any) -> None:
        if not isinstance(action, dict):
            raise ValueError('An action is a JSON object: {"field": ...}')
        result = self.env.step(action)
        self._steps += 1
        self._reward += result.reward or 0.0
        self._show(result)

    def _reset(self, seed: int | None) -> None:
        self._show(self.env.reset(**({} if seed is None else {"seed": seed})))

    # Tools.

    def _find_tools(self) -> None:
        if self.questions or self.settled:
            return
        try:
            listed = self.env.step({"type": "list_tools"}).observation.get("tools") or []
        except (RequestError, EnvironmentFailureError):
            return  # its actions are no tools
        self.tools = {tool["name"]: tool for tool in listed}
        self._list_tools()

    def _list_tools(self) -> None:
        if not self.tools:
            raise ValueError("This environment has no tools.")
        for tool in self.tools.values():
            questions, _ = questions_for(tool["input_schema"])
            self._say(f"  {tool['name']}({', '.join(question.name for question in questions)})  {tool['description']}")

    def _call(self, text: str) -> None:
        name, _, arguments = text.partition(" ")
        self._step(self._tool_call(name, json.loads(arguments) if arguments.strip() else None))

    def _tool_call(self, name: str, arguments: Any = None) -> dict[str, Any]:
        if name not in self.tools:
            raise ValueError(f"There is no tool {name!r}; `tools` lists them.")
        if arguments is None:
            arguments = self._answers(questions_for(self.tools[name]["input_schema"])[0])
        return {"type": "call_tool", "tool_name": name, "arguments": arguments}

    # The terminal.

    def _ask(self, prompt: str) -> str:
        try:
            answer = self._read(prompt)
        except EOFError:
            self._say("")
            raise _Quit from None
        if not sys.stdin.isatty():
            self._say(answer)  # so that what a script typed stands in what it printed
        return answer

    def _show(self, result: StepResult[Any]) -> None:
        self._show_fields(_without_wrapping(result.observation))
        if result.reward is not None:
            self.console.print(f"  reward: {result.reward:g}", style="bold", markup=False)
        if result.done:
            self.console.print("  The episode is over: reset begins another.", style="bold green", markup=False)

    def _show_fields(self, fields: Any) -> None:
        for name, value in fields.items() if isinstance(fields, dict) else [("it", fields)]:
            if name == "metadata" and not value:
                continue
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            separator = "\n" if "\n" in text else " "  # a board keeps its columns
            self.console.print(f"  {name}:{separator}{text}", markup=False)

    def _complain(self, text: str) -> None:
        self.console.print(f"  {text}", style="red", markup=False)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"A seed is a whole number, not {text!r}: reset 7") from None


def _without_wrapping(observation: Any) -> Any:
    """Of what a tool gave, the value alone, or the error alone."""
    if not isinstance(observation, dict) or "tool_name" not in observation:
        return observation
    result, error = observation.get("result"), observation.get("error")
    if error is not None:
        return {"error": error.get("message", error) if isinstance(error, dict) else error}
    return {"result": result.get("data", result) if isinstance(result, dict) else result}
