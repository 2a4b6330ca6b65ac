"""Environments in processes of their own, as the event loop sees them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pickle
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from envhive.errors import EnvHiveError, EnvironmentCrashedError, ExecutionError, SessionError
from envhive.server import stacks
from envhive.server.logs import LogTag
from envhive.server.metrics import Metrics
from envhive.server.notes import Listening, Note
from envhive.server.nursery import DIED, FAILED, FORK, KILL, ORDER, REPORT, Nursery
from envhive.server.resident import CHUNK, Unpacker, pack
from envhive.server.runner import Runner
from envhive.server.stacks import Stack
from envhive.server.threads import Done

logger: Final = logging.getLogger("envhive.environment")

CLOSE_PATIENCE_S: Final = 5.0
"""Seconds that `close()` may take before the process is killed."""
CANCEL_PATIENCE_S: Final = 30.0
"""Seconds that a step may go on when its client has left."""

Fate = int | str
"""How a process ended: its status, as `waitpid` gives it, or in words why that is not the environment's doing."""

_LOST: Final = "The process that environments are forked from was lost, and this one with it. `reset` starts another."
_NO_NURSERY: Final = "The process that environments are forked from was lost, and no other could be started."
_INTERRUPTED: Final = "The server ended the environment's process, as it took too long. reset() starts a new one."
_LEFT_BEHIND: Final = "The session was left behind."


class NurseryLink:
    """The nursery, as an event loop sees it: orders go there, reports come back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, nursery: Nursery, metrics: Metrics) -> None:
        self.loop = loop
        self.metrics = metrics
        self._nursery = nursery.here()
        self._children: dict[int, Child] = {}
        self._outgoing: deque[tuple[bytes, socket.socket | None]] = deque()
        self._incoming = b""
        self._is_open = False
        self._stopped = False
        self._open()

    def _open(self) -> None:
        self._link, self._incoming = self._nursery.link, b""
        self._link.setblocking(False)
        self.loop.add_reader(self._link, self._read)
        self._is_open = True

    def make_runner(self, session_id: str) -> ProcessRunner:
        return ProcessRunner(self, session_id)

    def adopt(self, child: Child, theirs: socket.socket) -> int:
        """Have a process forked that gets `theirs`. Returns the child's number."""
        number = next(self._nursery.numbers)
        self._children[number] = child
        if self._is_open or self._reopened():
            self._order(FORK, number, theirs)
        else:
            theirs.close()
            self.loop.call_soon(self._bury, number, _NO_NURSERY)
        return number

    def _reopened(self) -> bool:
        """Whether there is a nursery again. One that was lost is replaced when it is needed, not at once: whatever
        killed it may kill the next."""
        if self._stopped:
            return False
        try:
            self._nursery.renew()
        except OSError as error:  # no process or descriptor is to be had just now; the next session tries again
            logger.error("%s %s", _NO_NURSERY, error)
            return False
        self._open()
        logger.warning("Environments are forked from process %d now", self._nursery.pid)
        return True

    def kill(self, number: int) -> None:
        """Kill a child, if it lives. Its death is reported like any other."""
        if self._is_open:
            self._order(KILL, number, None)

    def stop(self) -> None:
        """Nobody on this event loop waits for anything any more."""
        children, self._children = self._children, {}
        for number, child in children.items():
            self.kill(number)
            child.abandon()
        self._stopped = True
        if self._is_open:
            self._close()

    def _close(self) -> None:
        self._is_open = False
        for _, descriptor in self._outgoing:
            if descriptor is not None:
                descriptor.close()
        self._outgoing.clear()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._link)
            self.loop.remove_writer(self._link)

    def _order(self, kind: bytes, number: int, descriptor: socket.socket | None) -> None:
        self._outgoing.append((ORDER.pack(kind, number), descriptor))
        if len(self._outgoing) == 1 and not self._write():
            self.loop.add_writer(self._link, self._write_on)

    def _write_on(self) -> None:
        if self._write():
            self.loop.remove_writer(self._link)

    def _write(self) -> bool:
        """Send what waits; False if some of it has to wait longer."""
        while self._outgoing:
            order, descriptor = self._outgoing[0]
            try:
                socket.send_fds(self._link, [order], [] if descriptor is None else [descriptor.fileno()])
            except BlockingIOError:
                return False
            except OSError:
                return True  # the nursery is gone, as reading will tell
            self._outgoing.popleft()
            if descriptor is not None:
                descriptor.close()  # it is on its way, and the system holds it
        return True

    def _read(self) -> None:
        # To the end: if the nursery died with orders unread, uvloop calls this once, for reports and death together.
        while self._is_open and self._read_some():
            pass

    def _read_some(self) -> bool:
        """Take in what has come; False if there is nothing."""
        try:
            data = self._link.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lost()
            return False
        data = self._incoming + data
        whole = len(data) - len(data) % REPORT.size
        self._incoming = data[whole:]
        for kind, number, value in REPORT.iter_unpack(data[:whole]):
            if kind == DIED:
                self._bury(number, value)
            elif kind == FAILED:
                self._bury(number, f"No process could be started for the environment: {os.strerror(value)}.")
            elif number in self._children:
                self._children[number].pid = value
        return True

    def _lost(self) -> None:
        logger.error("The process that environments are forked from is gone, and %d with it", len(self._children))
        self._close()
        for number in list(self._children):
            self._bury(number, _LOST)

    def _bury(self, number: int, fate: Fate) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            child.died(fate)


