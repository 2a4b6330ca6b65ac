"""What workers tell one another, and how they notice that one is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
import uvloop

from envhive.server.crew import Answer, Channel, Parcel, Question
from tests.support.descriptors import open_descriptors

PARCEL = Parcel(0, "key", [], b"", None, 1, None, None)


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


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_a_worker_has_sent_is_heard_although_it_can_be_answered_no_more(loop_factory: Any) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        heard: list[tuple[str, bool]] = []
        lost: list[bool] = []

        def answer(channel: Channel, letter: Any, descriptor: int | None) -> None:
            heard.append((type(letter).__name__, descriptor is not None))
            if isinstance(letter, Question):
                channel.send(Answer(letter.number, {}))
            if descriptor is not None:
                os.close(descriptor)

        dying = Channel(theirs, lambda channel, letter, descriptor: None, lambda channel: None)
        for number in range(2):
            dying.send(Question(number, 0, "health"))
            dying.send(PARCEL, os.dup(ours.fileno()))
        before = open_descriptors()
        dying.close()
        channel = Channel(ours, answer, lambda channel: lost.append(channel.is_open))
        async with asyncio.timeout(20):
            while ours.fileno() >= 0:
                await asyncio.sleep(0)
        assert heard == [("Question", False), ("Parcel", True)] * 2
        assert lost == [False]
        channel.send(PARCEL, os.dup(0))  # is dropped, and its descriptor closed
        assert open_descriptors() == before - 2

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())
