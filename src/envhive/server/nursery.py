"""The process from which the processes of sessions are forked.

It is itself forked when the app has been loaded and nothing runs yet: no event loop, no thread. So a session's
process is there within milliseconds, with all that the app imported, and a factory may be any function at all.
The nursery has one thread. It forks, kills and buries as the server tells it, and ends with the server, however
that ends, and all its children with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import itertools
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final, NoReturn

from envhive.errors import ConfigurationError
from envhive.server import forks
from envhive.server.calls import Calls
from envhive.server.config import ServerConfig, as_isolation
from envhive.server.leaving import leave
from envhive.server.resident import Resident
from envhive.server.threads import be_patient

logger: Final = logging.getLogger("envhive.server")

FORK: Final = b"f"
KILL: Final = b"k"
ORDER: Final = Struct("!cQ")
"""What is to be done, and the child's number. The child's end of its socket travels beside a `FORK`."""

BORN: Final = b"b"
DIED: Final = b"d"
FAILED: Final = b"x"
REPORT: Final = Struct("!cQq")
"""What happened, the child's number, and its pid, its status as `waitpid` gives it, or the errno of the failed fork."""

_MEGABYTE: Final = 1024 * 1024
_LAST_WAIT_S: Final = 5
_FAILURE: Final = 70
_PR_SET_PDEATHSIG: Final = 1
_FIRST_TO_GO: Final = "500"

_libc: Final = ctypes.CDLL(None)
_private: Final[set[int]] = set()


def keep_private(*descriptors: int) -> None:
    """These descriptors are the server's own: no environment's process gets them. Its connections are so anyway."""
    _private.update(descriptors)


def nursery_for(calls: Calls, env_cls: type | None, config: ServerConfig) -> Nursery | None:
    """A nursery if the environment is to run in processes; raises `ConfigurationError` where it cannot."""
    isolation = config.isolation or as_isolation("ISOLATION", getattr(env_cls, "ISOLATION", "thread"))
    if isolation == "thread":
        if config.memory_limit is not None:
            raise ConfigurationError("A memory limit needs process isolation: add --isolation process.")
        return None
    if not all(hasattr(module, name) for module, name in ((os, "fork"), (os, "waitid"), (socket, "send_fds"))):
        raise ConfigurationError("Process isolation is not available here: this system cannot fork as it needs to.")
    if config.memory_limit is not None and sys.platform != "linux":
        raise ConfigurationError("A memory limit is available on Linux only.")
    return Nursery(calls, config.memory_limit)


class Nursery:
    """The nursery, as the server that made it sees it."""

    __slots__ = ("__weakref__", "_calls", "_end", "_memory_limit", "_owner", "link", "numbers", "pid")

    def __init__(self, calls: Calls, memory_limit: int | None) -> None:
        if threading.active_count() > 1:
            logger.warning(
                "Threads are running while environments are prepared for processes of their own: a lock that one of "
                "them holds now stays locked there. Make the app before any thread is started."
            )
        self._calls = calls
        self._memory_limit = memory_limit
        self._owner = os.getpid()
        self.numbers = itertools.count(1)
        """A number for each child there ever was."""
        self._fork()

    def _fork(self) -> None:
        self.link, theirs = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python's own about threads; ours says more
            try:
                self.pid = os.fork()
            except OSError:
                self.link.close()
                theirs.close()
                raise
        if self.pid == 0:
            self.link.close()
            _be_for_ever(_Nurse(theirs, self._calls, self._memory_limit).run)
        theirs.close()
        self._end = weakref.finalize(self, _end_nursery, self._owner, self.pid, self.link)

    def here(self) -> Nursery:
        """This one; in a process forked after it was made, as by servers that load the app first, one of its own."""
        return self if os.getpid() == self._owner else Nursery(self._calls, self._memory_limit)

    def renew(self) -> None:
        """Fork another in the place of one that was killed; raises `OSError` where that cannot be done just now.

        It has what the server has loaded by now, and holds none of its connections.
        """
        self._end()
        self._fork()

    def stop(self) -> None:
        """End it, and with it every process that is left. May be called twice."""
        self._end()


def _end_nursery(owner: int, pid: int, link: socket.socket) -> None:
    if os.getpid() != owner:
        return  # a copy of it, in a process that somebody forked
    link.close()
    with contextlib.suppress(ChildProcessError):  # somebody waits for all children of this process
        os.waitpid(pid, 0)


