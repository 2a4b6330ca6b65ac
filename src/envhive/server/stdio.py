"""One session over standard input and output: JSON-RPC, one message a line, as desktop clients speak it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, Final

from envhive.server.conversation import Conversation
from envhive.server.hive import Hive

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


class Pipes:
    """Standard input and output, taken away from everybody else in this process.

    What an environment prints goes to standard error, and what it reads is empty: neither can harm the messages.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._lines = os.fdopen(os.dup(_STDIN), "rb")
        self._out = os.dup(_STDOUT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, _STDIN)
        os.close(nothing)
        os.dup2(_STDERR, _STDOUT)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(line_buffering=True)

    def read_to(self, on_line: Callable[[bytes | None], None]) -> None:
        """Read on a thread of its own, line by line; None is the end. A file or terminal will do as well as a pipe."""
        threading.Thread(target=_read, args=(self._lines, on_line), name="envhive-stdin", daemon=True).start()

    def write(self, message: bytes) -> None:
        """Write a line; raises `OSError` when nobody reads any more."""
        rest = memoryview(message + b"\n")
        while rest:
            rest = rest[os.write(self._out, rest) :]


def _read(lines: IO[bytes], on_line: Callable[[bytes | None], None]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # a terminal that is gone, or an event loop that has ended
        for line in lines:
            on_line(line)
        on_line(None)


async def serve_pipes(hive: Hive, pipes: Pipes) -> None:
    """Answer until the input ends, nobody reads the output, or a signal says stop; then close the environment.

    When the input ends, the calls that have come are still answered, within the grace period.
    """
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[bytes | None] = asyncio.Queue()

    def on_line(line: bytes | None) -> None:
        loop.call_soon_threadsafe(inbox.put_nowait, line)

    pipes.read_to(on_line)
    session = hive.admit(None)
    try:
        talking = asyncio.ensure_future(_Talk(Conversation(session), pipes, hive.config.grace_period).go_on(inbox))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, talking.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await talking
    finally:
        session.end()
        await session.wait_closed()


class _Talk:
    """The messages both ways."""

    def __init__(self, conversation: Conversation, pipes: Pipes, grace_s: float) -> None:
        self._conversation = conversation
        self._pipes = pipes
        self._grace_s = grace_s
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._calls: set[asyncio.Task[None]] = set()

    async def go_on(self, inbox: asyncio.Queue[bytes | None]) -> None:
        reading, writing = asyncio.ensure_future(self._hear(inbox)), asyncio.ensure_future(self._write())
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and self._calls:
                await asyncio.wait(set(self._calls), timeout=self._grace_s)
            if not writing.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._grace_s):
                        await self._outbox.join()
        finally:
            for task in (reading, writing, *self._calls):
                task.cancel()

    async def _hear(self, inbox: asyncio.Queue[bytes | None]) -> None:
        while (line := await inbox.get()) is not None:
            if line.strip():
                self._calls.add(call := asyncio.ensure_future(self._answer(line)))
                call.add_done_callback(self._calls.discard)

    async def _answer(self, line: bytes) -> None:
        answer = await self._conversation.answer_text(line, self._notify)
        if answer is not None:
            self._outbox.put_nowait(answer)

    def _notify(self, note: dict[str, Any]) -> None:
        self._outbox.put_nowait(json.dumps(note).encode())

    async def _write(self) -> None:
        """Write what is there, on another thread: a client that does not read holds up its own answers alone."""
        with contextlib.suppress(OSError):
            while True:
                message = await self._outbox.get()
                await asyncio.to_thread(self._pipes.write, message)
                self._outbox.task_done()
