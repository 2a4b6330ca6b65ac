"""The tools of one environment, wherever they come from, and how they are called. Needs `envhive[mcp]`."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any, Final, TypeVar

from envhive.errors import ConfigurationError, EnvHiveError
from envhive.tool_results import Outcome, finished, plain, timed_out, unknown
from envhive.tools import MARK, RESERVED_TOOL_NAMES, Mark, ToolError, ToolErrorType, reserved_message
from envhive.types import ServerMode

try:
    from fastmcp import Context, FastMCP
    from fastmcp.exceptions import NotFoundError
    from fastmcp.exceptions import ValidationError as ArgumentError
    from fastmcp.server.dependencies import without_injected_parameters
    from fastmcp.server.middleware.dereference import DereferenceRefsMiddleware
    from fastmcp.tools import FunctionTool, ToolResult
    from fastmcp.utilities.types import get_cached_typeadapter
except ImportError as missing:
    raise ConfigurationError(
        f"Environments with tools need FastMCP, version 4 or newer ({missing}): pip install 'envhive[mcp]'"
    ) from missing
from pydantic import ValidationError

T = TypeVar("T")
Listener = Callable[[dict[str, Any]], None]
"""Told of what a running tool says: the `method` and `params` of a notification."""

TIMEOUT_S: Final = 30.0
"""How long a coroutine may take that was given no time. A plain function cannot be stopped: a server gives up on it."""
_AHEAD_S: Final = 0.2
_AHEAD: Final = 0.8
"""Of a time limit: a coroutine is told so many seconds before it, or at this share of it, if that is later."""

_env: ContextVar[Any] = ContextVar("envhive_tool_env")
_listener: ContextVar[Listener | None] = ContextVar("envhive_tool_listener", default=None)
_of_classes: dict[type, list[tuple[ServerMode | None, FunctionTool]]] = {}


class Toolbox:
    """The tools of one environment. All calls come from the thread, or the event loop, where its code runs."""

    def __init__(self, env: Any, server: FastMCP | None = None) -> None:
        self._env = env
        self._server = server
        self._mode = ServerMode.SIMULATION
        self._added: list[tuple[ServerMode | None, FunctionTool]] = []
        self._known: dict[str, FunctionTool] | None = None
        self._on_server: set[str] = set()
        self._runner: asyncio.Runner | None = None
        if server is not None:
            # On an event loop that does not stay: most environments need none later, and each would hold descriptors.
            _refuse_reserved(_run_once(_all_tools(server)))

    @property
    def mode(self) -> ServerMode:
        """Of the server: tools of the other mode are not there."""
        return self._mode

    @mode.setter
    def mode(self, mode: ServerMode) -> None:
        self._mode = mode
        self._known = None

    @property
    def server(self) -> FastMCP:
        if self._server is None:
            self._server = FastMCP(type(self._env).__name__)
        return self._server

    @property
    def instructions(self) -> str | None:
        return None if self._server is None else self._server.instructions

    def add(self, function: Callable[..., Any]) -> None:
        """Offer a function that is marked as a tool."""
        mode, made = _as_tool(function, getattr(function, MARK))
        self._added.append((mode, made))
        self._known = None
        if mode is None and self._server is not None:
            self._server.add_tool(made)  # for those who ask that server itself

    def new_client(self) -> Any:
        """A client of the FastMCP server in this process."""
        from fastmcp import Client  # late: few environments need one

        return Client(self.server)

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        listener = _listener.get()
        if listener is not None:
            params = {"progress": progress, "total": total, "message": message}
            given = {name: value for name, value in params.items() if value is not None}
            listener({"method": "notifications/progress", "params": given})

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    # Which there are.

    def tools(self) -> list[dict[str, Any]]:
        """All that are there in this mode, as the protocol describes them; what has no value is None."""
        return [_description(each) for each in self._find(self._of_server()).values()]

    async def tools_async(self) -> list[dict[str, Any]]:
        found = [] if self._server is None else [each async for each in _each_tool(self._server)]
        return [_description(each) for each in self._find(found).values()]

    def _of_server(self) -> list[FunctionTool]:
        return [] if self._server is None else self._run(_all_tools(self._server))

    def _find(self, of_server: list[FunctionTool]) -> dict[str, FunctionTool]:
        """Those of the FastMCP server, of marked methods, and those that were added; the last of a name wins."""
        found = {each.name: each for each in of_server if each.name not in RESERVED_TOOL_NAMES}
        self._on_server = set(found)
        for mode, each in (*_of_class(type(self._env)), *self._added):
            if mode is None or mode is self._mode:
                found[each.name] = each
                self._on_server.discard(each.name)
        self._known = found
        return found

    def callables(self) -> dict[str, Callable[..., Any]]:
        """The functions behind the tools of this mode, by the tools' names. Methods are bound to the environment."""
        found = self._find(self._of_server())
        methods = {id(each) for _, each in _of_class(type(self._env))}
        return {
            name: MethodType(inspect.unwrap(each.fn), self._env) if id(each) in methods else each.fn
            for name, each in found.items()
            if isinstance(each, FunctionTool)
        }

    # Calling one.

    def call(
        self, name: str, arguments: dict[str, Any], timeout_s: float | None = None, listener: Listener | None = None
    ) -> Outcome:
        """Call a tool on the thread of the session, which waits for it."""
        began = time.monotonic()
        try:
            found = (self._known or {}).get(name) or self._find(self._of_server()).get(name)
            with self._in_use(listener):
                if found is None:
                    return unknown(name)
                if self._is_simple(found):
                    outcome = finished(found, _call_plain(found, arguments))
                else:
                    outcome = self._run(self._call_found(found, arguments, timeout_s))
        except (Exception, SystemExit) as error:  # whatever a tool raises is an answer, not a failure of the server
            return _failure(name, error)
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            return timed_out(name, timeout_s)
        return outcome

    async def call_async(
        self, name: str, arguments: dict[str, Any], timeout_s: float | None = None, listener: Listener | None = None
    ) -> Outcome:
        """Call a tool on the event loop. Plain functions run on another thread, so that nobody else waits for them."""
        try:
            found = (self._known or {}).get(name)
            if found is None:
                await self.tools_async()
                found = (self._known or {}).get(name)
            if found is None:
                return unknown(name)
            with self._in_use(listener):
                if not self._is_simple(found):
                    return await self._call_found(found, arguments, timeout_s)
                began = time.monotonic()
                outcome = finished(found, await _on_another_thread(_call_plain, found, arguments))
        except (Exception, SystemExit) as error:  # whatever a tool raises is an answer, not a failure of the server
            return _failure(name, error)
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            return timed_out(name, timeout_s)
        return outcome

    async def _call_found(self, found: FunctionTool, arguments: dict[str, Any], timeout_s: float | None) -> Outcome:
        # A server gives the whole step as long, and ends a session whose thread it cannot stop: be first.
        limit = TIMEOUT_S if timeout_s is None else max(timeout_s - _AHEAD_S, timeout_s * _AHEAD)
        try:
            async with asyncio.timeout(limit) as scope:
                return finished(found, await self._run_tool(found, arguments))
        except TimeoutError as error:
            return timed_out(found.name, timeout_s or limit) if scope.expired() else _failure(found.name, error)

    async def _run_tool(self, found: FunctionTool, arguments: dict[str, Any]) -> ToolResult:
        if self._goes_through_middleware(found):
            return await self.server.call_tool(found.name, arguments)
        if isinstance(found, FunctionTool) and inspect.iscoroutinefunction(found.fn) and _is_called_as_is(found.fn):
            return found.convert_result(plain(await get_cached_typeadapter(found.fn).validate_python(arguments)))
        async with _SessionContext(self.server, str(id(self._env))):
            return await found.run(arguments)

    def _is_simple(self, found: Any) -> bool:
        """Whether a tool is a plain function that takes its arguments and nothing else: it needs no event loop."""
        if not isinstance(found, FunctionTool) or inspect.iscoroutinefunction(found.fn):
            return False
        return _is_called_as_is(found.fn) and not self._goes_through_middleware(found)

    def _goes_through_middleware(self, found: Any) -> bool:
        """Whether the FastMCP server wants to see the call; of marked methods it knows nothing."""
        return _has_middleware(self._server) and found.name in self._on_server

    @contextmanager
    def _in_use(self, listener: Listener | None) -> Iterator[None]:
        env, listening = _env.set(self._env), _listener.set(listener)
        try:
            yield
        finally:
            _env.reset(env)
            _listener.reset(listening)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on an event loop of this environment's own: the thread is its session's."""
        if _is_on_a_loop():
            return _run_once(coroutine)  # of somebody who calls the environment without a server
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine, context=contextvars.copy_context())

    # What else a FastMCP server may offer.

    def ask_server(self, what: str, *args: Any) -> Any:
        """A list of resources, say, as the protocol has it; raises `LookupError` for what is not there."""
        return self._run(_ask_server(self.server, what, *args))

    async def ask_server_async(self, what: str, *args: Any) -> Any:
        return await _ask_server(self.server, what, *args)


class _SessionContext(Context):
    """What a tool with a `ctx: Context` parameter gets: its progress and messages go to whoever called it."""

    def __init__(self, server: FastMCP, session_id: str) -> None:
        super().__init__(server)
        self._session_id = session_id

    @property
    def session_id(self) -> str:
        return self._session_id

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        _env.get()._toolbox.report_progress(progress, total, message)

    async def log(
        self, message: str, level: Any = None, logger_name: str | None = None, extra: Any = None, **kwargs: Any
    ) -> None:
        listener = _listener.get()
        if listener is not None:
            params = {"level": level or "info", "logger": logger_name, "data": {"msg": message, "extra": extra}}
            listener({"method": "notifications/message", "params": params})


def get_server_tools(mcp_server: Any) -> dict[str, Any]:
    """The tools of a FastMCP server, by name."""
    return {each.name: each for each in _run_once(_all_tools(mcp_server))}


def toolbox_of(env: Any) -> Toolbox | None:
    """The tools of an environment; None if it has none."""
    found = getattr(env, "_toolbox", None)
    return found if isinstance(found, Toolbox) else None


# Tools of methods: made once for a class, so that a session costs nothing. Which environment is meant, the call says.


def _of_class(cls: type) -> list[tuple[ServerMode | None, FunctionTool]]:
    if cls not in _of_classes:
        marked = [
            (function, mark)
            for function in (inspect.getattr_static(cls, name, None) for name in dir(cls))
            if isinstance(mark := getattr(function, MARK, None), Mark) and inspect.isfunction(function)
        ]
        _of_classes[cls] = [_as_tool(_unbound(function), mark) for function, mark in marked]
    return _of_classes[cls]


def _as_tool(function: Callable[..., Any], mark: Mark) -> tuple[ServerMode | None, FunctionTool]:
    made = FunctionTool.from_function(
        function, name=mark.name or function.__name__, description=mark.description or inspect.getdoc(function)
    )
    return mark.mode, made


def _unbound(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a function without `self`, which is the environment that the call is for."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def function(*args: Any, **kwargs: Any) -> Any:
            return await method(_env.get(), *args, **kwargs)

    else:

        @functools.wraps(method)
        def function(*args: Any, **kwargs: Any) -> Any:
            return method(_env.get(), *args, **kwargs)

    signature = inspect.signature(method)
    first, *others = signature.parameters.values()
    function.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    annotations = inspect.get_annotations(method)
    function.__annotations__ = {name: hint for name, hint in annotations.items() if name != first.name}
    return function


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, wherever this is called: on another thread if an event loop runs on this one."""
    if not _is_on_a_loop():
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()


