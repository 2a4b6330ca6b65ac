"""The coding environment: what it tells, what it holds, and what it survives."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envhive import GenericEnvClient
from envhive.bench.procfs import memory, tree
from envhive.envs.coding import CodingAction, CodingEnvironment, CodingObservation
from envhive.envs.coding.sandbox import NO_SANDBOX, SandboxLost, working_bubblewrap
from envhive.errors import EnvHiveError
from tests.support.descriptors import open_descriptors
from tests.support.processes import envhive_serve
from tests.support.servers import eventually
from tests.support.wild import is_alive

MEGABYTE = 1 << 20
Make = Callable[..., CodingEnvironment]

needs_bubblewrap = pytest.mark.skipif(not working_bubblewrap(), reason="bubblewrap (bwrap) is missing or does not work")


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[CodingEnvironment] = []

    def begun(**settings: Any) -> CodingEnvironment:
        made.append(CodingEnvironment(**settings))
        made[-1].reset(seed=1)
        return made[-1]

    yield begun
    for env in made:
        env.close()


@pytest.fixture(params=[pytest.param("auto", marks=needs_bubblewrap), "off"], ids=["bubblewrap", "bare"])
def sandbox(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def env(sandbox: str, make: Make) -> CodingEnvironment:
    return make(sandbox=sandbox)


def run(env: CodingEnvironment, code: str, tests: list[str] | None = None) -> CodingObservation:
    return env.step(CodingAction(code=code, tests=tests))


def processes() -> list[int]:
    """Living processes below this one."""
    return [pid for pid in tree(os.getpid()) if is_alive(pid)]


@contextlib.contextmanager
def nothing_left(env: CodingEnvironment) -> Iterator[None]:
    """See that a step leaves no process and no descriptor behind, and the environment at work."""
    assert run(env, "print('ready')").stdout == "ready\n"
    running, descriptors = len(processes()), open_descriptors()
    yield
    assert len(processes()) == running
    assert open_descriptors() <= descriptors  # those of other tests may go at any time
    assert run(env, "print('still here')").stdout == "still here\n"


# The contract.


@pytest.mark.parametrize("namespace", ["fresh", "persistent"])
def test_seeds_decide_in_either_namespace(make: Make, namespace: str) -> None:
    env = make(namespace=namespace)

    def drawn(seed: int) -> list[str]:
        env.reset(seed=seed)
        return [run(env, "import random\nprint(random.random())").stdout for _ in range(2)]

    first = drawn(7)
    assert first == drawn(7)
    assert first != drawn(8)
    assert (first[0] == first[1]) == (namespace == "fresh")


def test_a_random_policy_never_breaks_it(env: CodingEnvironment) -> None:
    dice = random.Random(3)
    words = [
        "import os",
        "os._exit(7)",
        "print('x')",
        "1 / 0",
        "raise SystemExit('no')",
        "def",
        "\0",
        "os.close(1)",
        "é",
    ]
    for _ in range(25):
        observation = run(env, "\n".join(dice.choices(words, k=3)), tests=["assert True"])
        assert observation.reward in (0.0, 1.0)
    assert run(env, "print('fine')").stdout == "fine\n"


def test_a_scripted_policy_gets_from_no_reward_to_all_of_it(make: Make) -> None:
    env = make()
    env.reset(seed=1, tests=["assert double(2) == 4", "assert double('a') == 'aa'"])
    attempts = ["double = None", "def double(x): return x + 2", "def double(x): return x * 2"]
    seen = [run(env, attempt) for attempt in attempts]
    assert [(each.reward, each.done) for each in seen] == [(0.0, False), (0.5, False), (1.0, True)]
    assert [outcome.message for outcome in seen[0].tests] == ["TypeError: 'NoneType' object is not callable"] * 2
    assert env.state.step_count == 3


# What it tells.


def test_output_and_exit_code_are_told_apart(env: CodingEnvironment) -> None:
    seen = run(env, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    assert (seen.stdout, seen.stderr, seen.exit_code, seen.reward) == ("out\n", "err\n", 3, None)


def test_a_traceback_names_the_step_and_none_of_our_own_lines(env: CodingEnvironment) -> None:
    seen = run(env, "x = 1\nboom()")
    assert seen.exit_code == 1
    assert seen.stderr == (
        "Traceback (most recent call last):\n"
        '  File "<step 1>", line 2, in <module>\n'
        "NameError: name 'boom' is not defined\n"
    )


def test_a_killed_process_is_told_by_its_signal(env: CodingEnvironment) -> None:
    assert run(env, "import os\nos.kill(os.getpid(), 11)").exit_code == -signal.SIGSEGV


def test_code_that_ends_its_process_fails_its_tests(env: CodingEnvironment) -> None:
    seen = run(env, "import os\nos._exit(0)", tests=["assert True"])
    assert (seen.exit_code, seen.reward, seen.tests[0].message) == (0, 0.0, "it was not run")


def test_variables_are_kept_where_they_are_meant_to(make: Make) -> None:
    fresh, persistent = make(), make(namespace="persistent")
    for env, wanted in ((fresh, 1), (persistent, 0)):
        run(env, "x = 5")
        assert run(env, "print(x)").exit_code == wanted


def test_a_limit_costs_the_variables_and_says_so(make: Make) -> None:
    env = make(namespace="persistent", time_limit_s=1.5)
    run(env, "x = 5")
    stuck = run(env, "while True: pass")
    assert (stuck.limit, stuck.namespace_lost, stuck.exit_code) == ("time", True, -9)
    after = run(env, "print('x' in globals())")
    assert (after.stdout, after.namespace_lost) == ("False\n", False)


def test_threads_of_a_persistent_namespace_rest_between_steps(make: Make) -> None:
    env = make(namespace="persistent")
    run(
        env,
        "import threading, time\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1; time.sleep(0.001)",
    )
    run(env, "threading.Thread(target=count, daemon=True).start()")
    eventually(lambda: [_state(pid) for pid in processes()].count("T") == 1)  # a stop takes a moment to reach threads
    assert run(env, "time.sleep(0.05); print(n > 1)").stdout == "True\n"


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(") ", 1)[1][0]


def test_files_stay_for_the_episode_and_no_longer(env: CodingEnvironment) -> None:
    run(env, "import os\nos.mkdir('d')\nopen('d/f', 'w').write('kept')")
    assert run(env, "print(open('d/f').read())").stdout == "kept\n"
    env.reset(seed=1)
    assert run(env, "import os\nprint(os.listdir('.'))").stdout == "[]\n"


def test_a_fork_that_runs_on_does_not_answer_for_the_step(env: CodingEnvironment) -> None:
    seen = run(env, "import os\npid = os.fork()\nif pid == 0: raise SystemExit(9)\nos.waitpid(pid, 0)\nprint('parent')")
    assert (seen.stdout, seen.exit_code) == ("parent\n", 0)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="namespace must be"):
        CodingEnvironment(namespace="shared")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sandbox must be"):
        CodingEnvironment(sandbox="on")  # type: ignore[arg-type]


# What it survives.


@pytest.mark.parametrize("namespace", ["fresh", "persistent"])
def test_hundreds_of_processes_are_gone_after_the_step(sandbox: str, make: Make, namespace: str) -> None:
    env = make(namespace=namespace, process_limit=1000, time_limit_s=60, sandbox=sandbox)
    spawn = (
        "import os, time\nfor _ in range(300):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(600)\n"
        "print('done')"
    )
    with nothing_left(env):
        seen = run(env, spawn)
        assert (seen.stdout, seen.limit, seen.namespace_lost) == ("done\n", "", False)


def test_too_many_processes_meet_the_limit(sandbox: str, make: Make) -> None:
    env = make(process_limit=20, time_limit_s=60, sandbox=sandbox)
    spawn = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    with nothing_left(env):
        seen = run(env, spawn)
        # Where the server is not root the kernel refuses the fork; root is exempt, and the keeper looks.
        assert seen.limit == "processes" or "BlockingIOError" in seen.stderr


def test_an_endless_loop_is_ended(make: Make, sandbox: str) -> None:
    env = make(time_limit_s=1.5, sandbox=sandbox)
    with nothing_left(env):
        seen = run(
            env, "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass", ["1"]
        )
        assert (seen.limit, seen.exit_code, seen.stdout, seen.reward) == ("time", -9, "on\n", 0.0)


def test_ten_gigabytes_of_output_are_read_and_thrown_away(env: CodingEnvironment) -> None:
    before = memory(processes())
    most = [0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            most[0] = max(most[0], memory(processes()))

    watcher = threading.Thread(target=watch)
    with nothing_left(env):
        watcher.start()
        try:
            seen = run(env, "import os\nchunk = b'x' * (1 << 20)\nfor _ in range(10 * 1024): os.write(1, chunk)\n")
        finally:
            over.set()
            watcher.join()
        assert seen.stdout == "x" * 65_536
        assert seen.truncated
        assert seen.limit in ("", "time")  # as fast as the machine is
    assert most[0] - before < 64 * MEGABYTE


def test_a_memory_blow_up_is_held(env: CodingEnvironment) -> None:
    with nothing_left(env):
        assert run(env, "x = bytearray(10 << 30)").limit == "memory"
        assert run(env, "x = []\nwhile True: x.append(bytearray(1 << 20))").limit == "memory"


def test_memory_is_held_for_all_processes_together(sandbox: str, make: Make) -> None:
    env = make(memory_limit_mb=200, time_limit_s=60, sandbox=sandbox)
    spawn = (
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        x = bytearray(b'x') * (100 << 20)\n        time.sleep(600)\n"
    )
    with nothing_left(env):
        seen = run(env, spawn + "time.sleep(600)")
        assert (seen.limit, seen.exit_code) == ("memory", -9)


def test_a_deleted_folder_is_there_again(env: CodingEnvironment) -> None:
    with nothing_left(env):
        assert run(env, "import os, shutil\nshutil.rmtree(os.getcwd())").exit_code == 0
        assert run(env, "open('f', 'w').write('x')\nimport os\nprint(os.listdir('.'))").stdout == "['f']\n"


def test_a_huge_file_is_refused(env: CodingEnvironment) -> None:
    with nothing_left(env):
        seen = run(env, "chunk = b'x' * (1 << 20)\nwith open('f', 'wb') as f:\n    while True: f.write(chunk)")
        assert seen.exit_code == 1
        assert "OSError" in seen.stderr
        run(env, "import os\nos.unlink('f')")


def test_its_own_environment_is_not_the_servers(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    fresh = CodingEnvironment(sandbox=sandbox)
    fresh.reset()
    try:
        assert "SECRET" not in run(fresh, "import os\nprint(os.environ)").stdout
    finally:
        fresh.close()


@pytest.mark.slow
@needs_bubblewrap
def test_the_servers_environment_variables_cannot_be_read() -> None:
    hunt = (
        "import glob\nfor path in glob.glob('/proc/[0-9]*/environ'):\n    try: print(open(path).read())\n"
        "    except OSError as error: print(error)\nprint(len(glob.glob('/proc/[0-9]*')), 'processes')"
    )
    serving = envhive_serve("coding", environ={"A_SECRET": "hunter2"})
    with serving as server, GenericEnvClient(server.url).sync() as client:
        client.reset()
        seen = client.step({"code": hunt}).observation["stdout"]
    assert "hunter2" not in seen
    assert "2 processes" in seen


@needs_bubblewrap
def test_the_network_cannot_be_reached(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        seen = run(make(), f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        assert (seen.exit_code, "refused" in seen.stderr) == (1, True)
        seen = run(make(), "import socket\nprint(socket.if_nameindex())")
        assert seen.stdout == "[(1, 'lo')]\n"


@needs_bubblewrap
def test_files_outside_its_folder_cannot_be_reached(make: Make, tmp_path: Any) -> None:
    (tmp_path / "secret").write_text("hunter2")
    env = make()
    assert "FileNotFoundError" in run(env, f"print(open({str(tmp_path / 'secret')!r}).read())").stderr
    for place in ("/x", "/usr/x", "/dev/x", "/keeper.py", "/etc/x"):
        assert "OSError" in run(env, f"open({place!r}, 'w')").stderr, place
    filled = run(env, "import os\nfor n in range(100): open(f'f{n}', 'wb').write(b'x' * (1 << 20))")
    assert "No space left" in filled.stderr


@needs_bubblewrap
def test_the_keeper_can_neither_be_killed_nor_stopped_nor_read(make: Make) -> None:
    env = make()
    attack = (
        "import os\nfor n in (9, 19, 15): os.kill(1, n)\n"
        "try: open('/proc/1/mem', 'rb')\nexcept OSError as error: print(error.errno)"
    )
    with nothing_left(env):
        assert run(env, attack).stdout == "13\n"


def test_a_killed_keeper_is_an_error_and_not_a_reward(make: Make) -> None:
    env = make(sandbox="off")
    with pytest.raises(SandboxLost, match="with its files and variables"):
        run(env, "import os\nos.kill(os.getppid(), 9)", tests=["assert True"])
    assert run(env, "print('again')").stdout == "again\n"


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", [pytest.param("required", marks=needs_bubblewrap), "off"])
def test_nothing_outlives_a_killed_server(sandbox: str) -> None:
    with envhive_serve("coding", "--set", f"sandbox={sandbox}", "--set", "namespace=persistent") as server:
        client = GenericEnvClient(server.url, resume=False).sync()
        client.reset()
        client.step({"code": "x = 1"})
        pids = [pid for pid in tree(server.process.pid) if pid != server.process.pid]
        assert len(pids) >= 2
        server.process.kill()
        assert server.process.wait(10) == -signal.SIGKILL
        eventually(lambda: not any(map(is_alive, pids)))
        with contextlib.suppress(EnvHiveError):  # there is nobody to say goodbye to
            client.close()


def test_closing_leaves_no_process_and_no_folder(env: CodingEnvironment) -> None:
    before = len(processes())
    folder = env._sandbox.folder
    run(env, "open('f', 'w')")
    env.close()
    env.close()
    assert len(processes()) < before
    assert not os.path.exists(folder)


# Without bubblewrap.


def test_without_bubblewrap_it_warns_and_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    working_bubblewrap.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            env = CodingEnvironment()
            CodingEnvironment()
        assert [record.getMessage() for record in caplog.records] == [f"{NO_SANDBOX} (it is not installed)"]
        assert env.reset().metadata == {"warning": NO_SANDBOX}
        assert env.reset().metadata == {}
        assert run(env, "print('runs')").stdout == "runs\n"
        assert not env.state.sandboxed
        env.close()
        with pytest.raises(RuntimeError, match="sandbox=required"):
            CodingEnvironment(sandbox="required")
    finally:
        working_bubblewrap.cache_clear()
