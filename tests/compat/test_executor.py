"""Running what an agent wrote. What OpenEnv 0.10.0 answers, with smolagents 1.26, was looked up once, by running it."""

from __future__ import annotations

import threading

import pytest

from envhive.compat.executor import PyExecutor


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("x = 1\nx + 1", "2"),
        ("print('hi')", "hi\n"),
        ("print('a'); 5", "a\n\n5"),
        ("def f(n):\n  return n*2\nf(4)", "8"),
        ("'text'", '"text"'),
        ("x = 7", "7"),
        ("x: int = 3", "3"),
        ("x = 3\nx += 4", "7"),
        ("a, b = 1, 2", "[1, 2]"),
        ("if True:\n    5", "5"),
        ("if False:\n    5\nelse:\n    y = 6", "6"),
        ("for i in range(3): i * 2", "4"),
        ("{1, 2}", "{1, 2}"),
        ("[1, (2, 3)]", "[1, [2, 3]]"),
        ("True", "true"),
        ("None", ""),
        ("", ""),
        ("y = print('q')", "q\n"),
        ("for i in range(3): print(i)", "0\n1\n2\n"),
        ("import math\nmath.pi", "3.141592653589793"),
        ("sqrt(ceil(8.5))", "3.0"),
        ("safe_json_dumps({1: {2}})", '"{\\"1\\": \\"{2}\\"}"'),
    ],
)
def test_what_it_prints_and_its_last_value_are_the_output(code: str, stdout: str) -> None:
    result = PyExecutor().run(code)
    assert (result.stdout, result.stderr, result.exit_code) == (stdout, "", 0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('no')", "ValueError: no"),
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("def", "SyntaxError: invalid syntax"),
        ("import os", "os may not be imported here; these may: collections,"),
        ("from os.path import join", "os.path may not be imported here"),
        ("import sys; print('e', file=sys.stderr)", "sys may not be imported"),
        ("open('/etc/passwd')", "name 'open' is not defined"),
        ("eval('1')", "name 'eval' is not defined"),
        ("nobody", "name 'nobody' is not defined"),
        ("raise SystemExit('enough')", "enough"),
        ("class A:\n    def __repr__(self): raise LookupError('mute')\nA()", "LookupError: mute"),
    ],
)
def test_what_it_raises_is_the_error(code: str, said: str) -> None:
    result = PyExecutor().run(code)
    assert said in result.stderr
    assert (result.stdout, result.exit_code) == ("", 1)


def test_an_error_shows_the_codes_own_lines_and_none_of_ours() -> None:
    stderr = PyExecutor().run("def half(n):\n    return n / 0\n\nhalf(3)").stderr
    assert "line 4, in <module>\n    half(3)\n" in stderr
    assert "line 2, in half\n    return n / 0\n" in stderr
    assert "executor.py" not in stderr


def test_a_function_of_an_earlier_run_is_not_shown_with_lines_of_this_one() -> None:
    executor = PyExecutor()
    executor.run("def half(n):\n    return n / 0")
    stderr = executor.run("x = 1\nhalf(3)").stderr
    assert "half(3)" in stderr
    assert 'File "<run 1>", line 2, in half\nZeroDivisionError' in stderr


def test_what_was_printed_before_an_error_is_kept() -> None:
    assert PyExecutor().run("print('before')\n1/0").stdout == "before\n"


def test_it_may_end_with_a_code_of_its_own() -> None:
    results = [PyExecutor().run(f"raise SystemExit({code})").exit_code for code in ("4", "", "'no'")]
    assert results == [4, 0, 1]


def test_names_stay_from_run_to_run_and_the_last_value_does_not() -> None:
    executor = PyExecutor()
    executor.run("count = 1\ncount + 41")
    assert executor.run("while count < 3: count += 1").stdout == ""
    assert executor.run("count").stdout == "3"
    assert PyExecutor().run("count").exit_code == 1


@pytest.mark.parametrize(
    ("allowed", "code"),
    [(["json"], "import json\njson.dumps([1])"), (["xml.*"], "import xml.dom\n1"), (["*"], "import os.path\n1")],
)
def test_more_may_be_allowed_to_be_imported(allowed: list[str], code: str) -> None:
    assert PyExecutor(allowed).run(code).exit_code == 0
    assert PyExecutor().run(code).exit_code == 1


def test_an_error_that_the_code_caught_can_be_formatted() -> None:
    result = PyExecutor().run("try:\n    1/0\nexcept ZeroDivisionError:\n    print(format_exc())")
    assert (result.exit_code, "ZeroDivisionError: division by zero" in result.stdout) == (0, True)


def test_sessions_on_other_threads_do_not_see_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    barrier = threading.Barrier(2)
    outputs: dict[str, str] = {}

    def session(name: str) -> None:
        executor = PyExecutor()
        executor._namespace["meet"] = barrier.wait
        outputs[name] = executor.run(f"meet(10)\nprint({name!r})\nn = meet(10)\nprint({name!r})\nNone").stdout

    threads = [threading.Thread(target=session, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {"one": "one\none\n", "two": "two\ntwo\n"}
    assert capsys.readouterr().out == ""
