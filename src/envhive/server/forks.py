"""What a process that an environment forks does not take along of the server's.

An environment may start processes of its own, with `multiprocessing` or `os.fork`. They are copies of the server, which
they are not to be: they would not end when they are told to, hold the connections of clients of a server that is gone,
and keep its port.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

from envhive.errors import EnvHiveError

logger: Final = logging.getLogger("envhive.environment")

_FAILURE: Final = 1

forked = False
"""Whether this process was forked from one that serves."""
_serving: set[int | str] = set()
"""Ports, and paths, that this process listens on."""
_folders: set[str] = set()
"""Where the sockets are, by which it speaks with others of the server's processes."""
_descriptors: set[int] = set()
"""Other files that are its own."""
_handlers: dict[signal.Signals, Any] = {}
"""What was done on a signal before there was a server."""


@contextlib.contextmanager
def serving(listeners: list[socket.socket], handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """While this process serves: connections to `listeners` are its own, as are the handlers of these signals."""
    global forked
    forked = False  # it may be one, but has a life of its own now
    _serving.update(_address(listener) for listener in listeners)
    _handlers.update({number: handler for number, handler in handlers.items() if handler is not None})
    try:
        yield
    finally:
        _serving.clear()
        _handlers.clear()


def keep_descriptor(descriptor: int) -> None:
    """A file that is the server's own."""
    _descriptors.add(descriptor)


def forget_descriptor(descriptor: int) -> None:
    """It is closed: its number may come to mean something else."""
    _descriptors.discard(descriptor)


def keep_folder(folder: str) -> None:
    """Sockets of this folder are the server's own."""
    _folders.add(folder)


def _address(found: socket.socket) -> int | str:
    return _place(found.getsockname())


def _place(name: Any) -> int | str:
    return name[1] if isinstance(name, tuple) else str(name)


def _leads_to_the_server(found: socket.socket) -> bool:
    if _address(found) in _serving:
        return True
    ends = [str(_address(found))]
    with contextlib.suppress(OSError):  # it is connected to nobody
        ends.append(str(_place(found.getpeername())))
    return any(end.startswith(folder) for end in ends for folder in _folders)


class _Mask(threading.local):
    """The signals that a thread that forks did not want to be told of before."""

    before: set[int | signal.Signals] | None = None


_mask: Final = _Mask()


def _hold_signals() -> None:
    """A child may be told to end before it has forgotten whose handlers it has: that waits for as long."""
    if _serving:
        _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers)


def _let_signals_in() -> None:
    before, _mask.before = _mask.before, None
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget_the_server() -> None:
    global forked
    if not _serving:
        _let_signals_in()
        return
    forked = True
    try:
        signal.set_wakeup_fd(-1)  # it is the server's event loop's
        for number, handler in _handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):  # no descriptor is left
            let_go(lambda descriptor: descriptor in _descriptors or _is_a_connection(descriptor))
    finally:
        _serving.clear()
        _let_signals_in()


def let_go(of: Callable[[int], bool]) -> None:
    """Hold these descriptors no longer.

    They are replaced, not closed: some object may still use the number, which must not come to mean something else.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/dev/fd")):
        if of(descriptor):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_a_connection(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        found = socket.socket(fileno=descriptor)
    except OSError:  # the one with which the folder was read
        return False
    try:
        return _leads_to_the_server(found)
    except OSError:
        return False
    finally:
        found.detach()


def end_child(failure: BaseException | None) -> NoReturn:
    """End a forked process that came back from the environment's code: its parent goes on there, alone."""
    cause = failure.__cause__ if isinstance(failure, EnvHiveError) and failure.__cause__ is not None else failure
    if isinstance(cause, SystemExit):
        code = cause.code if isinstance(cause.code, int) else 0 if cause.code is None else _FAILURE
    else:
        logger.error("A process that the environment forked came back from its code, and was ended", exc_info=cause)
        code = _FAILURE
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a stream that somebody has closed
            stream.flush()
    os._exit(code)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_forget_the_server)
