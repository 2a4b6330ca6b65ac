"""Environments with tools, without a server."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError as FastMcpToolError
from pydantic import BaseModel, Field

from envhive import Action, MCPEnvironment, Observation, ServerMode, State, check_environment, tool
from envhive.errors import InvalidMessageError
from envhive.mcp_environment import get_server_tools
from envhive.toolbox import Toolbox, toolbox_of
from envhive.tools import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    ToolError,
    ToolErrorType,
)

_made: list[MCPEnvironment] = []


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


class Nail(BaseModel):
    """Known only to this module, whose annotations are texts."""

    length: int


class Bench(MCPEnvironment):
    """A class with methods as tools."""

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True

    def __init__(self, server: Any = None) -> None:
        super().__init__(server)
        self.hits = 0
        _made.append(self)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.hits = 0
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.hits)

    @tool
    def hit(self, nail: Nail, times: Annotated[int, Field(gt=0)] = 1) -> int:
        """Hit a nail."""
        self.hits += times
        return self.hits * nail.length

    @tool
    async def think(self, seconds: float = 0.0) -> str:
        """Take some time."""
        await asyncio.sleep(seconds)
        return "thought"

    @tool(name="look_around", description="See what there is.")
    def look(self) -> dict[str, int]:
        return {"hits": self.hits, "thread": threading.get_ident()}

    @tool
    def fail(self, kind: str = "runtime") -> int:
        """Fail in some way."""
        if kind == "validation":
            Nail.model_validate({"length": "long"})  # of the tool's own: not its caller's arguments
        if kind == "timeout":
            raise TimeoutError("a network of its own")
        if kind == "silent":
            raise KeyError
        if kind == "exit":
            sys.exit(3)
        raise RuntimeError("the bench broke")

    @tool
    def sleep(self, seconds: float) -> str:
        """Hold the thread."""
        time.sleep(seconds)
        return "slept"

    @tool(mode="simulation")
    def measure(self) -> str:
        """Of a model."""
        return "simulated"


class Scanning(Bench):
    @tool
    def scan(self, how: str) -> Any:
        """Arrays, alone and inside."""
        rows = np.arange(1200)
        return {"alone": rows, "inside": {"rows": [rows], "top": rows[-1]}, "pair": (rows[0], "left")}[how]

    @tool
    async def scan_later(self) -> Any:
        """The same, by and by."""
        return np.eye(2)


def call(env: Any, name: str, timeout_s: float | None = None, /, **arguments: Any) -> Any:
    observation = env.step(CallToolAction(tool_name=name, arguments=arguments), timeout_s=timeout_s)
    if asyncio.iscoroutine(observation):
        observation = asyncio.run(observation)
    assert isinstance(observation, CallToolObservation)
    assert observation.tool_name == name
    return observation


def data(env: Any, name: str, /, **arguments: Any) -> Any:
    observation = call(env, name, **arguments)
    assert observation.error is None, observation.error
    return observation.result["data"]


def error(env: Any, name: str, timeout_s: float | None = None, /, **arguments: Any) -> ToolError:
    observation = call(env, name, timeout_s, **arguments)
    assert observation.result is None
    assert observation.error is not None
    found: ToolError = observation.error
    return found


def names(env: MCPEnvironment) -> set[str]:
    observation = env.step(ListToolsAction())
    assert isinstance(observation, ListToolsObservation)
    return {each.name for each in observation.tools}


# Methods.


def test_methods_are_described_by_what_is_written_about_them() -> None:
    tools = {each.name: each for each in Bench().step(ListToolsAction()).tools}
    assert set(tools) == {"fail", "hit", "look_around", "measure", "sleep", "think"}
    assert tools["hit"].description == "Hit a nail."
    assert tools["look_around"].description == "See what there is."
    schema = tools["hit"].input_schema
    assert (schema["required"], set(schema["properties"])) == (["nail"], {"nail", "times"})
    assert schema["properties"]["times"]["exclusiveMinimum"] == 0
    assert "self" not in str(schema)


def test_each_environment_has_its_own_state_in_its_tools() -> None:
    one, other = Bench(), Bench()
    assert [data(one, "hit", nail={"length": 2}, times=n) for n in (1, 2)] == [2, 6]
    assert data(other, "look_around")["hits"] == 0


def test_plain_tools_and_coroutines_run_on_the_thread_that_steps() -> None:
    env = Bench()
    assert data(env, "look_around")["thread"] == threading.get_ident()
    assert data(env, "think") == "thought"


def test_tools_are_inherited_and_overridden() -> None:
    class Better(Bench):
        @tool
        def hit(self, nail: Nail) -> int:  # type: ignore[override]
            """Hit harder."""
            return 10 * nail.length

        @tool
        def polish(self) -> str:
            return "shiny"

    env = Better()
    assert names(env) == names(Bench()) | {"polish"}
    assert data(env, "hit", nail={"length": 2}) == 20
    assert data(Bench(), "hit", nail={"length": 2}) == 2


# A FastMCP server.


def with_server() -> Bench:
    server: Any = FastMCP("bench")

    @server.tool
    def plain(text: str) -> str:
        return f"{text} {threading.get_ident()}"

    @server.tool
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    @server.tool
    async def told(ctx: Context, text: str) -> str:
        await ctx.report_progress(1, 3, text)
        await ctx.warning("careful")
        return ctx.session_id

    @server.tool
    def refuse() -> str:
        raise FastMcpToolError("not today")

    return Bench(server)


def test_tools_of_a_server_are_offered_beside_methods() -> None:
    env = with_server()
    assert names(env) == names(Bench()) | {"plain", "later", "told", "refuse"}
    assert data(env, "plain", text="on") == f"on {threading.get_ident()}"
    assert data(env, "later", text="on") == "on"
    assert isinstance(data(env, "told", text="on"), str)
    assert error(env, "refuse").message.endswith("not today")


def test_a_tool_that_is_registered_later_is_there() -> None:
    env = Bench()
    assert error(env, "late").error_type is ToolErrorType.TOOL_NOT_FOUND

    @env.mcp_server.tool
    def late() -> int:
        return 5

    assert data(env, "late") == 5
    assert "late" in names(env)


def test_what_a_tool_says_goes_to_whoever_called_it() -> None:
    env = with_server()
    heard: list[dict[str, Any]] = []
    box = toolbox_of(env)
    assert box is not None
    box.call("told", {"text": "half"}, listener=heard.append)
    assert heard[0] == {
        "method": "notifications/progress",
        "params": {"progress": 1, "total": 3, "message": "half"},
    }
    assert (heard[1]["method"], heard[1]["params"]["level"]) == ("notifications/message", "warning")
    data(env, "told", text="to nobody")
    assert len(heard) == 2


def test_functions_can_be_added_for_one_mode() -> None:
    env = Bench()

    @env.tool(mode="production")
    def measure() -> str:
        return "real"

    assert data(env, "measure") == "simulated"
    env.server_mode = ServerMode.PRODUCTION
    assert data(env, "measure") == "real"
    env.server_mode = ServerMode.SIMULATION
    assert data(env, "measure") == "simulated"


# Names that are not for agents.


@pytest.mark.parametrize("name", ["reset", "step", "state", "close"])
def test_reserved_names_are_refused_wherever_they_come_from(name: str) -> None:
    with pytest.raises(ValueError, match=name):

        @tool(name=name)
        def method(self: Any) -> None: ...

    server: Any = FastMCP("bad")
    server.tool(name=name)(lambda: None)
    with pytest.raises(ValueError, match=name):
        Bench(server)
    env = Bench()
    env.mcp_server.tool(name=name)(lambda: None)  # too late to refuse it, so it is not there
    assert name not in names(env)
    assert error(env, name).error_type is ToolErrorType.TOOL_NOT_FOUND


# What goes wrong.


def test_an_unknown_tool_is_told_apart() -> None:
    assert error(Bench(), "fly") == ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message="Unknown tool: 'fly'")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"nail": 3},
        {"nail": {"length": "long"}},
        {"nail": {"length": 1}, "times": 0},
        {"nail": {"length": 1}, "x": 1},
    ],
)
def test_arguments_that_a_tool_does_not_take_are_told_apart(arguments: dict[str, Any]) -> None:
    env = Bench()
    assert error(env, "hit", **arguments).error_type is ToolErrorType.INVALID_ARGS
    assert env.hits == 0


def test_results_can_be_read_as_those_of_fastmcps_client() -> None:
    result = call(Bench(), "look_around").result
    assert result.data.hits == result.data["hits"] == result["data"]["hits"] == 0
    assert result.structured_content == result.data
    assert json.loads(result.content[0].text) == result.data
    assert (result.is_error, result.meta, hasattr(result, "reward")) == (False, None, False)
    assert (
        json.loads(CallToolObservation(tool_name="x", result=result).model_dump_json())["result"]["data"]["hits"] == 0
    )


def test_arrays_are_whole() -> None:
    env, rows = Scanning(), list(range(1200))
    assert json.loads(call(env, "scan", how="alone").result.content[0].text) == rows
    assert json.loads(call(env, "scan", how="inside").result.content[0].text) == {"rows": [rows], "top": 1199}
    assert json.loads(call(env, "scan", how="pair").result.content[0].text) == [0, "left"]
    assert json.loads(call(env, "scan_later").result.content[0].text) == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("kind", ["*args", "**kwargs"])
def test_a_tool_whose_arguments_nobody_could_know_is_refused_by_name(kind: str) -> None:
    def build(self: Any, *args: int) -> int:
        return len(args)

    def paint(self: Any, **kwargs: int) -> int:
        return len(kwargs)

    with pytest.raises(TypeError, match=r"The tool '(build|paint)' takes \*+(args|kwargs)"):
        tool(build if kind == "*args" else paint)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("runtime", "the bench broke"),
        ("validation", "Nail"),
        ("timeout", "a network of its own"),
        ("silent", "KeyError"),
        ("exit", "SystemExit: 3"),
    ],
)
def test_whatever_a_tool_raises_is_its_own_failure(kind: str, text: str) -> None:
    failure = error(Bench(), "fail", kind=kind)
    assert failure.error_type is ToolErrorType.EXECUTION_ERROR
    assert text in failure.message
    assert "Traceback" not in failure.message


def test_a_coroutine_is_stopped_when_its_time_is_up() -> None:
    began = time.monotonic()
    failure = error(Bench(), "think", 0.05, seconds=30.0)
    assert failure.error_type is ToolErrorType.TIMEOUT
    assert time.monotonic() - began < 10


def test_a_plain_tool_that_took_too_long_timed_out() -> None:
    assert error(Bench(), "sleep", 0.01, seconds=0.05).error_type is ToolErrorType.TIMEOUT
    assert call(Bench(), "sleep", 30.0, seconds=0.0).error is None


def test_other_actions_are_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidMessageError, match="call_tool"):
        Bench().step(Action())


# Kinds of environments.


class Judged(Bench):
    """Overrides `step` to give rewards, and takes actions of its own."""

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Any:
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        observation.reward = float(self.hits)
        observation.done = self.hits >= 3
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"did": type(action).__name__})


def test_rewards_are_given_by_overriding_step() -> None:
    env = Judged()
    first = call(env, "hit", nail={"length": 1})
    assert (first.reward, first.done) == (1.0, False)
    last = call(env, "hit", nail={"length": 1}, times=2)
    assert (last.reward, last.done, last.result["data"]) == (3.0, True, 3)
    assert env.step(Action()).metadata == {"did": "Action"}


class Coroutines(Bench):
    """An environment whose own code is coroutines."""

    async def reset(  # type: ignore[override]
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> Observation:
        return Bench.reset(self, seed, episode_id)

    async def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Any:
        observation = await self.step_async(action, timeout_s=timeout_s, **kwargs)
        observation.reward = float(self.hits)
        return observation


def test_an_environment_of_coroutines_does_the_same_without_holding_the_loop() -> None:
    env = Coroutines()
    observation = call(env, "hit", nail={"length": 4})
    assert (observation.result["data"], observation.reward) == (4, 1.0)
    assert call(env, "think").result["data"] == "thought"
    assert error(env, "think", 0.05, seconds=30.0).error_type is ToolErrorType.TIMEOUT
    assert error(env, "fail").error_type is ToolErrorType.EXECUTION_ERROR
    assert error(env, "hit").error_type is ToolErrorType.INVALID_ARGS
    assert error(env, "fly").error_type is ToolErrorType.TOOL_NOT_FOUND
    assert data(env, "look_around")["thread"] != threading.get_ident()  # a plain tool might wait
    listed = asyncio.run(env.step(ListToolsAction()))
    assert {each.name for each in listed.tools} == names(Bench())


def test_a_plain_tool_of_an_environment_of_coroutines_times_out_too() -> None:
    began = time.monotonic()
    assert error(Coroutines(), "sleep", 0.05, seconds=0.2).error_type is ToolErrorType.TIMEOUT
    assert time.monotonic() - began < 10


def test_a_plain_tool_that_is_taken_back_keeps_others_out_until_it_has_ended() -> None:
    env = Coroutines()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @env.tool()
    def hold() -> None:
        begun.set()
        assert go_on.wait(20)
        ended.set()

    async def scenario() -> None:
        call = asyncio.ensure_future(env.step(CallToolAction(tool_name="hold")))
        assert await asyncio.to_thread(begun.wait, 20)
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended.is_set()

    asyncio.run(scenario())


def test_such_environments_keep_the_contract() -> None:
    report = check_environment(Bench, action=CallToolAction(tool_name="look_around"))
    assert "keeps the contract" in str(report)


def test_closing_twice_is_fine_and_tools_still_answer_after_it() -> None:
    env = Bench()
    data(env, "think")
    env.close()
    env.close()
    assert toolbox_of(env) is not None
    assert toolbox_of(object()) is None


def test_middleware_of_the_server_is_not_passed_by() -> None:
    from fastmcp.server.middleware import Middleware

    seen: list[str] = []

    class Noting(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            seen.append(context.message.name)
            return await call_next(context)

    env = with_server()
    env.mcp_server.add_middleware(Noting())
    assert data(env, "later", text="on") == "on"
    assert seen == ["later"]
    assert error(env, "refuse").message.endswith("not today")
    assert data(env, "hit", nail={"length": 2}) == 2


def test_a_toolbox_without_a_server_makes_one_when_asked() -> None:
    box = Toolbox(Bench())
    assert box.instructions is None
    assert box.server.name == "Bench"
    assert box.ask_server("resources") == []
    with pytest.raises(LookupError):
        box.ask_server("prompt", "nothing", {})
    box.close()


def test_an_environment_can_be_made_and_called_where_an_event_loop_runs() -> None:
    async def scenario() -> None:
        server = FastMCP("loops")

        @server.tool
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * number

        class Looped(MCPEnvironment):
            def reset(self, **kwargs: Any) -> Observation:
                return Observation()

            @property
            def state(self) -> State:
                return State()

        env = Looped(server)
        observation = env.step(CallToolAction(tool_name="double", arguments={"number": 4}))
        assert observation.result["data"] == 8

    asyncio.run(scenario())


# Tools as functions, and the server of the environment's own.


class Workshop(MCPEnvironment):
    """Tools of all sorts: a marked method, the server's, and functions that were added."""

    def __init__(self) -> None:
        server = FastMCP("workshop")
        super().__init__(server)
        self.hits = 0
        _made.append(self)

        @server.tool
        def add(a: int, b: int) -> int:
            return a + b

        @self.tool()
        def double(a: int) -> int:
            return 2 * a

        @self.tool(mode="simulation")
        def who() -> str:
            return "simulated"

        @self.tool(mode="production")
        def only_real() -> str:
            return "real"

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @tool
    def hit(self, times: int = 1) -> int:
        self.hits += times
        return self.hits

    @property
    def state(self) -> State:
        return State(step_count=self.hits)


