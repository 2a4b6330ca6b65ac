"""What a lane must do, whichever it is. `test_fast_lane.py` and `test_asgi_lane.py` both run all of it."""

from __future__ import annotations

import _thread
import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from fastapi import FastAPI, WebSocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from envhive import ConcurrencyConfig, Environment, create_app
from tests.support.envs import Counting, Move, Seen, async_counting, counting
from tests.support.servers import Lane, Running, ask, eventually, receive, reset, running, serving, step


class LaneContract:
    lane: ClassVar[Lane]

    @pytest.fixture
    def env(self) -> type[Counting]:
        return counting()

    @pytest.fixture
    def server(self, env: type[Counting]) -> Iterator[Running]:
        with serving(env, self.lane) as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def shared_server(cls) -> Iterator[Running]:
        with serving(counting(), cls.lane) as server:
            yield server

    @pytest.fixture
    def ws(self, shared_server: Running) -> Iterator[ClientConnection]:
        with shared_server.connect() as ws:
            yield ws

    # Replies.

    def test_reset_step_and_state_are_answered(self, ws: ClientConnection) -> None:
        first = reset(ws, seed=5, episode_id="e1", level="two", colour="red")
        assert first == {
            "type": "observation",
            "data": {
                "observation": {"metadata": {}, "total": 5, "thread": 0, "got": {"level": "two", "colour": "red"}},
                "reward": None,
                "done": False,
            },
        }
        second = step(ws, by=3)
        assert (second["data"]["observation"]["total"], second["data"]["reward"]) == (8, 3.0)
        assert ask(ws, {"type": "state"}) == {"type": "state", "data": {"episode_id": "e1", "step_count": 1}}

    def test_reset_needs_no_data(self, ws: ClientConnection) -> None:
        assert ask(ws, '{"type":"reset"}')["type"] == "observation"

    def test_metadata_stands_inside_and_beside_the_observation(self, ws: ClientConnection) -> None:
        data = step(ws, do="metadata")["data"]
        assert data["metadata"] == data["observation"]["metadata"] == {"note": "hello"}
        assert (data["reward"], data["done"]) == (True, True)

    def test_a_number_that_json_has_no_word_for_becomes_null(self, ws: ClientConnection) -> None:
        assert step(ws, do="nan")["data"]["reward"] is None

    def test_an_action_with_nan_reaches_the_environment_as_pythons_json_sends_it(self, server: Running) -> None:
        with server.connect() as ws:
            reset(ws)
            reply = ask(ws, '{"type": "step", "data": {"by": 1, "metadata": {"x": NaN}}}')
            assert reply["type"] == "observation"

    def test_state_is_empty_before_the_first_reset(self, ws: ClientConnection) -> None:
        assert ask(ws, {"type": "state"}) == {"type": "state", "data": {}}

    def test_keywords_that_reset_does_not_take_are_dropped(self) -> None:
        def plain_reset(self: Counting) -> Seen:
            return Seen(total=7)

        with serving(counting(reset=plain_reset), self.lane) as server, server.connect() as ws:
            assert reset(ws, seed=1, nonsense=2)["data"]["observation"]["total"] == 7

    def test_sessions_are_isolated(self, server: Running) -> None:
        with server.connect() as one, server.connect() as other:
            reset(one, seed=100)
            reset(other)
            step(one)
            assert step(other)["data"]["observation"]["total"] == 1
            assert step(one)["data"]["observation"]["total"] == 102

    # Bad input: a typed error, and the session goes on.

    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            ("not json", "INVALID_JSON"),
            ("", "INVALID_JSON"),
            ('{"type":', "INVALID_JSON"),
            ("[" * 100_000 + "]" * 100_000, "INVALID_JSON"),
            ("[1,2]", "VALIDATION_ERROR"),
            ("null", "VALIDATION_ERROR"),
            ('"step"', "VALIDATION_ERROR"),
            ("{}", "UNKNOWN_TYPE"),
            ('{"type":"jump"}', "UNKNOWN_TYPE"),
            ('{"type":7}', "UNKNOWN_TYPE"),
            ('{"type":null}', "UNKNOWN_TYPE"),
            ('{"type":"step"}', "VALIDATION_ERROR"),
            ('{"type":"step","data":null}', "VALIDATION_ERROR"),
            ('{"type":"step","data":[1]}', "VALIDATION_ERROR"),
            ('{"type":"step","data":{"by":"many"}}', "VALIDATION_ERROR"),
            ('{"type":"step","data":{"by":1,"unknown":2}}', "VALIDATION_ERROR"),
            ('{"type":"step","data":{"by":1},"extra":1}', "VALIDATION_ERROR"),
            ('{"type":"step","data":{"by":13}}', "VALIDATION_ERROR"),
            ('{"type":"reset","data":[]}', "VALIDATION_ERROR"),
            ('{"type":"state","data":{}}', "VALIDATION_ERROR"),
            ('{"type":"step","data":{"metadata":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}}", None),
            (b"\x00\x01", "INVALID_JSON"),
            (b'{"type":"state"}', "INVALID_JSON"),
        ],
    )
    def test_a_bad_frame_leaves_the_session_alive(self, ws: ClientConnection, frame: Any, code: str | None) -> None:
        reset(ws, seed=4)
        reply = ask(ws, frame)
        assert reply["type"] == "error"
        assert code is None or reply["data"]["code"] == code
        assert reply["data"]["message"]
        assert step(ws)["data"]["observation"]["total"] == 5

    def test_a_validation_error_carries_pydantics_list(self, ws: ClientConnection) -> None:
        errors = step(ws, by="many")["data"]["errors"]
        assert [(error["type"], error["loc"]) for error in errors] == [("int_parsing", ["by"])]

    def test_ten_thousand_frames_without_waiting_are_answered_in_order(self, server: Running) -> None:
        with server.connect(max_queue=None) as ws:
            reset(ws)
            for number in range(10_000):
                ws.send(f'{{"type":"step","data":{{"by":{2 * number}}}}}')
            rewards = [receive(ws)["data"]["reward"] for _ in range(10_000)]
        assert rewards == [2.0 * number for number in range(10_000)]

    def test_a_message_in_several_frames_is_one_message(self, ws: ClientConnection) -> None:
        ws.send(['{"type":', '"reset"', ',"data":{"seed":9}}'])
        assert receive(ws)["data"]["observation"]["total"] == 9

    def test_a_large_message_within_the_limit_is_taken(self, ws: ClientConnection) -> None:
        reset(ws)
        reply = step(ws, by=1, metadata={"padding": "x" * 3_000_000})
        assert reply["data"]["observation"]["total"] == 1

    def test_text_that_is_not_utf8_ends_the_connection_with_1007(self, server: Running) -> None:
        with server.connect() as ws:
            reset(ws)
            ws.socket.sendall(masked_frame(b'{"type":"\xff\xfe"}'))
            assert close_code(ws) == 1007
        server.wait_until_empty()

    def test_a_message_over_the_limit_ends_the_connection_with_1009(self, env: type[Counting]) -> None:
        with serving(env, self.lane, config={"max_message_size": 1_000_000}) as server:
            with server.connect() as ws:
                reset(ws)
                # Only the header of a 200 MB frame: it is refused before it is there to be buffered.
                ws.socket.sendall(b"\x81\xff" + (200_000_000).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 1000)
                assert close_code(ws) == 1009
            server.wait_until_empty()

    # Failures of the environment's own.

    def test_a_step_that_raises_is_an_execution_error_and_the_session_goes_on(
        self, ws: ClientConnection, caplog: pytest.LogCaptureFixture
    ) -> None:
        reset(ws)
        reply = step(ws, do="raise")
        assert reply == {"type": "error", "data": {"message": "the floor gave way", "code": "EXECUTION_ERROR"}}
        assert step(ws)["data"]["observation"]["total"] == 1
        assert "Traceback" in caplog.text

    @pytest.mark.parametrize(("deed", "name"), [("panic", "Panic: not an Exception"), ("miss", "KeyError: 'sword'")])
    def test_what_a_step_raises_is_told_by_its_name_where_its_words_say_little(
        self, ws: ClientConnection, deed: str, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        reset(ws)
        assert step(ws, do=deed)["data"]["message"].startswith(name)
        assert "Traceback" in caplog.text

    @pytest.mark.parametrize("deed", ["exit", "unserialisable"])
    def test_whatever_else_a_step_does_wrong_is_an_execution_error(self, ws: ClientConnection, deed: str) -> None:
        reset(ws)
        assert step(ws, do=deed)["data"]["code"] == "EXECUTION_ERROR"
        assert step(ws)["data"]["observation"]["total"] == 1

    def test_a_reset_that_raises_leaves_the_session_alive_and_close_is_called_once(
        self, server: Running, env: type[Counting]
    ) -> None:
        with server.connect() as ws:
            assert reset(ws, level="broken")["data"]["code"] == "EXECUTION_ERROR"
            assert reset(ws)["type"] == "observation"
        server.wait_until_empty()
        assert env.journal.count("close") == 1

    def test_a_state_that_is_a_method_by_mistake_is_an_execution_error(self) -> None:
        def state(self: Counting) -> None:
            return None

        with serving(counting(state=state), self.lane) as server, server.connect() as ws:
            reply = ask(ws, {"type": "state"})
            assert (reply["data"]["code"], "property" in reply["data"]["message"]) == ("EXECUTION_ERROR", True)
            assert reset(ws)["type"] == "observation"

    def test_a_factory_that_raises_is_said_and_the_slot_is_free_again(self) -> None:
        broken = threading.Event()
        broken.set()
        working = counting()

        def make() -> Counting:
            if broken.is_set():
                raise OSError("no display")
            return working()

        with serving(make, self.lane, max_concurrent_envs=1) as server:
            for talk_first in (True, False):
                with server.connect() as ws:
                    reply = reset(ws) if talk_first else receive(ws)
                    assert (reply["data"]["code"], reply["data"]["factory_name"]) == ("FACTORY_ERROR", "make")
                    assert "no display" in reply["data"]["message"]
                    assert close_code(ws) == 1011
            broken.clear()
            with server.connect() as ws:
                assert reset(ws)["type"] == "observation"

    @pytest.mark.parametrize("kind", [counting, async_counting, lambda: counting(BLOCKING=False)])
    @pytest.mark.parametrize("deed", ["surrogate", "panic"])
    def test_nothing_that_a_step_raises_keeps_the_session_from_answering_and_ending(
        self, kind: Any, deed: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("CRITICAL", logger="envhive.environment")  # the test runner cannot pass on the surrogate
        env = kind()
        with serving(env, self.lane, max_concurrent_envs=1) as server:
            with server.connect() as ws:
                reset(ws)
                assert step(ws, do=deed)["data"]["code"] == "EXECUTION_ERROR"
                assert ask(ws, '{"type":"\\ud800"}')["data"]["code"] == "UNKNOWN_TYPE"
                assert ask(ws, '{"type":"state","data":"\\ud800"}')["data"]["code"] == "VALIDATION_ERROR"
                assert step(ws)["data"]["observation"]["total"] == 1
            server.wait_until_empty()
            assert env.journal.count("close") == 1

    def test_a_thread_that_cannot_be_started_costs_no_place(
        self, env: type[Counting], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: Any) -> None:
            raise RuntimeError("can't start new thread")

        with serving(env, self.lane, max_concurrent_envs=1) as server:
            monkeypatch.setattr(_thread, "start_new_thread", refuse)  # `threading` keeps its own
            with server.connect() as ws:
                assert reset(ws)["data"]["code"] == "SESSION_ERROR"
            monkeypatch.undo()
            with server.connect() as ws:
                assert reset(ws)["type"] == "observation"

    # Where the code runs.

    def test_a_plain_environment_has_one_thread_for_everything(self, server: Running, env: type[Counting]) -> None:
        with server.connect() as ws:
            reset(ws)
            step(ws)
            ask(ws, {"type": "state"})
        server.wait_until_empty()
        assert env.journal.events() == ["make", "reset", "step", "state", "close"]
        assert len(env.journal.threads()) == 1

    def test_two_plain_environments_have_two_threads_and_wait_side_by_side(
        self, server: Running, env: type[Counting]
    ) -> None:
        with server.connect() as one, server.connect() as other:
            reset(one)
            reset(other)
            assert env.journal.threads(1).isdisjoint(env.journal.threads(2))

    def test_a_blocked_thread_blocks_nobody_else(self, server: Running) -> None:
        with server.connect() as slow, server.connect() as quick:
            reset(slow)
            reset(quick)
            slow.send('{"type":"step","data":{"seconds":1.0}}')
            begun = time.monotonic()
            step(quick)
            assert time.monotonic() - begun < 0.9
            assert receive(slow)["type"] == "observation"

    def test_coroutines_run_on_the_event_loop(self) -> None:
        env = async_counting()
        with serving(env, self.lane) as server, server.connect() as one, server.connect() as other:
            reset(one)
            reset(other)
            assert step(one, by=2)["data"]["observation"]["total"] == 2
            loop_threads = {thread for _, event, thread in env.journal.entries if event in ("reset", "step")}
            assert len(loop_threads) == 1

    def test_an_environment_that_never_blocks_runs_on_the_event_loop_altogether(self) -> None:
        env = counting(BLOCKING=False)
        with serving(env, self.lane) as server, server.connect() as one, server.connect() as other:
            reset(one)
            reset(other)
            assert env.journal.threads(1) == env.journal.threads(2)

    def test_environments_that_need_one_thread_for_all_get_it(self) -> None:
        env = counting(REQUIRES_SINGLE_THREAD_EXECUTOR=True)
        with serving(env, self.lane) as server, server.connect() as one, server.connect() as other:
            reset(one)
            reset(other)
            step(one)
            assert env.journal.threads(1) == env.journal.threads(2)

    # Capacity.

    def test_a_full_server_says_so_in_its_first_frame(self, env: type[Counting]) -> None:
        with serving(env, self.lane, max_concurrent_envs=2) as server:
            with server.connect() as one, server.connect() as other:
                reset(one)
                reset(other)
                for _ in range(20):  # the frame must survive the close, also when the client is talking
                    with server.connect() as third:
                        data = reset(third)["data"]
                        assert (data["code"], data["active_sessions"], data["max_sessions"]) == (
                            "CAPACITY_REACHED",
                            2,
                            2,
                        )
                        assert close_code(third) == 1013
                with server.connect() as silent:
                    assert receive(silent)["data"]["code"] == "CAPACITY_REACHED"
                    assert close_code(silent) == 1013
                with server.connect() as in_parts:
                    in_parts.send(['{"type":', '"reset"}'])
                    assert receive(in_parts)["data"]["code"] == "CAPACITY_REACHED"
                    assert close_code(in_parts) == 1013
            server.wait_until_empty()
            with server.connect() as ws:
                assert reset(ws)["type"] == "observation"

    def test_a_client_that_closes_and_comes_straight_back_finds_room(self, env: type[Counting]) -> None:
        with serving(env, self.lane, max_concurrent_envs=1) as server:
            for _ in range(30):
                with server.connect() as ws:
                    assert reset(ws)["type"] == "observation"
                    ws.send('{"type":"close"}')
                    assert close_code(ws) == 1000
            assert env.journal.count("make") == env.journal.count("close") == 30

    # The end of a session.

    def test_a_client_that_leaves_mid_step_has_its_environment_closed_once_after_the_step(
        self, server: Running, env: type[Counting]
    ) -> None:
        with server.connect() as ws:
            reset(ws)
            ws.send('{"type":"step","data":{"seconds":0.3}}')
            eventually(lambda: "step" in env.journal.events())
            ws.socket.shutdown(socket.SHUT_RDWR)
        server.wait_until_empty()
        assert env.journal.events() == ["make", "reset", "step", "close"]

    @pytest.mark.parametrize("kind", [counting, async_counting])
    def test_an_instance_that_has_a_close_of_its_own_is_closed_by_it(self, kind: Any) -> None:
        closed = threading.Event()

        def init(env: Any) -> None:
            Counting.__init__(env)
            env.close = closed.set

        with serving(kind(__init__=init, close=Environment.close), self.lane) as server:
            with server.connect() as ws:
                assert reset(ws)["type"] == "observation"
            server.wait_until_empty()
        assert closed.is_set()

    @pytest.mark.parametrize("kind", [counting, async_counting])
    @pytest.mark.parametrize("close", [Counting.close, Environment.close])
    def test_an_environment_is_gone_with_its_session_and_not_when_garbage_is_next_collected(
        self, kind: Any, close: Any
    ) -> None:
        made: list[weakref.ref[Any]] = []

        def init(env: Any) -> None:
            Counting.__init__(env)
            made.append(weakref.ref(env))

        with serving(kind(__init__=init, close=close), self.lane) as server:
            gc.collect()
            gc.disable()
            try:
                with server.connect() as ws:
                    assert reset(ws)["type"] == "observation"
                eventually(lambda: made[-1]() is None)
            finally:
                gc.enable()

    @pytest.mark.parametrize("kind", [counting, async_counting])
    def test_an_environment_with_nothing_to_close_ends_with_its_session(self, kind: Any) -> None:
        with serving(kind(close=Environment.close), self.lane, max_concurrent_envs=1) as server:
            for _ in range(3):
                with server.connect() as ws:
                    assert reset(ws)["type"] == "observation"
                server.wait_until_empty()

    def test_a_coroutine_is_cancelled_when_its_client_leaves(self) -> None:
        env = async_counting()
        with serving(env, self.lane) as server:
            with server.connect() as ws:
                reset(ws)
                ws.send('{"type":"step","data":{"seconds":60}}')
                ask_again = time.monotonic()
            server.wait_until_empty()
            assert time.monotonic() - ask_again < 10
            assert env.journal.count("close") == 1

    def test_an_idle_session_expires_and_the_client_sees_why(self, env: type[Counting]) -> None:
        limits = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.2)
        with serving(env, self.lane, concurrency_config=limits) as server:
            with server.connect() as ws:
                reset(ws)
                reply = receive(ws)
                assert reply["data"]["code"] == "SESSION_EXPIRED"
                with pytest.raises(ConnectionClosed) as closed:
                    ws.recv(timeout=10)
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, "idle" in closed.value.rcvd.reason) == (1001, True)
            server.wait_until_empty()
            assert env.journal.count("close") == 1

    def test_a_busy_session_is_never_idle(self, env: type[Counting]) -> None:
        limits = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.2)
        with serving(env, self.lane, concurrency_config=limits) as server, server.connect() as ws:
            reset(ws)
            assert step(ws, seconds=1.0)["type"] == "observation"

    def test_the_server_lets_running_steps_finish_and_closes_every_environment(self, env: type[Counting]) -> None:
        with serving(env, self.lane) as server, server.connect() as busy:
            reset(busy)
            with server.connect() as idle:
                reset(idle)
                busy.send('{"type":"step","data":{"seconds":0.5}}')
                eventually(lambda: "step" in env.journal.events(1))
                server.stop()
            assert env.journal.events(1) == ["make", "reset", "step", "close"]
            assert env.journal.events(2) == ["make", "reset", "close"]

    # Modes and other endpoints.

    def test_production_mode_refuses_reset_step_and_state(self, env: type[Counting]) -> None:
        with serving(env, self.lane, mode="production") as server, server.connect() as ws:
            for message in ({"type": "reset"}, {"type": "step", "data": {}}, {"type": "state"}):
                assert ask(ws, message)["data"]["code"] == "UNKNOWN_TYPE"
        assert "step" not in env.journal.events()

    def test_an_mcp_frame_to_an_environment_without_tools_gets_a_json_rpc_error(self, ws: ClientConnection) -> None:
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        reply = ask(ws, {"type": "mcp", "data": call})
        assert (reply["type"], reply["data"]["id"], reply["data"]["error"]["code"]) == ("mcp", 7, -32603)

    def test_the_mcp_socket_answers_each_frame_in_json_rpc(self, shared_server: Running) -> None:
        with shared_server.connect("/mcp") as ws:
            assert ask(ws, "nonsense")["error"]["code"] == -32700
            assert ask(ws, {"jsonrpc": "2.0", "id": 3, "method": "tools/list"})["error"]["code"] == -32603
            assert ask(ws, {"jsonrpc": "2.0", "id": 4, "method": "what"})["id"] == 4

    def test_attaching_to_an_unknown_session_is_a_session_error(self, server: Running) -> None:
        with server.connect("/ws?session_id=nobody") as ws:
            reply = receive(ws)
            assert (reply["data"]["code"], "nobody" in reply["data"]["message"]) == ("SESSION_ERROR", True)

    # What apps do with the app.

    def test_an_app_mounted_under_a_prefix_has_its_socket_there(self, env: type[Counting]) -> None:
        outer = FastAPI()
        inner = create_app(env, Move, Seen)
        outer.mount("/game", inner)
        with running(outer, self.lane) as server:
            with server.connect("/game/ws") as ws:
                assert reset(ws)["type"] == "observation"
            eventually(lambda: inner.state.envhive.active_sessions == 0)
            assert env.journal.count("close") == 1

    def test_a_removed_socket_route_is_removed(self, env: type[Counting]) -> None:
        app = create_app(env, Move, Seen)
        app.router.routes[:] = [route for route in app.routes if getattr(route, "path", "") != "/ws"]
        with running(app, self.lane) as server, pytest.raises(Exception, match=r"403|404"):
            server.connect()

    def test_a_middleware_that_watches_frames_sees_them(self, env: type[Counting]) -> None:
        seen: list[str] = []

        class Watch:
            def __init__(self, app: Any) -> None:
                self.app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                async def watched() -> Any:
                    message = await receive()
                    seen.append(message["type"])
                    return message

                await self.app(scope, watched if scope["type"] == "websocket" else receive, send)

        app = create_app(env, Move, Seen)
        app.add_middleware(Watch)
        with running(app, self.lane) as server, server.connect() as ws:
            assert reset(ws)["type"] == "observation"
        assert "websocket.receive" in seen

    def test_a_middleware_that_adds_headers_to_the_answer_is_heard(self, env: type[Counting]) -> None:
        class Label:
            def __init__(self, app: Any) -> None:
                self.app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                async def labelled(message: Any) -> None:
                    if message["type"] == "websocket.accept":
                        message = {**message, "headers": [*message.get("headers", ()), (b"x-label", b"hive")]}
                    await send(message)

                await self.app(scope, receive, labelled)

        app = create_app(env, Move, Seen)
        app.add_middleware(Label)
        with running(app, self.lane) as server, server.connect() as ws:
            assert ws.response is not None
            assert ws.response.headers["x-label"] == "hive"
            assert reset(ws)["type"] == "observation"

    def test_an_apps_own_socket_works_beside_ours(self, env: type[Counting]) -> None:
        app = create_app(env, Move, Seen)

        @app.websocket("/shout")
        async def shout(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.send_text((await websocket.receive_text()).upper())

        with running(app, self.lane) as server, server.connect("/shout") as ws:
            ws.send("hello")
            assert ws.recv(timeout=10) == "HELLO"


def masked_frame(payload: bytes) -> bytes:
    """A small text frame, as a client sends it, with any bytes in it."""
    return b"\x81" + bytes([0x80 | len(payload)]) + b"\0\0\0\0" + payload


def close_code(ws: ClientConnection) -> int:
    """How the server closes, after whatever it still had to say."""
    try:
        while True:
            ws.recv(timeout=10)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None, "the connection ended without a close frame"
        return closed.rcvd.code
