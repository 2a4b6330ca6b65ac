"""What workers tell one another, and how they notice that one is gone."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from envhive.server.crew import Answer, Channel, Question


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_worker_that_dies_with_letters_unread_is_heard_and_missed(loop_factory: Any) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        heard: list[Any] = []
        lost = asyncio.Event()
        channel = Channel(ours, lambda channel, letter, descriptor: heard.append(letter), lambda channel: lost.set())
        other = Channel(theirs, lambda channel, letter, descriptor: None, lambda channel: None)
        # All of this in one turn of the event loop, so that it finds the last words and the end at once.
        channel.send(Question(number=1, hive=0, what="health"))
        other.send(Answer(number=7, report={}))
        other.close()

        async with asyncio.timeout(20):
            await lost.wait()
        assert [letter.number for letter in heard] == [7]
        assert not channel.is_open

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
