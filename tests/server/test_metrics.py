"""Each number moves when the thing happens that it counts, and by no more than that."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from websockets.exceptions import InvalidStatus

from envhive import __version__
from envhive.errors import EnvironmentCrashedError
from envhive.server.auth import Tokens
from envhive.server.metrics import OUTCOMES, TIMED_STEPS, gate_refusals
from tests.server.test_processes import do, hive_for, opened, run
from tests.support.envs import Counting, Hanging, async_counting, counting
from tests.support.metrics import Scrape, get, scrape
from tests.support.servers import Lane, Running, ask, eventually, receive, reset, serving, serving_one, step
from tests.support.wild import Wild

BOTH_LANES = pytest.mark.parametrize("lane", ["fast", "asgi"])
LAYER_2: list[Any] = ["envhive.v1"]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(autouse=True)
def _fresh_gate() -> None:
    """A gate counts for the whole process, which may have served other tests before."""
    gate_refusals.clear()


def outcomes(found: Scrape, what: str = "steps") -> dict[str, float]:
    """Those that there were, and how many."""
    counts = {outcome: found.value(f"envhive_{what}_total", outcome=outcome) for outcome in OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}


def states(server: Running) -> dict[str, float]:
    """Those that sessions are in, and how many."""
    found = scrape(server)
    samples = found.families["envhive_sessions"].samples
    return {sample.labels["state"]: sample.value for sample in samples if sample.value}


def refusals(server: Running, reason: str, **headers: str) -> float:
    return scrape(server, **headers).value("envhive_refusals_total", reason=reason)


def ended(server: Running, reason: str) -> float:
    return scrape(server).value("envhive_sessions_ended_total", reason=reason)


def post(server: Running, path: str, body: Any) -> int:
    request = urllib.request.Request(
        f"{server.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


# What it looks like.


def test_every_series_has_its_labels_and_every_name_its_unit() -> None:
    with serving(counting(), "fast", env_name="game", max_concurrent_envs=7) as server, server.connect() as ws:
        reset(ws)
        found = scrape(server)
    assert found.value("envhive_build_info", version=__version__) == 1
    assert found.value("envhive_worker_up", worker="0") == 1
    assert found.value("envhive_sessions_limit", env="game") == 7
    of_the_server = {"envhive_build_info", "envhive_worker_up", "envhive_sessions_limit"}
    for sample in found.samples:
        if sample.name not in of_the_server:
            assert sample.labels["worker"] == "0", sample
            assert sample.name.startswith("process_") or sample.labels["env"] == "game", sample
    for family in found.families.values():
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
    assert found.value("process_resident_memory_bytes") > 1e6
    assert found.value("process_open_fds") > 3


def test_a_scraper_that_asks_for_openmetrics_gets_it() -> None:
    with serving(counting(), "fast") as server:
        text, content_type = get(server.url, Accept=OPENMETRICS)
        assert content_type.startswith("application/openmetrics-text")
        families = {family.name for family in openmetrics_families(text)}
        assert {"envhive_steps", "envhive_sessions", "envhive_step_duration_seconds"} <= families
        assert get(server.url)[1].startswith("text/plain")


# Resets and steps.


@BOTH_LANES
@pytest.mark.parametrize("make", [counting, async_counting])
@pytest.mark.parametrize("layer", [1, 2])
def test_steps_and_resets_are_counted_by_what_came_of_them(lane: Lane, make: Any, layer: int) -> None:
    with serving(make(), lane) as server:
        with server.connect(subprotocols=LAYER_2 if layer == 2 else None) as ws:
            if layer == 2:
                assert receive(ws)["type"] == "hello"
            reset(ws, level="broken")
            reset(ws)
            for _ in range(TIMED_STEPS + 1):
                step(ws, by=1)
            step(ws, by=13)
            step(ws, do="raise")
            step(ws, do="raise")
            ask(ws, {"type": "state"})
            ask(ws, "no json")
            found = scrape(server)
            assert outcomes(found) == {"ok": TIMED_STEPS + 1, "invalid": 1, "env_error": 2}
            assert outcomes(found, "resets") == {"ok": 1, "env_error": 1}
            assert found.value("envhive_invalid_messages_total") == 1
            assert found.value("envhive_step_duration_seconds_count") == 2
            assert found.value("envhive_step_duration_seconds_bucket", le="+Inf") == 2
            assert found.value("envhive_reset_duration_seconds_count") == 1
        server.wait_until_empty()
        assert outcomes(scrape(server)) == {"ok": TIMED_STEPS + 1, "invalid": 1, "env_error": 2}


def test_a_slow_step_is_found_in_its_bucket() -> None:
    with serving(async_counting(), "fast") as server, server.connect() as ws:
        reset(ws)
        step(ws, seconds=0.3)
        found = scrape(server)
        assert found.value("envhive_step_duration_seconds_bucket", le="0.25") == 0
        assert found.value("envhive_step_duration_seconds_bucket", le="300.0") == 1
        assert 0.3 <= found.value("envhive_step_duration_seconds_sum") < 60


def test_steps_over_http_are_counted_too() -> None:
    with serving(counting(), "fast") as server:
        assert post(server, "/reset", {"seed": 1}) == 200
        assert post(server, "/step", {"action": {"by": "x"}}) == 422
        found = scrape(server)
        assert outcomes(found, "resets") == {"ok": 1}
        assert outcomes(found) == {"invalid": 1}
        assert found.value("envhive_admissions_total") == 1


def test_a_step_whose_client_leaves_is_abandoned() -> None:
    with serving(async_counting(), "fast") as server:
        with server.connect() as ws:
            reset(ws)
            ws.send('{"type":"step","data":{"seconds":600}}')
            eventually(lambda: states(server) == {"busy": 1})
        server.wait_until_empty()
        assert outcomes(scrape(server)) == {"abandoned": 1}


def test_a_step_that_takes_too_long_is_one_time_out_and_its_thread_is_stuck_until_it_ends(hanging: Hanging) -> None:
    with serving(hanging.env, "fast", config={"step_timeout": 0.1}) as server:
        with server.connect() as ws:
            reset(ws)
            assert step(ws, do="hang")["data"]["code"] == "STEP_TIMEOUT"
        server.wait_until_empty()
        assert states(server) == {"stuck": 1}
        assert scrape(server).value("envhive_left_behind_total") == 1
        assert ended(server, "timeout") == 1
        hanging.released.set()
        eventually(lambda: states(server) == {})
        assert outcomes(scrape(server)) == {"timeout": 1}
        assert scrape(server).value("envhive_left_behind_total") == 1


def test_a_coroutine_that_takes_too_long_is_one_time_out() -> None:
    with serving(async_counting(), "fast", config={"step_timeout": 0.1}) as server, server.connect() as ws:
        reset(ws)
        assert step(ws, seconds=600)["data"]["code"] == "STEP_TIMEOUT"
        assert "data" in step(ws)
        assert outcomes(scrape(server)) == {"ok": 1, "timeout": 1}
        assert states(server) == {"idle": 1}


def test_a_crash_is_counted_once_and_a_process_that_is_told_to_end_is_none() -> None:
    async def scenario(hive: Any) -> None:
        session, _ = await opened(hive)
        for _ in range(3):
            with pytest.raises(EnvironmentCrashedError):
                await do(session, "leave")
        await session.ask_reset({})
        session.end()
        await session.wait_closed()
        assert hive.metrics.crashes == 1
        assert hive.metrics.steps.outcomes["env_error"] == 3

    run(hive_for(Wild), scenario)


# Sessions.


@BOTH_LANES
def test_a_full_servers_refusals_are_counted(lane: Lane) -> None:
    with serving_one(lane) as (server, _):
        with server.connect() as second:
            assert receive(second)["data"]["code"] == "CAPACITY_REACHED"
        found = scrape(server)
        assert found.value("envhive_refusals_total", reason="capacity") == 1
        assert found.value("envhive_refusals_total") == 1
        assert found.value("envhive_admissions_total") == 1
        assert states(server) == {"idle": 1}


@BOTH_LANES
def test_who_waits_in_line_is_counted_and_timed(lane: Lane) -> None:
    with serving_one(lane, admission_timeout=30.0) as (server, first), server.connect() as second:
        second.send('{"type":"reset"}')
        eventually(lambda: scrape(server).value("envhive_admission_waiting") == 1)
        first.close()
        receive(second)
        found = scrape(server)
        assert found.value("envhive_admission_waiting") == 0
        assert found.value("envhive_admission_wait_seconds_count") == 1
        assert 0 < found.value("envhive_admission_wait_seconds_sum") < 30
        assert found.value("envhive_refusals_total") == 0
        assert found.value("envhive_admissions_total") == 2


@BOTH_LANES
def test_who_has_waited_for_too_long_is_a_refusal(lane: Lane) -> None:
    with serving_one(lane, admission_timeout=0.05) as (server, _):
        with server.connect() as second:
            assert reset(second)["data"]["code"] == "CAPACITY_REACHED"
        assert refusals(server, "admission_timeout") == 1
        assert refusals(server, "capacity") == 0
        assert scrape(server).value("envhive_admission_wait_seconds_count") == 1


@BOTH_LANES
def test_a_session_waits_for_its_client_and_goes_on(lane: Lane) -> None:
    with serving(counting(), lane) as server:
        with server.connect(subprotocols=LAYER_2) as ws:
            hello = receive(ws)
            ws.socket.close()
        eventually(lambda: states(server) == {"detached": 1})
        path = f"/ws?session={hello['session_id']}"
        for token, resumed in (("wrong", False), (hello["resume_token"], True)):
            with server.connect(path, subprotocols=LAYER_2) as ws:
                ws.send(json.dumps({"type": "resume", "data": {"token": token}}))
                assert (receive(ws)["type"] == "hello") is resumed
                if resumed:
                    assert states(server) == {"idle": 1}
        found = scrape(server)
        assert found.value("envhive_resumes_total") == 1
        assert found.value("envhive_refusals_total", reason="session_not_found") == 1


def test_sessions_end_for_a_reason() -> None:
    with serving(counting(), "fast", config={"session_timeout": 0.2, "lease": 0.2}) as server:
        with server.connect() as ws:
            reset(ws)
        eventually(lambda: ended(server, "closed") == 1)
        with server.connect() as ws:
            reset(ws)
            assert receive(ws)["data"]["code"] == "SESSION_EXPIRED"
        eventually(lambda: ended(server, "expired") == 1)
    with serving(counting(), "fast", config={"lease": 0.2}) as server:
        with server.connect(subprotocols=LAYER_2) as ws:
            receive(ws)
            ws.socket.close()
        eventually(lambda: ended(server, "lease_over") == 1)


def test_an_environment_that_cannot_be_made_is_a_refusal() -> None:
    def broken(env: Counting) -> None:
        raise RuntimeError("no such level")

    with serving(counting(__init__=broken), "fast") as server, server.connect() as ws:
        assert receive(ws)["data"]["code"] == "FACTORY_ERROR"
        assert refusals(server, "factory") == 1
        assert ended(server, "not_opened") == 1


def test_a_server_that_drains_says_so_and_counts_whom_it_refuses() -> None:
    with serving(counting(), "fast") as server:
        assert scrape(server).value("envhive_draining") == 0
        assert post(server, "/drain", {}) == 200
        with server.connect() as ws:
            assert receive(ws)["data"]["code"] == "DRAINING"
        assert scrape(server).value("envhive_draining") == 1
        assert refusals(server, "draining") == 1


def test_the_event_loops_lag_is_looked_at_all_the_time() -> None:
    with serving(counting(), "fast", config={"ping_interval": 0.1}) as server:
        eventually(lambda: scrape(server).value("envhive_event_loop_lag_seconds_count") >= 2)


# At the gate.


@BOTH_LANES
def test_a_scraper_needs_a_token_and_who_has_none_is_counted(lane: Lane) -> None:
    tokens = Tokens.parse("--token", ["ada:correct-horse:1"])
    ada = {"Authorization": "Bearer correct-horse"}
    with serving(counting(), lane, config={"tokens": tokens}) as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(server.url)
        with pytest.raises(InvalidStatus):
            server.connect()
        with pytest.raises(InvalidStatus):
            server.connect(additional_headers=ada, origin="https://elsewhere.example")
        assert refusals(server, "unauthorized", **ada) == 2
        assert refusals(server, "origin", **ada) == 1
        with server.connect(additional_headers=ada) as first, server.connect(additional_headers=ada) as second:
            reset(first)
            assert receive(second)["data"]["code"] == "CAPACITY_REACHED"
        assert refusals(server, "quota", **ada) == 1


def test_a_worker_that_does_not_answer_is_shown_as_down() -> None:
    from envhive.server.exposition import write

    async def report() -> dict[str, Any]:
        hive = hive_for(Wild, isolation="thread")
        try:
            return hive.own_metrics()
        finally:
            await hive.shutdown()

    found = Scrape(write({0: None, 1: asyncio.run(report())}, "")[0].decode())
    assert [found.value("envhive_worker_up", worker=worker) for worker in "01"] == [0, 1]
    assert {s.labels["worker"] for s in found.families["envhive_steps"].samples} == {"1"}