# What FastMCP makes of tools, and calls them with.


async def _all_tools(server: FastMCP) -> list[Any]:
    return [each async for each in _each_tool(server)]


async def _each_tool(server: FastMCP) -> Any:
    for each in await server.list_tools():
        if isinstance(each, FunctionTool):
            each.run_in_thread = False  # it runs where the environment's code runs
        yield each


def _refuse_reserved(tools: list[Any]) -> None:
    taken = [each.name for each in tools if each.name in RESERVED_TOOL_NAMES]
    if taken:
        raise ValueError(reserved_message(taken))


def _has_middleware(server: FastMCP | None) -> bool:
    return server is not None and any(not isinstance(each, DereferenceRefsMiddleware) for each in server.middleware)


@functools.lru_cache(maxsize=4096)
def _is_called_as_is(function: Callable[..., Any]) -> bool:
    """Whether FastMCP gives a function nothing but its arguments, and takes its result for what it is."""
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return not generates and without_injected_parameters(function) is function


def _call_plain(found: FunctionTool, arguments: dict[str, Any]) -> ToolResult:
    return found.convert_result(plain(get_cached_typeadapter(found.fn).validate_python(arguments)))


async def _on_another_thread(function: Callable[..., T], *args: Any) -> T:
    """Like `asyncio.to_thread`, except that it ends when the function does: nobody else may enter the environment."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # seen, so that nobody complains of it
        raise


def _failure(name: str, error: Exception | SystemExit) -> ToolError:
    if isinstance(error, NotFoundError):
        return ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message=str(error))
    if isinstance(error, ArgumentError) or (isinstance(error, ValidationError) and error.title.startswith("call[")):
        return ToolError(error_type=ToolErrorType.INVALID_ARGS, message=str(error))
    if isinstance(error, EnvHiveError):
        return ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=str(error))
    said = f"SystemExit: {error}" if isinstance(error, SystemExit) else str(error) or type(error).__name__
    message = said if said.startswith("Error calling tool") else f"Error calling tool {name!r}: {said}"
    return ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=message)


_TOOL_FIELDS: Final = ("title", "inputSchema", "outputSchema", "icons", "annotations", "execution")


def _description(found: Any) -> dict[str, Any]:
    described = found.to_mcp_tool(title=found.title).model_dump(mode="json", by_alias=True, exclude_none=True)
    fields = {name: described.get(name) for name in _TOOL_FIELDS}
    return {"name": found.name, "description": found.description, **fields, "meta": described.get("_meta")}


async def _ask_server(server: FastMCP, what: str, *args: Any) -> Any:
    try:
        async with Context(server):
            return await _SERVER_METHODS[what](server, *args)
    except NotFoundError as error:
        raise LookupError(str(error)) from error


async def _list_resources(server: FastMCP) -> list[dict[str, Any]]:
    return [_dump(each.to_mcp_resource()) for each in await server.list_resources()]


async def _list_templates(server: FastMCP) -> list[dict[str, Any]]:
    return [_dump(each.to_mcp_template()) for each in await server.list_resource_templates()]


async def _read_resource(server: FastMCP, uri: str) -> dict[str, Any]:
    dumped = _dump((await server.read_resource(uri)).to_mcp_result(uri))
    return {name: dumped[name] for name in ("contents", "_meta") if name in dumped}


async def _list_prompts(server: FastMCP) -> list[dict[str, Any]]:
    return [_dump(each.to_mcp_prompt()) for each in await server.list_prompts()]


async def _get_prompt(server: FastMCP, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    dumped = _dump((await server.render_prompt(name, arguments)).to_mcp_prompt_result())
    return {name: dumped[name] for name in ("description", "messages", "_meta") if name in dumped}


def _dump(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


_SERVER_METHODS: Final[dict[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
    "resources": _list_resources,
    "templates": _list_templates,
    "resource": _read_resource,
    "prompts": _list_prompts,
    "prompt": _get_prompt,
}
