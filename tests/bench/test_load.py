"""The parts of the load generator that need no environment: windows, alarms, kinds of errors."""

from __future__ import annotations

import asyncio
import errno

import pytest

from envhive.bench.alarm import Alarm
from envhive.bench.dial import Dialer, Said, kind_of
from envhive.bench.jobs import Drive, Open, Progress, Storm, clock, decode_answer, encode_answer, pack, unpack
from envhive.bench.jobs import durations as some
from envhive.bench.pacing import Household, Window
from envhive.bench.storming import HttpRequests, storm


def window(rate: float | None = None) -> Window:
    return Window(Drive("{}", warm_up_at=9.0, begin_at=10.0, seconds=1.0, rate=rate))


def test_in_the_open_loop_a_step_counts_for_the_window_it_was_due_in_however_late_it_is_answered() -> None:
    measured = window(rate=10)
    measured.answered(9.9, 10.5, None)  # due in the warm-up
    measured.answered(10.9, 14.0, None)
    measured.answered(10.2, 10.3, None)
    assert measured.well == 2
    assert list(measured.latencies) == pytest.approx([3.1, 0.1])


def test_throughput_is_what_is_answered_in_the_window_as_the_cpu_time_is_what_is_spent_in_it() -> None:
    measured = window(rate=10)
    measured.answered(9.1, 10.5, None)  # of the backlog
    measured.answered(9.1, 9.9, None)
    measured.answered(10.2, 10.3, None)
    measured.answered(10.4, 11.3, None)
    measured.answered(10.4, 10.6, "EXECUTION_ERROR")
    assert measured.steps == 2


def test_in_the_closed_loop_a_stall_that_outlasts_the_window_is_not_left_out() -> None:
    measured = window()
    measured.answered(9.5, 12.0, None)
    assert (measured.steps, measured.well) == (0, 1)
    assert list(measured.latencies) == pytest.approx([2.5])
    measured.answered(11.5, 12.5, None)  # after the window
    measured.answered(9.0, 9.5, None)  # before it
    assert len(measured.latencies) == 1


def test_an_error_is_a_step_that_was_answered_badly() -> None:
    measured = window()
    measured.answered(10.1, 10.2, "EXECUTION_ERROR")
    measured.answered(10.2, 10.3, None)
    assert (measured.steps, measured.well, measured.failed) == (1, 1, 1)
    assert dict(measured.errors) == {"EXECUTION_ERROR": 1}


def test_an_alarm_rings_in_time_and_again() -> None:
    async def ring_thrice() -> list[float]:
        late: list[float] = []
        done = asyncio.Event()
        due = clock() + 0.002

        def ring() -> None:
            nonlocal due
            late.append(clock() - due)
            due = clock() + 0.002
            alarm.set(due) if len(late) < 3 else done.set()

        with Alarm(ring) as alarm:
            alarm.set(due)
            await asyncio.wait_for(done.wait(), 5)
        return late

    assert min(asyncio.run(ring_thrice())) >= 0


