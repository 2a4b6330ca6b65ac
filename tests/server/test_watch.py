"""Code that holds up the event loop is named in the log, and innocent code is not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from envhive.server import watch
from envhive.server.blueprint import Blueprint
from envhive.server.config import ServerConfig
from envhive.server.hive import Hive
from envhive.server.stacks import callers, environments_frame
from tests.support.envs import Move, Seen, async_counting

RUNS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Alarm(logging.Handler):
    """Keeps warnings, and releases whoever waits for the first."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.rung = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.rung.set()


@RUNS
def test_a_coroutine_that_blocks_is_named_while_it_does(
    run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.02)
    alarm = Alarm()

    async def step(self: Any, action: Move) -> Seen:
        assert alarm.rung.wait(30)
        return Seen()

    async def scenario() -> None:
        hive = Hive(Blueprint.of(async_counting(step=step), Move, Seen), ServerConfig())
        session = hive.admit(None)
        await session.ask_reset({})
        await asyncio.sleep(0)  # the sweeper begins
        await session.ask_step(b"{}", {})
        await hive.shutdown()

    logging.getLogger("envhive.server").addHandler(alarm)
    try:
        run(scenario())
    finally:
        logging.getLogger("envhive.server").removeHandler(alarm)
    (message,) = alarm.messages
    assert "step has held up the event loop" in message
    for thread in threading.enumerate():
        if thread.name == "envhive-watch":
            thread.join(10)
            assert not thread.is_alive()


@RUNS
def test_an_event_loop_that_waits_is_nobodys_fault(run: Callable[[Any], Any]) -> None:
    async def scenario() -> Any:
        return await asyncio.to_thread(environments_frame, threading.get_ident(), callers())

    assert run(scenario()) is None
