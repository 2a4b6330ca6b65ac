"""The second stage: the environment's own code, loaded and checked in a process of its own.

That code may block for ever, end its process, or print whatever it likes. So the child tells what it is about to do,
and what it found, through a pipe; the parent waits no longer than a limit for each word.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from envhive.checks import Broken, Finding, NotChecked, Report, check_environment
from envhive.errors import EnvHiveError

_LOADING: Final = "it can be loaded"
_MADE: Final = "instances can be made"
_CONCURRENT: Final = "many sessions may run at once"
_TAIL: Final = 300


def check_contract(target: str, actions: list[dict[str, Any]], limit_s: float, report: Report) -> bool:
    """Load a target and check its contract. Returns whether a server of it is worth trying."""
    doing, ended = _LOADING, False
    with tempfile.TemporaryFile() as log, _child(target, actions, log) as (process, reading):
        for word in _words(process, reading, limit_s):
            if "doing" in word:
                doing = word["doing"]
            elif "passed" in word:
                report.passed.append(word["passed"])
            elif "finding" in word:
                report.findings.append(Finding(**word["finding"]))
            elif "skipped" in word:
                report.skipped.append(word["skipped"])
            else:
                ended = True
        if not ended:
            with report.checking(doing):
                _tell_end(process, log, limit_s)
    return ended and _LOADING in report.passed and not any(each.check == _MADE for each in report.findings)


def _tell_end(process: subprocess.Popen[bytes], log: IO[bytes], limit_s: float) -> None:
    if process.poll() is None:
        raise Broken(
            f"it did not come to an end within {limit_s:g} s.",
            "Look for what it waits for: a server, a download, input, a lock. If it needs that long, raise --timeout.",
        )
    log.seek(0)
    said = " ".join(log.read().decode(errors="replace").split())[-_TAIL:]
    code = process.returncode
    how = f"code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    raise Broken(
        f"the environment ended its whole process ({how}){': ' + said if said else ''}.",
        'Raise an exception instead of calling exit; for native code that may crash, set ISOLATION = "process".',
    )


@contextlib.contextmanager
def _child(target: str, actions: list[dict[str, Any]], log: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    reading, writing = os.pipe()
    process = None
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(writing), json.dumps(actions), target],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        yield process, reading
    finally:
        if process is None:
            os.close(writing)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(reading)


def _words(process: subprocess.Popen[bytes], reading: int, limit_s: float) -> Iterator[dict[str, Any]]:
    """What the child says, until it ends or has been silent for too long."""
    buffer = b""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        # Looked at before the pipe: what the child forked may hold the pipe open after its end.
        over = process.poll() is not None
        ready, _, _ = select.select([reading], [], [], 0.0 if over else 0.1)
        if not ready:
            if over:
                return
            continue
        more = os.read(reading, 65536)
        if not more:
            process.wait()
            return
        buffer += more
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            deadline = time.monotonic() + limit_s
            yield json.loads(line)


# In the child.


class _Teller:
    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def say(self, **word: Any) -> None:
        os.write(self._descriptor, json.dumps(word).encode() + b"\n")

    def tell(self, report: Report) -> None:
        for title in report.passed:
            self.say(passed=title)
        for finding in report.findings:
            self.say(finding=asdict(finding))
        for note in report.skipped:
            self.say(skipped=note)


def _probe(target: str, actions: list[dict[str, Any]], teller: _Teller) -> None:
    teller.say(doing=_LOADING)
    loaded = Report(target)
    blueprint: Any = None
    with loaded.checking(_LOADING):
        blueprint = _load(target)
    teller.tell(loaded)
    if not loaded.passed:
        return
    if blueprint is None:
        teller.say(skipped=f"the contract: {target} is an app that does not say which environment it serves")
        return
    given = Report(target)
    parsed: list[Any] = []
    with given.checking("the given actions fit"):
        parsed = [_parse(blueprint.action_cls, action) for action in actions]
    if not given.ok:
        teller.tell(given)
        return
    action_cls = None if not hasattr(blueprint.action_cls, "model_json_schema") else blueprint.action_cls
    report = check_environment(
        blueprint.factory,
        parsed or None,
        action_cls=action_cls,
        on_check=lambda title: teller.say(doing=title),
    )
    with report.checking(_CONCURRENT):
        _check_claim(blueprint)
    teller.tell(report)


def _check_claim(blueprint: Any) -> None:
    from envhive.inspection import underlying_class

    cls = underlying_class(blueprint.factory)
    if cls is None:
        raise NotChecked(f"{blueprint.factory_name} does not say which class it makes")
    if not getattr(cls, "SUPPORTS_CONCURRENT_SESSIONS", False):
        raise Broken(
            f"{cls.__name__} does not set SUPPORTS_CONCURRENT_SESSIONS, so a server takes one session at a time.",
            "Set SUPPORTS_CONCURRENT_SESSIONS = True on the class if instances share no state.",
            level="warning",
        )


def _load(target: str) -> Any:
    from envhive.server.target import load_target

    try:
        app = load_target(target).app
    except EnvHiveError as error:
        raise Broken(str(error), "Mend that, and try `envhive serve` on it.") from error
    except BaseException as error:  # the author's module: importing it may raise anything, SystemExit too
        raise Broken(
            f"importing it raised {type(error).__name__}: {' '.join(str(error).split()) or 'no message'} "
            f"({_where(error)}).",
            "Mend that line. What may fail, and whatever runs a program, is best kept out of a module's top level.",
        ) from error
    server = getattr(getattr(app, "state", None), "envhive", None)
    return None if server is None else server.hive.blueprint


def _where(error: BaseException) -> str:
    """The author's line: the last of the traceback that is neither EnvHive's, nor Python's, nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    libraries = [sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = (str(Path(__file__).parents[1]), "<frozen ", *libraries)
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    if not own:
        return "no line is known"
    return f"{own[-1].filename}:{own[-1].lineno}"


def _parse(action_cls: Any, action: dict[str, Any]) -> Any:
    from envhive.server.calls import action_parser

    try:
        return action_parser(action_cls)(json.dumps(action).encode())
    except (EnvHiveError, ValueError) as error:  # pydantic's refusal is a ValueError
        raise Broken(
            f"the action {json.dumps(action)} is refused: {' '.join(str(error).split())}.",
            "Give --action one that fits.",
        ) from None


def main(arguments: list[str]) -> None:
    """Run in the child: the descriptor of the pipe, the actions, the target."""
    descriptor, actions, target = arguments
    teller = _Teller(int(descriptor))
    _probe(target, json.loads(actions), teller)
    teller.say(end=True)
    # Threads that the environment left behind must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