class Child:
    """A process with an environment in it: this end of its socket."""

    __slots__ = (
        "_done",
        "_link",
        "_number",
        "_on_death",
        "_outgoing",
        "_socket",
        "_timer",
        "_unpacker",
        "is_heard",
        "pid",
    )

    def __init__(self, link: NurseryLink, on_death: Callable[[Fate], None]) -> None:
        self._link = link
        self._on_death = on_death
        self._done: Done | None = None
        self.is_heard = True
        self._outgoing = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._unpacker = Unpacker()
        self.pid: int | None = None
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        link.loop.add_reader(self._socket, self._read)
        self._number = link.adopt(self, theirs)

    def ask(self, what: str, args: tuple[Any, ...], done: Done) -> None:
        """Have something done; `done` is called with what comes of it, also if that is the process's death."""
        try:
            data = pack((what, args))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            done(None, ExecutionError(f"it cannot be asked of an environment in another process: {error}"))
            return
        self._done = done
        self._send(data)

    def tell(self, what: str) -> None:
        """Say something that is not answered."""
        self._send(pack((what, ())))

    def kill(self) -> None:
        self._link.kill(self._number)

    def interrupt(self) -> None:
        """Kill it, and take no answer from it any more."""
        self.is_heard = False
        self.kill()

    def kill_after(self, seconds: float) -> None:
        """Kill it unless it answers, or ends, within so many seconds."""
        self._stop_timer()
        self._timer = self._link.loop.call_later(seconds, self.kill)

    def died(self, fate: Fate) -> None:
        """It is dead. What it said last is still heard."""
        while self._read():
            pass
        self._let_go()
        done, self._done = self._done, None
        self._on_death(fate)
        if done is not None:
            done(None, failure_of(fate, interrupted=not self.is_heard))

    def abandon(self) -> None:
        """Be as if it were dead: nobody waits for it any more."""
        self._let_go()
        self._on_death(_LEFT_BEHIND)

    def _let_go(self) -> None:
        self._stop_timer()
        if not self._link.loop.is_closed():
            self._link.loop.remove_reader(self._socket)
            self._link.loop.remove_writer(self._socket)
        self._socket.close()

    def _send(self, data: bytes) -> None:
        waiting = bool(self._outgoing)
        self._outgoing += data
        if not waiting and not self._write():
            self._link.loop.add_writer(self._socket, self._write_on)

    def _write_on(self) -> None:
        if self._write():
            self._link.loop.remove_writer(self._socket)

    def _write(self) -> bool:
        """Send what waits; False if some of it has to wait longer."""
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._outgoing)  # it is dead, as its nursery will report
        del self._outgoing[:sent]
        return not self._outgoing

    def _read(self) -> bool:
        """Take in what has come; False if there is nothing. Whether it has died, its nursery tells in any case."""
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._link.loop.remove_reader(self._socket)
            self.kill()  # it has most likely ended; if it closed its socket instead, it is of no use
            return False
        for body in self._unpacker.feed(data) if self.is_heard else ():
            answer, error = _answer_in(body)
            if isinstance(answer, Note):
                Listening.deliver(answer)
                continue
            self._stop_timer()
            done, self._done = self._done, None
            if done is not None:
                done(answer, error)
        return True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _answer_in(body: bytes) -> tuple[Any, EnvHiveError | None]:
    try:
        result, error = pickle.loads(body)
    except Exception as failure:  # an object of the author's, which may do anything when it is put together again
        return None, ExecutionError(f"the answer of the environment's process cannot be read: {failure}")
    return result, error


