"""The process of one session, seen from inside: it does what the server asks, one thing at a time.

Everything runs on the main thread. As long as nothing is a coroutine there is no event loop, so a step costs no more
than reading a request and writing an answer; coroutines get a loop that runs as long as the environment lives.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from envhive.errors import EnvHiveError, ExecutionError
from envhive.server import forks, stacks
from envhive.server.calls import Calls
from envhive.server.logs import LogTag, set_tag
from envhive.server.notes import send_notes_by
from envhive.server.runner import LoopRunner

CHUNK: Final = 64 * 1024
"""Bytes to read at once. From 128 kB on, each read has memory mapped and unmapped, and a step costs twice the CPU."""

_PREFIX: Final = 8
_LONGEST_WAIT_S: Final = 3600.0
"""Seconds that a server may take to read an answer before it counts as gone."""


def pack(message: Any) -> bytes:
    """A message as it goes from process to process; raises whatever pickle does if it cannot."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_PREFIX, "big") + body


class Unpacker:
    """Finds the messages in what was read.

    Example:
        >>> unpacker, data = Unpacker(), pack("one") + pack("two")
        >>> [pickle.loads(body) for body in unpacker.feed(data[:-1]) + unpacker.feed(data[-1:])]
        ['one', 'two']
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        if not self._rest and len(data) > _PREFIX and len(data) - _PREFIX == int.from_bytes(data[:_PREFIX], "big"):
            return [data[_PREFIX:]]  # as nearly always: one message, and all of it
        rest = self._rest
        rest += data
        found, at = [], 0
        while len(rest) - at >= _PREFIX:
            begin = at + _PREFIX
            end = begin + int.from_bytes(rest[at:begin], "big")
            if len(rest) < end:
                break
            found.append(bytes(rest[begin:end]))
            at = end
        del rest[:at]
        return found


class Resident:
    """Serves one environment to the other end of a socket, until asked to close it."""

    def __init__(self, link: socket.socket, calls: Calls) -> None:
        self._link = link
        self._pid = os.getpid()
        tag = LogTag("")
        set_tag(tag)  # all that this process logs is about the one session
        self._runner = LoopRunner(calls, None, tag)
        self._unpacker = Unpacker()
        self._needs_loop = False
        self._leaving = False
        self._stacks: int | None = None
        self._left: asyncio.Future[None] | None = None

    def live(self) -> None:
        self._stacks = stacks.answer_signals()
        send_notes_by(lambda note: self._answer(note, None))
        while not self._leaving:
            if self._needs_loop:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._live_on_loop())
            else:
                self._listen()
        self._runner.close(_ignore)

    async def _live_on_loop(self) -> None:
        loop = asyncio.get_running_loop()
        self._left = loop.create_future()
        loop.add_reader(self._link, self._listen)
        # The loop has made the descriptor one that does not wait; with a time-out, Python itself waits to send.
        self._link.settimeout(_LONGEST_WAIT_S)
        await self._left
        loop.remove_reader(self._link)

    def _listen(self) -> None:
        try:
            data = self._link.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            os._exit(0)  # the server is gone
        for body in self._unpacker.feed(data):
            what, args = pickle.loads(body)
            self._obey(what, args)

    def _obey(self, what: str, args: tuple[Any, ...]) -> None:
        if what == "open":
            (self._runner.tag.session_id,) = args
            self._runner.open(self._opened)
        elif what == "cancel":
            self._runner.cancel()
        elif what == "stack":
            if self._stacks is not None:
                stacks.write_down(self._runner.coroutine, self._stacks)
        elif what == "close":
            self._leaving = True
            if self._left is not None and self._runner.env is not None and self._runner.plan.async_close:
                self._runner.close(self._closed)
            elif self._left is not None:
                self._closed(None, None)
        elif what == "call_async" and self._left is None:
            self._runner.call(functools.partial(_run, *args), self._answer)
        else:
            getattr(self._runner, what)(*args, self._answer)

    def _opened(self, env: Any, error: EnvHiveError | None) -> None:
        if error is None:
            plan = self._runner.plan
            self._needs_loop = plan.reset.is_async or plan.step.is_async or plan.async_close
        self._answer((self._runner.env_name, self._needs_loop), error)

    def _closed(self, result: Any, error: EnvHiveError | None) -> None:
        if self._left is not None:
            self._left.set_result(None)

    def _answer(self, result: Any, error: EnvHiveError | None) -> None:
        if os.getpid() != self._pid:
            forks.end_child(error)  # it shares our socket: its answer would be taken for that of the next step
        try:
            data = pack((result, error))
        except Exception as failure:  # what it is to say may be of any class, with any __reduce__
            said = error or f"the answer cannot leave the environment's process: {failure}"
            data = pack((None, ExecutionError(str(said))))
        try:
            self._link.sendall(data)
        except OSError:
            os._exit(0)  # the server is gone


def _run(job: Callable[[Any], Coroutine[Any, Any, Any]], env: Any) -> Any:
    return asyncio.run(job(env))


def _ignore(result: Any, error: EnvHiveError | None) -> None:
    pass