def test_tools_can_be_had_as_functions() -> None:
    env = Workshop()
    tools = env.get_callables()
    assert set(tools) == {"add", "double", "who", "hit"}
    assert (tools["add"](2, 3), tools["double"](4), tools["who"](), tools["hit"](times=5)) == (5, 8, "simulated", 5)
    assert env.hits == 5
    env.server_mode = ServerMode.PRODUCTION
    assert set(env.get_callables()) == {"add", "double", "only_real", "hit"}


def test_two_environments_have_functions_of_their_own() -> None:
    one, other = Workshop(), Workshop()
    one.get_callables()["hit"]()
    assert (one.hits, other.hits) == (1, 0)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("result = add(2, 3)", {"result": 5}),
        ("hit()\nresult = hit(times=3)", {"result": 4}),
        ("def twice(n):\n    return double(n)\nresult = [twice(n) for n in range(3)]", {"result": [0, 2, 4]}),
        ("x = 1", {"result": None}),
        ("result = nobody()", {"error": "name 'nobody' is not defined"}),
        ("raise ValueError('enough')", {"error": "enough"}),
        ("raise SystemExit('bye')", {"error": "bye"}),
        ("def", {"error": "Syntax error: invalid syntax (<string>, line 1)"}),
    ],
)
def test_code_calls_tools(code: str, outcome: dict[str, Any]) -> None:
    env = Workshop()
    assert env.supports_code_mode
    observation = env.execute_code(code)
    assert (observation.metadata, observation.reward, observation.done) == (outcome, 0.0, False)