def failure_of(fate: Fate, *, interrupted: bool = False) -> EnvHiveError:
    """What the end of a process means to its client; `interrupted` says that the server brought it about."""
    if isinstance(fate, str):
        return SessionError(fate)
    code = os.waitstatus_to_exitcode(fate)
    if interrupted and code == -signal.SIGKILL:
        return EnvironmentCrashedError(_INTERRUPTED, signal="SIGKILL")
    if code >= 0:
        return EnvironmentCrashedError(exit_code=code)
    try:
        return EnvironmentCrashedError(signal=signal.Signals(-code).name)
    except ValueError:  # a real-time signal has no name
        return EnvironmentCrashedError(signal=f"signal {-code}")


class ProcessRunner(Runner):
    """Runs an environment in a process of its own. If that ends, `reset` starts another."""

    __slots__ = ("_child", "_env_name", "_fate", "_interrupted", "_link", "_on_closed", "_on_loop", "tag")

    def __init__(self, link: NurseryLink, session_id: str) -> None:
        self._link = link
        self.tag = LogTag(session_id)
        self._child: Child | None = None
        self._env_name = ""
        self._on_loop = False
        self._fate: Fate = _LEFT_BEHIND
        self._interrupted = False
        self._on_closed: Done | None = None

    @property
    def env_name(self) -> str:
        return self._env_name

    @property
    def env_pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def on_loop(self) -> bool:
        return self._on_loop

    def open(self, done: Done) -> None:
        try:
            self._child = Child(self._link, self._died)
        except OSError as error:
            done(None, SessionError(f"The session could not be started: {error.strerror}"))
            return
        self._child.ask("open", (self.tag.session_id,), functools.partial(self._opened, done))

    def _opened(self, done: Done, about: tuple[str, bool] | None, error: EnvHiveError | None) -> None:
        self._env_name, self._on_loop = about or ("", False)
        done(None, error)

    def reset(self, keywords: dict[str, Any], timeout_s: float | None, done: Done) -> None:
        self.tag.begin_episode(keywords)
        if self._child is None:
            self.open(functools.partial(self._reopened, keywords, timeout_s, done))
        else:
            self._child.ask("reset", (keywords, timeout_s), done)

    def _reopened(
        self, keywords: dict[str, Any], timeout_s: float | None, done: Done, result: Any, error: EnvHiveError | None
    ) -> None:
        if error is None:
            self.reset(keywords, timeout_s, done)
        elif self._child is None:
            done(None, error)
        else:  # it lives, but has no environment; the next reset tries again, in another
            self._child.ask("close", (), lambda result, ended: done(None, error))
            self._child.kill_after(CLOSE_PATIENCE_S)

    def step(self, action: bytes, keywords: dict[str, Any], done: Done) -> None:
        self._ask("step", (action, keywords), done)

    def state(self, done: Done) -> None:
        self._ask("state", (), done)

    def call(self, job: Callable[[Any], Any], done: Done) -> None:
        self._ask("call", (job,), done)

    def call_async(self, job: Callable[[Any], Coroutine[Any, Any, Any]], done: Done) -> None:
        self._ask("call_async", (job,), done)

    def _ask(self, what: str, args: tuple[Any, ...], done: Done) -> None:
        if self._child is None:
            done(None, failure_of(self._fate, interrupted=self._interrupted))
        else:
            self._child.ask(what, args, done)

    def cancel(self) -> bool:
        if self._child is not None:
            self._child.tell("cancel")
            self._child.kill_after(CANCEL_PATIENCE_S)
        return True

    def interrupt(self) -> bool:
        if self._child is not None:
            self._child.interrupt()
        return True

    async def stack(self) -> Stack:
        if self._child is None or self._child.pid is None:
            return []
        ask_loop = functools.partial(self._child.tell, "stack") if self._on_loop else None
        return await stacks.of_process(self._child.pid, ask_loop)

    def close(self, done: Done) -> None:
        if self._child is None:
            done(None, None)
        else:
            self._on_closed = done
            self._child.tell("close")
            self._child.kill_after(CLOSE_PATIENCE_S)

    def _died(self, fate: Fate) -> None:
        child, self._child, self._fate = self._child, None, fate
        self._interrupted = child is not None and not child.is_heard
        pid = None if child is None else child.pid
        if isinstance(fate, int) and self._on_closed is None and (child is None or child.is_heard):
            self._link.metrics.crashes += 1
        if fate != 0 or self._on_closed is None:
            failure = failure_of(fate, interrupted=self._interrupted)
            logger.warning("Session %s, process %s: %s", self.tag.session_id, pid, failure, extra=self.tag.fields())
        done, self._on_closed = self._on_closed, None
        if done is not None:
            done(None, None)