def test_an_alarm_for_the_past_rings_at_once() -> None:
    async def ring() -> None:
        rang = asyncio.Event()
        with Alarm(rang.set) as alarm:
            alarm.set(0.0)
            await asyncio.wait_for(rang.wait(), 5)

    asyncio.run(ring())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "refused"),
        (ConnectionResetError(), "reset by the server"),
        (OSError(errno.EADDRNOTAVAIL, "none"), "no port left here"),
        (OSError(errno.EMFILE, "none"), "no file descriptor left here"),
        (TimeoutError(), "timed out"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_errors_are_counted_by_kind(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_replies_are_told_by_their_code_and_whether_the_episode_is_done() -> None:
    said = Said()
    assert said.read(b'{"type":"observation","data":{"observation":{"done":true}}}') == (None, False)
    assert said.read(b'{"type":"observation","data":{"observation":{},"done":true}}') == (None, True)
    assert said.read(b'{"type":"observation","data":{"done":null}}') == (None, False)
    assert said.read(b'{"type":"error","data":{"code":"CAPACITY_REACHED"}}') == ("CAPACITY_REACHED", False)
    assert said.read(b'{"type":"error","data":{}}') == ("error", False)
    assert said.read(b"[1]") == ("reply makes no sense", False)
    assert said.read(b'{"type":"state","data":{}}') == ("reply makes no sense", False)


def test_the_servers_first_words_for_each_kind_of_error_are_kept() -> None:
    said = Said()
    for field in ("by", "how"):
        problem = f'{{"loc": ["{field}"], "msg": "Field required"}}'
        said.read(f'{{"type":"error","data":{{"code":"X","message":"No","errors":[{problem}]}}}}'.encode())
    assert said.words == {"X": "No; by: Field required"}


def test_errors_over_http_have_the_servers_code_and_words() -> None:
    said = Said()
    full = b'{"detail":"Server at capacity","code":"CAPACITY_REACHED","outcome":"infra_error"}'
    wrong = b'{"detail":[{"type":"missing","loc":["body","action"],"msg":"Field required"}],"code":"VALIDATION_ERROR"}'
    assert said.read_http(503, full) == "CAPACITY_REACHED"
    assert said.read_http(422, wrong) == "VALIDATION_ERROR"
    assert said.read_http(422, wrong.replace(b',"code":"VALIDATION_ERROR"', b"")) == "HTTP 422"
    assert said.read_http(502, b"<html>\xff") == "HTTP 502"
    assert said.words["CAPACITY_REACHED"] == "Server at capacity"
    assert "body: action: Field required" in said.words["VALIDATION_ERROR"]


def test_requests_over_http_go_below_the_servers_prefix() -> None:
    requests = HttpRequests(Dialer("http://host:80/echo", []), '{"message": "ü"}')
    assert requests.reset.startswith(b"POST /echo/reset HTTP/1.1\r\nHost: host:80\r\n")
    head, body = requests.step(None).split(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


@pytest.mark.parametrize(
    ("session", "asked"),
    [
        (None, [("/reset", None), ("/step", None)]),
        ("s-1", [("/reset", None), ("/step", "s-1"), ("/close", "s-1")]),
    ],
)
def test_over_http_a_session_that_the_server_names_is_kept_and_closed(
    session: str | None, asked: list[tuple[str, str | None]]
) -> None:
    seen: list[tuple[str, str | None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode().splitlines()
            headers = dict(line.lower().split(": ") for line in lines if line)
            await reader.readexactly(int(headers["content-length"]))
            seen.append((first.split()[1], headers.get("x-session-id")))
            name = f"x-session-id: {session}\r\n" if session is not None else ""
            writer.write(f"HTTP/1.1 200 OK\r\n{name}Content-Length: 2\r\n\r\n{{}}".encode())
            if seen[-1][0] == asked[-1][0]:
                break
        writer.close()

    async def visit() -> tuple[int, dict[str, int]]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            stormed = await storm(Storm(url, 1, "{}", "http", clock(), timeout_s=30), lambda done, failed: None)
        return len(unpack(stormed.whole)), stormed.errors

    assert asyncio.run(visit()) == (1, {})
    assert seen == asked


def test_durations_and_answers_survive_the_way_between_processes() -> None:
    values = some()
    values.extend([0.5, 2.0])
    assert list(unpack(pack(values))) == [0.5, 2.0]
    assert decode_answer(encode_answer(Progress(3, 1))) == Progress(3, 1)


def test_a_server_that_hangs_up_before_the_handshake_is_counted_at_once() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def visit() -> tuple[dict[str, int], dict[str, int]]:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            stormed = await storm(Storm(url, 3, "{}", "ws", clock(), timeout_s=30), lambda done, failed: None)
            opened = await Household().open(Open(url, 3, 3, timeout_s=30), lambda done, failed: None)
        return stormed.errors, opened.errors

    assert asyncio.run(visit()) == ({"reset by the server": 3}, {"reset by the server": 3})