def test_a_tool_that_is_called_result_is_not_the_result() -> None:
    env = Workshop()
    env.tool()(_named("result", lambda: 7))
    assert env.execute_code("x = 1").metadata == {"result": None}
    assert env.execute_code("result = result()").metadata == {"result": 7}


def _named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


def test_the_server_of_an_environment_can_be_asked_as_agents_do() -> None:
    env = Workshop()

    async def ask() -> tuple[set[str], Any]:
        async with env.mcp_session() as client, env.mcp_session() as same:
            assert same is client is env.mcp_client
            return {each.name for each in await client.list_tools()}, (
                await client.call_tool("add", {"a": 1, "b": 2})
            ).data

    assert asyncio.run(ask()) == ({"add", "double"}, 3)
    env.close()
    assert env.mcp_client is None
    with pytest.raises(RuntimeError, match="This Workshop is closed"):
        asyncio.run(ask())


def test_the_tools_of_a_server_can_be_had_by_name() -> None:
    server = FastMCP("two")
    server.tool(_named("first", lambda: 1))
    assert list(get_server_tools(server)) == ["first"]
    assert get_server_tools(FastMCP("none")) == {}


def test_an_added_tool_is_still_called_once_when_the_server_has_it_too() -> None:
    env = Workshop()
    listed = env.step(ListToolsAction())
    assert sorted(each.name for each in listed.tools) == ["add", "double", "hit", "who"]
    assert env.step(CallToolAction(tool_name="double", arguments={"a": 4})).result["data"] == 8


def test_pages_are_offered_nothing_unless_an_environment_says_so() -> None:
    env = Workshop()
    assert (env.render_web({}), env.web_actions({})) == (None, [])