def _be_for_ever(life: Callable[[], None]) -> NoReturn:
    """What a forked process does, and nothing else: it must not return to what its parent was doing."""
    try:
        life()
    except BaseException:  # whatever it is, this copy of the server's stack must not unwind
        logger.exception("A process for environments failed")
        os._exit(_FAILURE)
    os._exit(0)


class _Nurse:
    """What the nursery's process does."""

    def __init__(self, link: socket.socket, calls: Calls, memory_limit: int | None) -> None:
        self._link = link
        self._calls = calls
        self._memory_limit = memory_limit
        self._pids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._wakeups: tuple[int, int] = (-1, -1)

    def run(self) -> None:
        os.setsid()  # Ctrl-C is for the server
        _let_go_of_connections(self._link.fileno())
        self._link.setblocking(True)
        atexit._clear()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._wakeups = os.pipe()
        for descriptor in self._wakeups:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakeups[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        gc.collect()
        gc.freeze()  # so that looking for cycles does not copy pages that all processes share
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._wakeups[0], select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wakeups[0]:
                    os.read(descriptor, 4096)
                    self._bury()
                elif not self._obey():
                    self._kill_all()
                    return

    def _obey(self) -> bool:
        """Do what the server says next; False if there is no server any more."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._link, ORDER.size, 1)
        except OSError:  # it went without having read all reports
            return False
        if not data:
            return False
        kind, number = ORDER.unpack(data)
        if kind == FORK and descriptors:
            self._bear(number, descriptors[0])
        elif kind == FORK:
            self._report(FAILED, number, errno.EMFILE)  # the system drops a descriptor that exceeds the limit
        elif number in self._pids:
            _kill(self._pids[number])
        return True

    def _bear(self, number: int, descriptor: int) -> None:
        nurse = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(descriptor)
            self._report(FAILED, number, error.errno or errno.EAGAIN)
            return
        if pid == 0:
            _be_for_ever(lambda: self._be_a_child(number, descriptor, nurse))
        os.close(descriptor)
        self._pids[number], self._numbers[pid] = pid, number

    def _be_a_child(self, number: int, descriptor: int, nurse: int) -> None:
        self._report(BORN, number, os.getpid())  # before its first answer; the nurse may be late
        self._link.close()
        signal.set_wakeup_fd(-1)
        for inherited in self._wakeups:
            os.close(inherited)
        os.setsid()  # what it starts is killed with it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _die_with(nurse)
        be_patient()  # 4 to 35 % of the CPU of a step, in 8 pairs of runs with 64 plain sessions
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        if "numpy" in sys.modules:  # `random` sees to itself
            sys.modules["numpy"].random.seed()
        if self._memory_limit is not None:
            _limit_memory(self._memory_limit * _MEGABYTE)
        link = socket.socket(fileno=descriptor)
        link.setblocking(True)
        Resident(link, self._calls).live()
        leave(0)

    def _bury(self) -> None:
        """Report the dead. What a child has started goes with it, while its number still is its own."""
        with contextlib.suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                _kill(dead.si_pid)
                _, status = os.waitpid(dead.si_pid, 0)
                number = self._numbers.pop(dead.si_pid, 0)
                if self._pids.pop(number, None) is not None:
                    self._report(DIED, number, status)

    def _report(self, kind: bytes, number: int, value: int) -> None:
        with contextlib.suppress(OSError):  # the server is gone, which the next read tells
            self._link.sendall(REPORT.pack(kind, number, value))

    def _kill_all(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LAST_WAIT_S)  # ends this process if some child cannot even be killed
        for pid in self._pids.values():
            _kill(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)


def _let_go_of_connections(link: int) -> None:
    """Hold nothing open that is the server's: its listening socket, its clients, other environments' nurseries."""
    forks.let_go(lambda found: found not in (0, 1, 2, link) and (found in _private or _is_connection(found)))


def _is_connection(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.type == socket.SOCK_STREAM
    except OSError:  # no socket, or the one with which the folder was read
        return False


def _kill(pid: int) -> None:
    """Kill a child of this process, and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)  # it may not have come to be a group yet
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _die_with(parent: int) -> None:
    """Be killed when the nursery is, and before the server is when memory runs out."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    if os.getppid() != parent:
        os._exit(_FAILURE)


def _limit_memory(more: int) -> None:
    """Let this process take so many bytes more than it has. Python then raises `MemoryError`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
