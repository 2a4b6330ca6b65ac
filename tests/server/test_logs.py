"""Log records say which session and episode they are about, wherever the environment's code runs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest

from envhive.server.logs import JsonFormatter, LogHandler, LogTag, TextFormatter, inline_here, set_up_logging
from tests.server.test_hive import hive_for
from tests.support.envs import Counting, Move, Seen, async_counting, counting
from tests.support.servers import Running, eventually, receive, reset, serving, step

logger = logging.getLogger("a.game")


class Lines:
    """What a handler has written."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        self.handler = LogHandler(self._stream)
        self.handler.setFormatter(formatter)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def objects(self, message: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.text.splitlines()]
        return [each for each in found if message in each["message"]]


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    made = Lines(getattr(request, "param", None) or JsonFormatter())
    logging.getLogger().addHandler(made.handler)
    level, logger.level = logger.level, logging.INFO
    yield made
    logger.level = level
    logging.getLogger().removeHandler(made.handler)


def record(message: Any = "hello", *args: Any, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("a.game", logging.WARNING, "game.py", 1, message, args, more.pop("exc_info", None))
    made.__dict__.update(more)
    return made


# Where the code runs.


def talking(make: Any, **attributes: Any) -> Any:
    """An environment that says what it does, in the constructor and `close` too."""

    class Talking(make()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            logger.info("made")

        def close(self) -> None:
            logger.info("closed")
            super().close()

        locals().update(attributes)

    if make is counting:

        def plain_step(self: Counting, action: Move, **kwargs: Any) -> Seen:
            logger.info("stepped")
            return Counting.step(self, action)

        Talking.step = plain_step
    else:

        async def async_step(self: Counting, action: Move, **kwargs: Any) -> Seen:
            logger.info("stepped")
            await asyncio.sleep(0)
            logger.info("and waited")
            await asyncio.create_task(a_task())
            return Counting.step(self, action)

        Talking.step = async_step
    return Talking


async def a_task() -> None:
    logger.info("in a task")


PLACES: dict[str, Any] = {
    "a thread of its own": talking(counting),
    "a thread for all": talking(counting, REQUIRES_SINGLE_THREAD_EXECUTOR=True),
    "the loop": talking(counting, BLOCKING=False),
    "a task": talking(async_counting),
}


def only_session(server: Running) -> str:
    (session_id,) = server.server.hive.sessions
    return session_id


@pytest.mark.parametrize("place", PLACES)
def test_what_an_environment_logs_has_its_session_and_episode(place: str, lines: Lines) -> None:
    with serving(PLACES[place], "fast") as server:
        ids = []
        for number in (1, 2):
            with server.connect() as ws:
                reset(ws, episode_id=f"episode-{number}")
                ids.append(only_session(server))
                step(ws)
            server.wait_until_empty()
    for message in ("made", "stepped", "closed", *(("and waited", "in a task") if place == "a task" else ())):
        assert [each["session_id"] for each in lines.objects(message)] == ids, message
    assert [each["episode_id"] for each in lines.objects("stepped")] == ["episode-1", "episode-2"]
    assert all("episode_id" not in each for each in lines.objects("made"))


@pytest.mark.parametrize("place", PLACES)
def test_sessions_side_by_side_are_not_mixed_up(place: str, lines: Lines) -> None:
    with serving(PLACES[place], "fast") as server, ExitStack() as stack:
        sockets = [stack.enter_context(server.connect()) for _ in range(4)]
        for number, ws in enumerate(sockets):
            reset(ws, episode_id=f"episode-{number}")
        for _ in range(3):
            for ws in sockets:
                ws.send('{"type":"step","data":{}}')
            for ws in sockets:
                assert receive(ws)["type"] == "observation"
        pairs = {(each["session_id"], each["episode_id"]) for each in lines.objects("stepped")}
        assert len(pairs) == len({session for session, _ in pairs}) == len({episode for _, episode in pairs}) == 4
        assert {session for session, _ in pairs} == set(server.server.hive.sessions)


def test_an_episode_without_a_name_does_not_keep_the_last_ones(lines: Lines) -> None:
    with serving(PLACES["the loop"], "fast") as server, server.connect() as ws:
        for keywords in ({"episode_id": "one"}, {}):
            reset(ws, **keywords)
            step(ws)
    assert [each.get("episode_id") for each in lines.objects("stepped")] == ["one", None]


def test_nothing_is_left_of_a_session_on_the_event_loop_even_if_its_code_raises(lines: Lines) -> None:
    async def scenario() -> None:
        env = counting(BLOCKING=False)
        hive = hive_for(env, max_sessions=1)
        session = hive.admit(None)
        for deed in (b'{"do":"raise"}', b'{"do":"panic"}'):
            with pytest.raises(Exception, match=r"floor|not an Exception"):
                await session.ask_step(deed, {})
            assert inline_here().tag is None
        logger.info("of nobody")
        await hive.shutdown()

    asyncio.run(scenario())
    assert "session_id" not in lines.objects("of nobody")[0]
    (failure,) = lines.objects("step() raised RuntimeError")
    assert failure["session_id"]


def test_what_the_server_says_of_a_session_has_its_id(lines: Lines) -> None:
    with serving(counting(), "fast", config={"session_timeout": 0.1}) as server:
        logging.getLogger("envhive.server").setLevel("INFO")
        try:
            with server.connect() as ws:
                reset(ws, episode_id="the-last")
                session_id = only_session(server)
                assert receive(ws)["data"]["code"] == "SESSION_EXPIRED"
        finally:
            logging.getLogger("envhive.server").setLevel("NOTSET")
        (said,) = lines.objects("expired")
    assert (said["session_id"], said["episode_id"]) == (session_id, "the-last")


def test_a_thread_left_behind_is_told_of_with_its_session(lines: Lines) -> None:
    released = threading.Event()

    def hang(env: Counting, action: Move, **kwargs: Any) -> Seen:
        assert released.wait(60)
        return Seen()

    with serving(counting(step=hang), "fast", config={"step_timeout": 0.1}) as server:
        with server.connect() as ws:
            reset(ws)
            session_id = only_session(server)
            step(ws)
        eventually(lambda: lines.objects("cannot be stopped"))
        released.set()
        eventually(lambda: not server.server.hive.stuck)
    assert lines.objects("cannot be stopped")[0]["session_id"] == session_id


# What a line looks like.


def test_a_json_line_has_a_time_a_level_and_the_whole_traceback() -> None:
    try:
        raise ValueError("bad file \udc80\nwith two lines")
    except ValueError:
        failed = record("it %s", "failed", exc_info=sys.exc_info())
    (line,) = JsonFormatter(worker=3).format(failed).splitlines()
    found = json.loads(line)
    assert datetime.fromisoformat(found["ts"]).timestamp() == pytest.approx(failed.created, abs=0.001)
    assert found["ts"].endswith("Z")
    assert (found["level"], found["logger"], found["message"], found["worker"]) == ("warning", "a.game", "it failed", 3)
    assert "Traceback" in found["exception"]
    assert "with two lines" in found["exception"]
    assert not {"session_id", "episode_id"} & set(found)


def test_a_text_line_has_the_beginning_of_the_sessions_id_if_there_is_one() -> None:
    formatter = TextFormatter()
    assert formatter.format(record(session_id="12345678-9abc")).endswith("WARNING a.game: [12345678] hello")
    assert formatter.format(record()).endswith("WARNING a.game: hello")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("broken", [record("%d sheep", "two"), record("a %s", Unprintable())])
def test_a_message_that_does_not_fit_its_arguments_is_written_all_the_same(formatter: Any, broken: Any) -> None:
    assert re.search(r"(%d sheep|a %s) \(its arguments do not fit\)", formatter.format(broken))
    assert broken.args  # others may want them


# Streams that fail.


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_log_that_cannot_be_written_breaks_no_step(place: str, closed: bool, monkeypatch: Any) -> None:
    stream = Full()
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    handler = LogHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        with serving(PLACES[place], "fast") as server, server.connect() as ws:
            reset(ws)
            assert [step(ws)["data"]["observation"]["total"] for _ in range(3)] == [1, 2, 3]
    finally:
        logger.removeHandler(handler)
        logger.setLevel("NOTSET")


def test_logging_is_set_up_once_and_leaves_a_handler_that_is_there_alone() -> None:
    before = list(logging.getLogger().handlers)
    assert before, "the test runner has handlers of its own"
    try:
        set_up_logging("info", "json", 1)
        assert logging.getLogger().handlers == before
    finally:
        logging.captureWarnings(False)
        logging.getLogger("uvicorn.error").setLevel("NOTSET")


def test_a_call_under_a_tag_puts_back_the_one_before(lines: Lines) -> None:
    outer, inner = LogTag("outer"), LogTag("inner")
    outer.call(lambda: (inner.call(logger.info, "one"), logger.info("two")))
    logger.info("three")
    assert [each.get("session_id") for each in lines.objects("")] == ["inner", "outer", None]
