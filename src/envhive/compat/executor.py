"""OpenEnv's `PyExecutor`: runs Python that an agent wrote, and tells what came of it.

The code runs in this process, as ordinary Python. Imports and built-in functions are those that OpenEnv's executor
allows, so that the same code succeeds and fails; that keeps an agent on its task, and nobody from breaking out.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import math
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from envhive.compat.messages import CodeExecResult

_MODULES: Final = frozenset(
    (
        *("collections", "datetime", "itertools", "math", "queue", "random", "re", "stat", "statistics", "time"),
        "unicodedata",
    )
)
_WITHHELD: Final = frozenset(
    (
        *("__import__", "breakpoint", "compile", "eval", "exec", "exit", "globals", "help", "input", "locals"),
        *("open", "quit", "vars"),
    )
)
_MATHS: Final = (
    *("acos", "asin", "atan", "atan2", "ceil", "cos", "degrees", "exp", "floor", "log", "radians", "sin", "sqrt"),
    "tan",
)
_VALUE: Final = "__value__"


class PyExecutor:
    """Runs pieces of Python, one after the other, in one namespace.

    Args:
        additional_imports: Modules that the code may import beside harmless ones; `*` for all.

    Example:
        >>> PyExecutor().run("print('so'); 6 * 7")
        CodeExecResult(stdout='so\\n\\n42', stderr='', exit_code=0)
    """

    def __init__(self, additional_imports: list[str] | None = None) -> None:
        self._importable = _MODULES | {name.removesuffix(".*") for name in additional_imports or ()}
        self._printed = io.StringIO()
        self._runs = 0
        allowed = {name: value for name, value in vars(builtins).items() if name not in _WITHHELD}
        self._namespace: dict[str, Any] = {
            "__name__": "__main__",
            "__builtins__": {**allowed, "__import__": self._import, "print": self._print},
            **{name: getattr(math, name) for name in _MATHS},
            "format_exc": traceback.format_exc,
            "safe_json_dumps": _as_json,
        }

    def run(self, code: str) -> CodeExecResult:
        """Run code. What it prints is `stdout`, with the value of its last line; what it raises is `stderr`."""
        self._runs += 1
        self._printed = io.StringIO()
        self._namespace[_VALUE] = None
        name = f"<run {self._runs}>"
        try:
            exec(compile(_keeping_value(ast.parse(code, name)), name, "exec"), self._namespace)
            value = self._namespace.pop(_VALUE)
            shown = [] if value is None else [_shown(value)]
        except SystemExit as error:
            code_given = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
            said = error.code if isinstance(error.code, str) else ""
            return CodeExecResult(stdout=self._printed.getvalue(), stderr=said, exit_code=code_given)
        except Exception as error:  # an agent's code may raise anything, and is told of it
            said = _told(error, name, code.splitlines())
            return CodeExecResult(stdout=self._printed.getvalue(), stderr=said, exit_code=1)
        printed = self._printed.getvalue()
        return CodeExecResult(stdout="\n".join([*([printed] if printed else []), *shown]), stderr="", exit_code=0)

    def _print(self, *values: Any, sep: str | None = " ", end: str | None = "\n", **others: Any) -> None:
        # Not by way of sys.stdout, which sessions on other threads share.
        print(*values, sep=sep, end=end, file=self._printed)

    def _import(self, name: str, *where: Any, **kwargs: Any) -> ModuleType:
        parts = name.split(".")
        parents = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        if "*" not in self._importable and not parents & self._importable:
            raise ImportError(f"{name} may not be imported here; these may: {', '.join(sorted(self._importable))}")
        return __import__(name, *where, **kwargs)


def _keeping_value(tree: ast.Module) -> ast.Module:
    """The same program, which also notes what its last line comes to: a value, or what it assigns."""
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body[-1] = _noting(last.value, last)
    elif isinstance(last, (ast.Assign, ast.AnnAssign)) and last.value is not None:
        tree.body.insert(-1, _noting(last.value, last))
        last.value = ast.Name(_VALUE, ast.Load())
    elif isinstance(last, ast.AugAssign) and isinstance(last.target, ast.Name):
        tree.body.append(_noting(ast.Name(last.target.id, ast.Load()), last))
    elif isinstance(last, (ast.If, ast.For)):
        for branch in (last.body, last.orelse):
            _keeping_value(ast.Module(branch, []))  # the list is the branch's own, and is changed in place
    return ast.fix_missing_locations(tree)


def _noting(value: ast.expr, near: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.Name(_VALUE, ast.Store())], value), near)


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _as_json(value: Any) -> str:
    return json.dumps(value, default=repr)


def _told(error: Exception, name: str, lines: Sequence[str]) -> str:
    """A traceback with the code's own lines, and without ours."""
    frames = [
        (frame.filename, frame.lineno, frame.name, lines[frame.lineno - 1] if frame.filename == name else frame.line)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and frame.lineno is not None
    ]
    head = "Traceback (most recent call last):\n" if frames else ""
    return "".join([head, *traceback.format_list(frames), *traceback.format_exception_only(error)])
