"""What an environment's code is doing at this moment: its Python stack, wherever it runs."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import linecache
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

Stack = list[dict[str, Any]]
"""`file`, `line`, `function` and `code` of each call, the innermost last."""

_OWN: Final = str(Path(__file__).parent)
_MEMORY: Final = "envhive-stack"
_COROUTINE: Final = "Coroutine (most recent call first):\n"
_LOOK_S: Final = 0.01
_LOOKS: Final = 100
_LINE: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def of_thread(ident: int) -> Stack:
    """The stack of a thread of this process."""
    frame = sys._current_frames().get(ident)
    frames = []
    while frame is not None:
        frames.append(_entry(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return _of_environment(frames[::-1])


def callers() -> frozenset[CodeType]:
    """The code that runs the event loop of whoever asks."""
    frame, found = sys._getframe().f_back, set()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back
    return frozenset(found)


def environments_frame(ident: int, running: frozenset[CodeType]) -> FrameType | None:
    """The outermost call of an environment's code in a thread that is `running` an event loop; None in other code."""
    frame, found = sys._current_frames().get(ident), None
    while frame is not None and frame.f_code not in running:
        if frame.f_code.co_filename.startswith(_OWN):
            return found
        found, frame = frame, frame.f_back
    return None


def of_coroutine(coroutine: Any) -> Stack:
    """The stack of a coroutine that waits."""
    frames = []
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        frames.append(_entry(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        inner = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
        coroutine = inner or frame.f_locals.get("job")  # which is how the driver hands on what has begun already
    return _of_environment(frames)


# A process of its own may be in an endless loop in C, where no Python code of ours would run. But its `faulthandler`
# writes from within a signal handler, into memory that this process can read.


def answer_signals() -> int | None:
    """In an environment's process: write down the stack when asked to. Returns where to, if that can be done."""
    if sys.platform != "linux":
        return None
    memory = os.memfd_create(_MEMORY)
    faulthandler.register(_signal(), file=memory, all_threads=False)
    return memory


def write_down(coroutine: Any, memory: int) -> None:
    """In an environment's process, whose event loop is free: what the coroutine waits for, if there is one."""
    lines = [f'  File "{e["file"]}", line {e["line"]} in {e["function"]}\n' for e in of_coroutine(coroutine)[::-1]]
    os.write(memory, "".join([_COROUTINE, *lines]).encode())


async def of_process(pid: int, ask_loop: Callable[[], None] | None) -> Stack:
    """The stack of an environment's process; empty where that cannot be had.

    `ask_loop` asks its event loop, if it has one, to write down its coroutine.
    """
    with contextlib.suppress(OSError):  # it may have ended
        link = _memory_of(pid) if sys.platform == "linux" else None
        if link is not None:
            return await _ask(pid, link, ask_loop)
    return []


def _memory_of(pid: int) -> Path | None:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return next((link for link in links if os.readlink(link).startswith(f"/memfd:{_MEMORY}")), None)


async def _ask(pid: int, link: Path, ask_loop: Callable[[], None] | None) -> Stack:
    with link.open("r+b") as memory:
        begin = memory.seek(0, os.SEEK_END)
        os.kill(pid, _signal())
        last = b""
        if ask_loop is not None:
            ask_loop()
            last = _COROUTINE.encode()  # late, or never if the environment blocks its loop
        written = b""
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            memory.seek(begin)
            before, written = written, memory.read()
            if written and written == before and last in written:
                break
    _, _, of_coroutine = written.decode(errors="replace").partition(_COROUTINE)
    text = of_coroutine or written.decode(errors="replace")
    frames = [
        _entry(found["file"], int(found["line"]), found["function"])
        for found in map(_LINE.match, text.splitlines())
        if found is not None
    ]
    return _of_environment(frames[::-1])


def _signal() -> int:
    return signal.SIGRTMAX - 1  # which nobody else uses, while SIGUSR1 and 2 are the environment's


def _entry(file: str, line: int, function: str) -> dict[str, Any]:
    return {"file": file, "line": line, "function": function, "code": linecache.getline(file, line).strip()}


def _of_environment(frames: Stack) -> Stack:
    """Without the calls of the server that led there."""
    own = [index for index, frame in enumerate(frames) if frame["file"].startswith(_OWN)]
    return frames[own[-1] + 1 :] if own else frames
