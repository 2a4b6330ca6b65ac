"""Each command once, small, against real servers on the loopback interface: sane figures, not fast ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from envhive.bench import procfs
from envhive.bench.records import Run, load_run, told_apart
from tests.bench import samples
from tests.integration.conftest import CACHE
from tests.support.metrics import scrape
from tests.support.processes import ENVHIVE, envhive_serve, plain_environ
from tests.support.servers import eventually

pytestmark = pytest.mark.integration

MORTAL = """
import os
from envhive import Action, Environment, Observation, State


class Mortal(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None):
        return Observation()

    def step(self, action):
        os._exit(3)

    @property
    def state(self):
        return State()
"""


GREEDY = """
from envhive import Action, Environment, Observation, State


class Greedy(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    alive = 0

    async def reset(self, seed=None, episode_id=None):
        Greedy.alive += 1
        if Greedy.alive > 6:
            raise MemoryError
        return Observation()

    async def step(self, action):
        return Observation()

    def close(self):
        Greedy.alive -= 1

    @property
    def state(self):
        return State()
"""


SHORT = """
from envhive import Action, Environment, Observation, State


class Short(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    async def reset(self, seed=None, episode_id=None):
        self.left = 3
        return Observation()

    async def step(self, action):
        if not self.left:
            raise RuntimeError("the episode is over")
        self.left -= 1
        return Observation(done=not self.left)

    @property
    def state(self):
        return State()
"""


def environ(**more: str) -> dict[str, str]:
    return plain_environ(ENVHIVE_PEER_CACHE=str(CACHE), **more)


def bench(folder: Path, *arguments: str, limit_s: float = 120, code: int = 0, **more: str) -> tuple[Run, str]:
    """Run a command that must end with this code; what it recorded, and what it printed."""
    done = subprocess.run(
        [ENVHIVE, "bench", *arguments, "--out", "run"],
        cwd=folder,
        env=environ(**more),
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert all(re.match(r"\d+/\d+ ", line) for line in done.stderr.splitlines()), done.stderr  # how far it is
    assert (folder / "run" / "report.html").exists()
    return load_run(folder / "run"), done.stdout


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    before = procfs.tree(os.getpid())
    yield
    assert procfs.tree(os.getpid()) == before


@pytest.mark.parametrize("mode", ["ws", "http"])
def test_a_storm_on_a_server_of_its_own(mode: str, tmp_path: Path) -> None:
    arguments = ("--sessions", "4,16", "--waits", "0.2", "--repetitions", "2", "--mode", mode, "--label", "here")
    run, printed = bench(tmp_path, "storm", "--serve", "benchmark", *arguments)
    assert [cell.sessions for cell in run.cells()] == [4, 4, 16, 16]
    for cell in run.cells():
        assert cell.success == 1
        assert cell.errors == {}
        assert 0.2 <= cell.step.p50 <= cell.whole.p50 <= cell.whole.p99 <= cell.wall_s + 0.01
        assert cell.concurrency <= cell.sessions
        assert cell.server_cpu_s is not None
    assert "Max batch" in printed
    assert "16" in printed
    assert (tmp_path / "run" / "max_batch.png").exists()


def test_a_storm_of_two_processes_on_a_running_server_that_is_too_small(tmp_path: Path) -> None:
    with envhive_serve("benchmark-async", "--max-sessions", "6") as server:
        arguments = ("--sessions", "12", "--waits", "0.5", "--repetitions", "1", "--processes", "2")
        run, printed = bench(tmp_path, "storm", "--url", server.url, *arguments, "--pid", str(server.process.pid))
    (cell,) = run.cells()
    assert cell.success == 0.5
    assert cell.errors == {"CAPACITY_REACHED": 6}
    assert cell.load_processes == 2
    assert cell.server_memory
    assert "none" in printed


@pytest.mark.parametrize("mode", ["ws", "http"])
def test_a_storm_steps_the_environment_that_it_has_reset_and_leaves_none_behind(mode: str, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(SHORT)  # which cannot be stepped before a reset
    with envhive_serve("short:Short", cwd=tmp_path) as server:
        arguments = ("--mode", mode, "--sessions", "8", "--repetitions", "1", "--action", "{}")
        run, _ = bench(tmp_path, "storm", "--url", server.url, *arguments)
        (cell,) = run.cells()
        assert (cell.success, cell.errors) == (1, {})
        with urllib.request.urlopen(f"{server.url}/sessions", timeout=20) as answer:
            assert json.load(answer) == []


def test_a_server_that_dies_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "mortal.py").write_text(MORTAL)
    arguments = ("--sessions", "4", "--repetitions", "2", "--action", "{}")
    run, printed = bench(tmp_path, "storm", "--serve", "mortal:Mortal", *arguments, code=1)
    assert [cell.success for cell in run.cells()] == [0, 0]
    assert all(cell.server_died and sum(cell.errors.values()) == 4 for cell in run.cells())
    assert "server died" in printed
    assert "The server died (it ended with code 3" in printed


def test_steps_due_at_a_server_that_died_are_not_forgotten(tmp_path: Path) -> None:
    (tmp_path / "mortal.py").write_text(MORTAL)
    arguments = ("--sessions", "4", "--rate", "40", "--seconds", "1", "--warm-up", "0", "--action", "{}")
    run, printed = bench(tmp_path, "steady", "--serve", "mortal:Mortal", *arguments, code=1)
    (window,) = run.windows()
    assert (window.success, window.lost) == (0, 4)
    assert window.unanswered == 40
    assert window.latency.largest >= 1
    assert "The server died (it ended with code 3)" in printed  # how, and not what it said at its start


def test_memory_that_runs_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    arguments = ("--start", "2", "--limit", "8", "--think", "0.1", "--seconds", "0.3", "--action", "{}")
    run, _ = bench(tmp_path, "knee", "--serve", "greedy:Greedy", *arguments, "--refinements", "0")
    (verdict,) = run.verdicts()
    assert (verdict.held, verdict.broke, verdict.resource) == (4, 8, "memory")


@pytest.mark.skipif(not procfs.available(), reason="there is no /proc here")
def test_another_process_is_not_taken_for_the_server(tmp_path: Path) -> None:
    with envhive_serve("benchmark-async") as server, subprocess.Popen(["sleep", "60"]) as idle:
        arguments = ("--sessions", "2", "--seconds", "0.3", "--warm-up", "0", "--pid", str(idle.pid))
        run, printed = bench(tmp_path, "steady", "--url", server.url, *arguments)
        idle.kill()
    (window,) = run.windows()
    assert window.cpu_us_per_step is None
    assert "it is not the server's" in printed


def test_an_address_that_does_not_speak_tls_is_told_from_one_where_nobody_is(tmp_path: Path) -> None:
    with envhive_serve("benchmark-async") as server:
        url = server.url.replace("http:", "https:")
        command = [ENVHIVE, "bench", "storm", "--url", url]
        done = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "does not speak TLS" in done.stderr


@pytest.mark.parametrize("named", [False, True], ids=["by its address", "by its process, too"])
def test_a_server_that_was_not_started_here_and_dies_ends_the_run(named: bool, tmp_path: Path) -> None:
    (tmp_path / "mortal.py").write_text(MORTAL)
    with envhive_serve("mortal:Mortal", cwd=tmp_path) as server:
        pid = ("--pid", str(server.process.pid)) if named else ()
        arguments = ("--sessions", "4", "--repetitions", "5", "--action", "{}", *pid)
        run, printed = bench(tmp_path, "storm", "--url", server.url, *arguments, code=1)
    (cell,) = run.cells()
    assert cell.server_died
    assert "the run ends with it" in printed


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL], ids=lambda number: signal.Signals(number).name)
def test_a_lab_that_is_killed_leaves_no_server_running(number: int, tmp_path: Path) -> None:
    command = [ENVHIVE, "bench", "storm", "--serve", "benchmark", "--sessions", "2", "--waits", "60", "--out", "run"]
    lab = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests themselves may run under nohup
    )
    deadline = time.monotonic() + 60
    started: list[int] = []
    while len(started) < 3 and time.monotonic() < deadline:  # the lab, its server, a load process
        time.sleep(0.05)
        started = procfs.tree(lab.pid)
    lab.send_signal(number)
    lab.wait(60)
    while any(map(procfs.is_running, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(procfs.is_running, started))


def test_a_lab_that_was_started_with_nohup_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    bench = [ENVHIVE, "bench", "storm", "--serve", "benchmark", "--sessions", "2", "--waits", "1", "--out", "run"]
    command = ["nohup", *bench, "--repetitions", "1"]
    lab = subprocess.Popen(command, cwd=tmp_path, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(procfs.tree(lab.pid)) < 3 and time.monotonic() < deadline:  # the lab, its server, a load process
        time.sleep(0.05)
    lab.send_signal(signal.SIGHUP)
    assert lab.wait(60) == 0
    assert load_run(tmp_path / "run").cells()[0].success == 1


def test_a_label_is_shown_as_it_is_whatever_it_means_to_others(tmp_path: Path) -> None:
    label = r"a[/b] [red]$\frac$"
    arguments = ("--sessions", "2", "--waits", "0", "--repetitions", "1", "--label", label)
    _, printed = bench(tmp_path, "storm", "--serve", "benchmark-async", *arguments)
    assert label in printed


@pytest.mark.parametrize("loop", [(), ("--rate", "200")], ids=["closed", "open"])
def test_an_episode_that_is_done_is_begun_anew(loop: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(SHORT)
    arguments = ("--sessions", "4", "--seconds", "0.6", "--warm-up", "0.2", "--action", "{}", *loop)
    run, _ = bench(tmp_path, "steady", "--serve", "short:Short", *arguments)
    (window,) = run.windows()
    assert (window.success, window.errors) == (1, {})
    assert window.steps > 4 * 3


@pytest.mark.parametrize("mode", ["ws", "http"])
def test_a_server_that_asks_for_a_token_gets_one(mode: str, tmp_path: Path) -> None:
    with envhive_serve("benchmark-async", "--token", "ada:a-long-secret") as server:
        arguments = (
            "storm",
            "--url",
            server.url,
            "--mode",
            mode,
            "--sessions",
            "4",
            "--waits",
            "0",
            "--repetitions",
            "1",
        )
        (tmp_path / "without").mkdir()
        run, printed = bench(tmp_path / "without", *arguments, code=1)
        assert run.cells()[0].errors == {"HTTP 401" if mode == "ws" else "UNAUTHORIZED": 4}
        assert "ENVHIVE_TOKEN" in printed
        run, _ = bench(tmp_path, *arguments, ENVHIVE_TOKEN="a-long-secret")
        assert run.cells()[0].success == 1


def test_a_bench_in_which_every_step_fails_says_why(tmp_path: Path) -> None:
    arguments = ("--sessions", "4", "--seconds", "0.3", "--warm-up", "0")
    run, printed = bench(tmp_path, "steady", "--serve", "echo", *arguments, code=1)
    (window,) = run.windows()
    assert (window.success, window.steps) == (0, 0)
    assert "message: Field required" in " ".join(printed.split())
    assert "--action" in printed


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    command = [ENVHIVE, "bench", "storm", "--serve", "benchmark-async", "--sessions", "4", "--waits", "0.3"]
    process = subprocess.Popen(
        [*command, "--repetitions", "100", "--out", "run"],
        cwd=tmp_path,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    results = tmp_path / "run" / "results.jsonl"
    deadline = time.monotonic() + 60
    while not results.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in printed
    assert "Max batch" in printed
    assert "Traceback" not in printed
    assert load_run(tmp_path / "run").cells()
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("times", [1, 3], ids=["once", "again and again"])
def test_ctrl_c_in_a_window_keeps_what_it_has_measured(times: int, tmp_path: Path) -> None:
    with envhive_serve("benchmark-async") as server:
        command = [ENVHIVE, "bench", "steady", "--url", server.url, "--pid", str(server.process.pid), "--out", "run"]
        options = ["--sessions", "4,8", "--seconds", "50", "--warm-up", "0", "--think", "0.05"]  # 80 steps a second
        process = subprocess.Popen(
            [*command, *options],
            cwd=tmp_path,
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        eventually(lambda: (scrape(server).value("envhive_steps_total") or 0) > 100, within=60)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in printed
    assert "cut short" in printed
    assert "Traceback" not in printed
    (window,) = load_run(tmp_path / "run").windows()
    assert window.cut_short
    assert 1 < window.seconds < 40
    assert window.success == 1
    assert 20 < window.steps / window.seconds < 90
    assert window.cpu_us_per_step


def test_steady_in_a_closed_loop(tmp_path: Path) -> None:
    run, _ = bench(
        tmp_path, "steady", "--serve", "benchmark", "--sessions", "2,8", "--seconds", "0.6", "--warm-up", "0.2"
    )
    assert [window.sessions for window in run.windows()] == [2, 8]
    for window in run.windows():
        assert window.success == 1
        assert window.opened == window.sessions
        assert window.steps > window.sessions
        assert 0 < window.latency.p50 <= window.latency.p99 <= window.latency.p999
        assert window.cpu_us_per_step is not None
        assert window.server_threads


def test_thinking_and_a_fixed_rate_set_the_pace(tmp_path: Path) -> None:
    with envhive_serve("benchmark-async") as server:
        common = ("--url", server.url, "--sessions", "10", "--seconds", "1", "--warm-up", "0.3")
        for name, arguments, expected in [("think", ("--think", "0.2"), 50), ("rate", ("--rate", "100"), 100)]:
            (tmp_path / name).mkdir()
            run, _ = bench(tmp_path / name, "steady", *common, *arguments)
            (window,) = run.windows()
            assert window.cpu_us_per_step is None  # the server's process was not named
            assert window.steps_per_s <= expected * 1.3
            assert window.unanswered == 0
        assert window.latency.count == 100  # every step that was due, not only those that were answered in time


def test_a_rate_that_the_server_cannot_keep_shows_as_latency(tmp_path: Path) -> None:
    with envhive_serve("benchmark-async") as server:
        arguments = ("--sessions", "2", "--rate", "40", "--seconds", "1", "--warm-up", "0")
        action = ("--action", '{"wait_seconds": 0.1}')  # two sessions can do 20 a second
        run, _ = bench(tmp_path, "steady", "--url", server.url, *arguments, *action)
    (window,) = run.windows()
    assert window.latency.count == 40
    assert window.latency.largest > 0.5  # of which the step itself is a fifth at most


def test_the_knee_of_a_server_with_few_places_is_its_limit(tmp_path: Path) -> None:
    with envhive_serve("benchmark-async", "--max-sessions", "5") as server:
        arguments = ("--start", "4", "--limit", "16", "--think", "0.1", "--seconds", "0.5", "--p99", "5")
        run, printed = bench(tmp_path, "knee", "--url", server.url, *arguments, "--refinements", "1")
    (verdict,) = run.verdicts()
    assert (verdict.held, verdict.resource) == (4, "session limit")
    assert "CAPACITY_REACHED" in printed


def test_runs_are_drawn_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        arguments = ("--sessions", "2", "--waits", "0", "--repetitions", "1", "--label", f"box {name}")
        bench(tmp_path / name, "storm", "--serve", "benchmark-async", *arguments)
    command = [ENVHIVE, "bench", "plot", "one/run", "two/run", "--out", "both", "--label", "renamed"]
    done = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "both" / "report.html").read_text()
    assert "renamed" in page
    assert "box two" in page
    assert "box one" not in page.split("<img")[0].replace("&#x27;box one&#x27;", "")
    command = [ENVHIVE, "bench", "plot", "one/run", "--out", "two/run"]
    done = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, "of another run" in done.stderr) == (2, True)


def test_runs_of_one_name_are_told_apart_by_their_folders() -> None:
    runs = [Run(samples.info(label=label), []) for label in ("here", "here", "there")]
    folders = [Path("a/one"), Path("a/two"), Path("three")]
    assert [run.info.label for run in told_apart(runs, folders)] == ["here (one)", "here (two)", "there"]
    folders = [Path("a/one"), Path("b/one"), Path("three")]
    assert [run.info.label for run in told_apart(runs, folders)] == ["here (one)", "here (one) #2", "there"]


@pytest.mark.alone
@pytest.mark.skipif(not procfs.available(), reason="there is no /proc here")
def test_a_quick_comparison_with_the_peer(tmp_path: Path) -> None:
    run, printed = bench(
        tmp_path, "compare", "--peer", "openenv", "--quick", "--sessions", "8", "--seconds", "0.5", limit_s=1500
    )
    found = {(figure.server, figure.metric) for figure in run.figures()}
    for server in ("openenv sync", "EnvHive sync", "openenv async", "EnvHive async", "bare picows"):
        for metric in ("CPU per step, 8 sessions", "steps/s, 8 sessions", "memory per idle session", "ready after"):
            assert (server, metric) in found
    assert all(figure.value > 0 for figure in run.figures() if figure.metric != "memory per idle session")
    assert "ours/peer" in printed
    assert (tmp_path / "run" / "beside_the_peer.png").exists()
