"""`EnvClient` against real servers: results, types, errors, pairing, reconnecting and closing."""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from pydantic import BaseModel, Field

from envhive import (
    Action,
    ConcurrencyConfig,
    EnvClient,
    Environment,
    GenericEnvClient,
    MCPToolClient,
    Observation,
    State,
    StepResult,
)
from envhive.errors import (
    ConnectError,
    ConnectionLostError,
    EnvHiveError,
    EnvironmentFactoryError,
    ExecutionError,
    InvalidMessageError,
    MessageTooLargeError,
    RequestTimeoutError,
    SessionCapacityError,
    SessionError,
    SessionExpiredError,
    StepTimeoutError,
)
from tests.client.gates import LAYER_1, Gate, ServerProcess
from tests.client.peers import Peer, close_frame, frame, observation, peer_server
from tests.support.envs import Counting, Hanging, Move, Seen, async_counting, counting
from tests.support.servers import Lane, Running, eventually, serving


class CountingClient(EnvClient[Move, Seen, State]): ...


class Scalar:
    """What numpy's numbers and arrays look like to a serializer."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def tolist(self) -> Any:
        return self._value


def repeating(**attributes: Any) -> type[Counting]:
    """An environment that tells in its observation what was in the action."""

    def step(env: Counting, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        free = {name: repr(value) for name, value in action.metadata.items()}
        return Seen(got={"by": action.by, "seconds": repr(action.seconds), "metadata": free})

    return counting(step=step, **attributes)


NUMBERS_WITHOUT_A_WORD: Final = pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])


def play_once(action: Any) -> dict[str, Any]:
    """What reaches an environment of an action."""

    async def go(url: str) -> dict[str, Any]:
        async with GenericEnvClient(url) as client:
            await client.reset()
            got: dict[str, Any] = (await client.step(action)).observation["got"]
            return got

    with serving(repeating(), "fast") as server:
        return asyncio.run(go(server.url))


# Connecting.


def test_a_client_connects_when_it_is_first_used_and_not_before(server: Running) -> None:
    async def go() -> None:
        client = GenericEnvClient(server.url)
        assert server.server.active_sessions == 0
        await client.reset()
        assert server.server.active_sessions == 1
        await client.close()

    asyncio.run(go())
    server.wait_until_empty()


def test_the_first_use_may_be_state_or_step(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            assert await client.state() == {}
        async with GenericEnvClient(server.url) as client:
            assert (await client.step({"do": "metadata"})).done

    asyncio.run(go())


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_that_is_none_is_refused_before_the_step_runs(
    server: Running, env: type[Counting], seconds: float
) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            with pytest.raises(ValueError, match="timeout_s"):
                await client.step({}, timeout_s=seconds)

    asyncio.run(go())
    assert env.journal.count("step") == 0


class Letter(Action):
    to: str = Field(alias="class")


class Mail(Observation):
    sender: str = Field("", alias="from")


class Post(Environment[Letter, Mail, State]):
    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Mail:
        return Mail(**{"from": "the post"})

    def step(self, action: Letter, timeout_s: float | None = None, **kwargs: Any) -> Mail:
        return Mail(**{"from": action.to})

    @property
    def state(self) -> State:
        return State()


class PostClient(EnvClient[Letter, Mail, State]): ...


@pytest.mark.parametrize("action", [Letter(**{"class": "b"}), {"class": "b"}], ids=["model", "dict"])
def test_fields_with_aliases_arrive(action: Any) -> None:
    async def go(url: str) -> None:
        async with PostClient(url) as client:
            assert (await client.reset()).observation.sender == "the post"
            assert (await client.step(action)).observation.sender == "b"

    with serving(Post, "fast", action_cls=Letter, observation_cls=Mail) as server:
        asyncio.run(go(server.url))


def test_a_closed_client_steps_in_no_other_environment_until_it_is_reset(server: Running, env: type[Counting]) -> None:
    async def go() -> None:
        client = GenericEnvClient(server.url)
        await client.reset()
        await client.close()
        for ask in (lambda: client.step({}), client.state):
            with pytest.raises(ConnectionLostError, match="The client was closed"):
                await ask()
        assert env.journal.count("make") == 1
        assert (await client.reset()).observation["total"] == 0
        await client.step({})
        await client.close()

    asyncio.run(go())


def test_many_first_calls_at_once_open_one_session(server: Running, env: type[Counting]) -> None:
    async def go() -> None:
        client = GenericEnvClient(server.url)
        await asyncio.gather(*(client.state() for _ in range(20)))
        await client.close()

    asyncio.run(go())
    assert env.journal.count("make") == 1


def test_a_context_manager_connects_at_once_and_ends_the_session_at_its_end(
    server: Running, env: type[Counting]
) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            assert isinstance(client, GenericEnvClient)
            await asyncio.to_thread(eventually, lambda: server.server.active_sessions == 1)
        assert server.server.active_sessions == 0

    asyncio.run(go())
    assert env.journal.count("close") == 1


def test_an_error_inside_the_context_manager_is_not_swallowed_and_the_session_ends(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(go())
    server.wait_until_empty()


def test_connect_may_be_called_twice_and_gives_the_client(server: Running, env: type[Counting]) -> None:
    async def go() -> None:
        client = GenericEnvClient(server.url)
        assert await client.connect() is client
        assert await client.connect() is client
        await client.close()

    asyncio.run(go())
    assert env.journal.count("make") == 1


def test_close_may_be_called_twice_and_before_anything_else(server: Running) -> None:
    async def go() -> None:
        client = GenericEnvClient(server.url)
        await client.close()
        await client.reset()
        await client.close()
        await client.close()
        await client.disconnect()

    asyncio.run(go())


def test_a_closed_client_can_be_reset_into_a_new_session(server: Running, env: type[Counting]) -> None:
    async def go() -> None:
        client = GenericEnvClient(server.url)
        await client.reset()
        await client.close()
        await client.reset(seed=5)
        assert (await client.step({"by": 2})).observation["total"] == 7
        await client.close()

    asyncio.run(go())
    assert env.journal.count("make") == env.journal.count("close") == 2


def test_a_plain_with_is_a_type_error_that_says_what_to_do() -> None:
    expected = pytest.raises(TypeError, match=r"CountingClient.*`async with`.*`with client\.sync\(\) as env`")
    with expected, CountingClient("http://127.0.0.1:1"):
        pass


@pytest.mark.parametrize("client_cls", [EnvClient, GenericEnvClient, MCPToolClient])
@pytest.mark.parametrize("mode", ["simulation", "Production", None])
def test_a_mode_may_be_said_as_openenvs_clients_take_it(client_cls: Any, mode: str | None) -> None:
    assert client_cls(base_url="http://localhost:8000", mode=mode).base_url == "http://localhost:8000"


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be simulation or production, not 'party'"):
        GenericEnvClient("http://localhost:8000", mode="party")


def test_the_base_url_is_what_was_given() -> None:
    assert GenericEnvClient("http://127.0.0.1:8000/").base_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("prefix", ["http://", "ws://", ""])
@pytest.mark.parametrize("suffix", ["", "/", "/ws"])
def test_every_way_to_write_the_address_leads_to_the_server(server: Running, prefix: str, suffix: str) -> None:
    async def go() -> None:
        async with GenericEnvClient(f"{prefix}127.0.0.1:{server.port}{suffix}") as client:
            assert (await client.reset(seed=3)).observation["total"] == 3

    asyncio.run(go())


def test_headers_reach_the_server() -> None:
    seen: list[dict[str, str]] = []

    def behave(peer: Peer) -> None:
        seen.append(peer.shake_hands())
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url, headers={"Authorization": "Bearer t0ken", "X-Run": "7"}) as client:
            await client.reset()

    with peer_server(behave, shake_hands=False) as peers:
        asyncio.run(go(peers.url))
    assert (seen[0]["authorization"], seen[0]["x-run"]) == ("Bearer t0ken", "7")


def test_a_header_cannot_smuggle_in_another() -> None:
    seen: list[dict[str, str]] = []

    def behave(peer: Peer) -> None:
        seen.append(peer.shake_hands())
        peer.answer_everything()

    async def go(url: str) -> None:
        with suppress(ValueError, ConnectError):
            async with GenericEnvClient(url, headers={"X-Run": "7\r\nX-Admin: yes"}):
                pass

    with peer_server(behave, shake_hands=False) as peers:
        asyncio.run(go(peers.url))
    assert not any("x-admin" in headers for headers in seen)


def test_a_header_that_is_no_text_is_a_mistake_that_is_told_at_once() -> None:
    headers: Any = {"X-Run": 7}

    async def go(url: str) -> None:
        async with GenericEnvClient(url, headers=headers, connect_timeout_s=1):
            pass

    with peer_server(Peer.answer_everything) as peers, pytest.raises((TypeError, ValueError)):
        asyncio.run(go(peers.url))


def test_a_client_works_over_any_asgi_server(env: type[Counting]) -> None:
    async def go(url: str) -> None:
        async with CountingClient(url) as client:
            await client.reset(seed=1)
            assert (await client.step(Move(by=4))).observation.total == 5
            assert (await client.state()).step_count == 1

    with serving(env, "asgi") as server:
        asyncio.run(go(server.url))


TWO_LOOPS: Final = """
import asyncio, sys
from envhive import GenericEnvClient

async def reset_and_close():
    result = await client.reset(seed=4)
    await client.close()
    return result

client = GenericEnvClient(sys.argv[1], message_timeout_s=2)
print(asyncio.run(client.reset(seed=3)).observation["total"])
print(asyncio.run(reset_and_close()).observation["total"])
"""


def test_a_client_can_be_used_on_a_second_event_loop_after_the_first_has_ended(server: Running) -> None:
    script = [sys.executable, "-c", TWO_LOOPS, server.url]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "3\n4\n")


BATCHES: Final = """
import asyncio, sys
from envhive import GenericEnvClient

async def play():
    return [(await client.step({"by": 1})).observation["total"] for _ in range(2)]

client = GenericEnvClient(sys.argv[1], message_timeout_s=20)
asyncio.run(client.reset(seed=0))
for _ in range(3):
    print(asyncio.run(play()))
asyncio.run(client.close())
"""


def test_an_episode_goes_on_over_event_loops_that_end_and_takes_one_place() -> None:
    with serving(counting(), "fast", max_concurrent_envs=1) as server:
        script = [sys.executable, "-c", BATCHES, server.url]
        ended = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (0, "[1, 2]\n[3, 4]\n[5, 6]\n"), ended.stderr
        server.wait_until_empty()


FORGETFUL: Final = """
import asyncio, gc, sys, threading
from envhive import GenericEnvClient

def play():
    async def begin():
        await GenericEnvClient(sys.argv[1]).reset()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    if sys.argv[2] == "closed":
        loop.close()

if sys.argv[3] == "elsewhere":
    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
else:
    play()
gc.collect()
"""


@pytest.mark.parametrize("loop", ["closed", "open"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_client_that_is_forgotten_with_its_loop_goes_quietly(server: Running, loop: str, where: str) -> None:
    command = [sys.executable, "-c", FORGETFUL, server.url, loop, where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_of_a_running_loop_refuses_another_loop(server: Running) -> None:
    async def elsewhere(client: GenericEnvClient) -> None:
        await client.reset()

    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            with pytest.raises(SessionError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere(client))
            assert (await client.reset(seed=2)).observation["total"] == 2

    asyncio.run(go())


# Results, in dicts and in types.


def test_a_generic_client_speaks_in_dicts(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            first = await client.reset(seed=5, episode_id="e1", level="two", colour="red")
            assert first == StepResult(
                observation={"metadata": {}, "total": 5, "thread": 0, "got": {"level": "two", "colour": "red"}},
                reward=None,
                done=False,
                metadata=None,
            )
            second = await client.step({"by": 3})
            assert (second.observation["total"], second.reward, second.done) == (8, 3.0, False)
            assert await client.state() == {"episode_id": "e1", "step_count": 1}

    asyncio.run(go())


def test_a_result_carries_reward_done_and_metadata(server: Running) -> None:
    async def go() -> None:
        async with CountingClient(server.url) as client:
            result = await client.step(Move(do="metadata"))
            assert (result.reward, result.done, result.metadata) == (True, True, {"note": "hello"})
            assert result.observation.metadata == {"note": "hello"}
            assert (result.observation.reward, result.observation.done) == (True, True)

    asyncio.run(go())


def test_type_parameters_are_all_that_a_typed_client_needs(server: Running) -> None:
    async def go() -> None:
        async with CountingClient(server.url) as client:
            assert isinstance((await client.reset(seed=1, episode_id="e")).observation, Seen)
            result = await client.step(Move(by=2))
            assert (result.observation.total, result.observation.reward, result.reward) == (3, 2.0, 2.0)
            state = await client.state()
            assert (type(state), state.episode_id, state.step_count) == (State, "e", 1)

    asyncio.run(go())


def test_the_constructor_may_name_the_types(server: Running) -> None:
    async def go() -> None:
        client: EnvClient[Move, Seen, State] = EnvClient(
            server.url, action_cls=Move, observation_cls=Seen, state_cls=State
        )
        async with client:
            await client.reset()
            assert isinstance((await client.step(Move(by=2))).observation, Seen)
            assert isinstance(await client.state(), State)

    asyncio.run(go())


def test_class_attributes_may_name_the_types(server: Running) -> None:
    class Named(EnvClient[Any, Any, Any]):
        action_cls = Move
        observation_cls = Seen
        state_cls = State

    async def go() -> None:
        async with Named(server.url) as client:
            assert isinstance((await client.reset()).observation, Seen)
            assert (await client.step({"by": "2"})).observation.total == 2
            assert isinstance(await client.state(), State)

    asyncio.run(go())


def test_a_subclass_of_a_typed_client_has_its_types(server: Running) -> None:
    class Derived(CountingClient): ...

    async def go() -> None:
        async with Derived(server.url) as client:
            assert isinstance((await client.reset()).observation, Seen)

    asyncio.run(go())


AnyAction = TypeVar("AnyAction")
AnyState = TypeVar("AnyState")


def test_types_may_be_given_in_two_stages() -> None:
    class SeesSeen(EnvClient[AnyAction, Seen, AnyState]): ...

    class Full(SeesSeen[Move, State]): ...

    client = Full("http://127.0.0.1:1")
    assert (client.action_cls, client.observation_cls, client.state_cls) == (Move, Seen, State)


def test_overriding_the_three_methods_works_as_with_openenvs_clients(server: Running) -> None:
    class Plain(EnvClient[int, str, int]):
        def _step_payload(self, action: int) -> dict[str, Any]:
            return {"by": action}

        def _parse_result(self, payload: dict[str, Any]) -> StepResult[str]:
            return StepResult(
                observation=f"total {payload['observation']['total']}",
                reward=payload.get("reward"),
                done=payload.get("done", False),
            )

        def _parse_state(self, payload: dict[str, Any]) -> int:
            steps: int = payload["step_count"]
            return steps

    async def go() -> None:
        async with Plain(server.url) as client:
            assert (await client.reset(seed=1)).observation == "total 1"
            result = await client.step(5)
            assert (result.observation, result.reward, await client.state()) == ("total 6", 5.0, 1)

    asyncio.run(go())


@pytest.mark.parametrize("action", [Move(by=4), {"by": 4}, {"by": "4"}], ids=["model", "dict", "dict to be parsed"])
@pytest.mark.parametrize("client_cls", [CountingClient, GenericEnvClient])
def test_an_action_is_a_model_or_a_dict(server: Running, client_cls: Any, action: Any) -> None:
    async def go() -> None:
        async with client_cls(server.url) as client:
            await client.reset()
            assert (await client.step(action)).reward == 4.0

    asyncio.run(go())


def test_another_librarys_model_is_an_action_too(server: Running) -> None:
    class TheirMove(BaseModel):
        by: int

    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            assert (await client.step(TheirMove(by=6))).reward == 6.0

    asyncio.run(go())


def test_numbers_and_arrays_in_a_dict_action_become_plain_ones() -> None:
    got = play_once({"by": Scalar(4), "metadata": {"x": Scalar([1.5, 2.5])}})
    assert (got["by"], got["metadata"]) == (4, {"x": "[1.5, 2.5]"})


def test_numbers_and_arrays_in_a_models_free_fields_become_plain_ones() -> None:
    assert play_once(Move(metadata={"x": Scalar([1.5, 2.5])}))["metadata"] == {"x": "[1.5, 2.5]"}


def test_numbers_and_arrays_may_be_keywords_of_reset(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            assert (await client.reset(seed=Scalar(12))).observation["total"] == 12

    asyncio.run(go())


@NUMBERS_WITHOUT_A_WORD
def test_a_number_that_json_has_no_word_for_reaches_the_environment_in_a_dict(number: float) -> None:
    got = play_once({"seconds": number, "metadata": {"x": number}})
    assert (got["seconds"], got["metadata"]) == (repr(number), {"x": repr(number)})


@NUMBERS_WITHOUT_A_WORD
def test_a_number_that_json_has_no_word_for_reaches_the_environment_in_a_models_field(number: float) -> None:
    assert play_once(Move(seconds=number))["seconds"] == repr(number)


@NUMBERS_WITHOUT_A_WORD
def test_a_number_that_json_has_no_word_for_reaches_the_environment_in_a_models_free_field(number: float) -> None:
    assert play_once(Move(metadata={"x": number}))["metadata"] == {"x": repr(number)}


def test_an_action_that_cannot_be_sent_leaves_the_session_alone(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            with pytest.raises(Exception, match=r"cannot turn builtins\.object into JSON"):
                await client.step({"by": object()})
            assert (await client.step({"by": 100})).reward == 100.0

    asyncio.run(go())


# Errors: the client raises what the server raised.


def test_an_invalid_action_is_an_invalid_message_error_with_pydantics_list(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            with pytest.raises(InvalidMessageError) as caught:
                await client.step({"by": "many"})
            assert [(error["type"], error["loc"]) for error in caught.value.errors] == [("int_parsing", ["by"])]
            assert "by: Input should be a valid integer" in str(caught.value)
            assert (caught.value.outcome, caught.value.retryable) == ("invalid", False)
            assert (await client.step({"by": 100})).reward == 100.0

    asyncio.run(go())


def test_a_step_that_raises_is_an_execution_error_and_the_session_goes_on(server: Running) -> None:
    async def go() -> None:
        async with CountingClient(server.url) as client:
            await client.reset()
            with pytest.raises(ExecutionError, match="the floor gave way") as caught:
                await client.step(Move(do="raise"))
            assert (caught.value.outcome, caught.value.retryable) == ("env_error", False)
            assert (await client.step(Move(by=100))).reward == 100.0

    asyncio.run(go())


def test_a_reset_that_raises_is_an_execution_error(server: Running) -> None:
    async def go() -> None:
        async with CountingClient(server.url) as client:
            with pytest.raises(ExecutionError, match="this level is broken"):
                await client.reset(level="broken")
            await client.reset()

    asyncio.run(go())


def test_an_environment_that_cannot_be_made_is_a_factory_error_that_names_the_factory() -> None:
    def make_world() -> Counting:
        raise OSError("no display")

    async def go(url: str) -> None:
        client = GenericEnvClient(url)
        with pytest.raises(EnvironmentFactoryError, match="no display") as caught:
            await client.reset()
        assert (caught.value.factory_name, caught.value.outcome) == ("make_world", "env_error")
        await client.close()

    with serving(make_world, "fast", max_concurrent_envs=1) as server:
        asyncio.run(go(server.url))


@pytest.mark.parametrize("first_call", ["reset", "step", "state"])
def test_a_full_server_is_a_capacity_error_with_the_numbers(env: type[Counting], first_call: str) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url) as inside:
            await inside.reset()
            outside = GenericEnvClient(url)
            calls = {"reset": outside.reset, "step": lambda: outside.step({}), "state": outside.state}
            with pytest.raises(SessionCapacityError, match="1 of 1 sessions are in use") as caught:
                await calls[first_call]()
            assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)
            assert (caught.value.outcome, caught.value.retryable) == ("infra_error", True)
            await outside.close()
        await outside.reset()  # there is room now
        await outside.close()

    with serving(env, "fast", max_concurrent_envs=1) as server:
        asyncio.run(go(server.url))


def test_a_refused_connection_is_closed_when_another_takes_its_place() -> None:
    gone = threading.Event()
    refusal = {"message": "full", "code": "CAPACITY_REACHED", "active_sessions": 1, "max_sessions": 1}

    def behave(peer: Peer) -> None:
        if peers.connections == 1:
            peer.shake_hands(and_send=frame(json.dumps({"type": "error", "data": refusal})))
            peer.wait_until_gone()
            gone.set()
        else:
            peer.shake_hands()
            peer.answer_everything()

    async def go(url: str) -> bool:
        client = GenericEnvClient(url)
        with pytest.raises(SessionCapacityError):
            await client.step({})
        await client.reset()
        closed = await asyncio.to_thread(gone.wait, 2)
        await client.close()
        return closed

    with peer_server(behave, shake_hands=False) as peers:
        assert asyncio.run(go(peers.url))


def test_an_expired_session_is_said_to_be_and_reset_opens_another(env: type[Counting]) -> None:
    async def go(server: Running) -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            await asyncio.to_thread(server.wait_until_empty)
            with pytest.raises(SessionExpiredError, match=r"idle for more than 0\.5 s") as caught:
                await client.step({"by": 1})
            assert (caught.value.outcome, caught.value.retryable) == ("infra_error", True)
            await client.reset(seed=4)
            assert (await client.step({"by": 100})).observation["total"] == 104

    limits = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.5)
    with serving(env, "fast", concurrency_config=limits) as server:
        asyncio.run(go(server))


def test_a_reset_that_crosses_the_expiry_of_the_old_session_begins_anew() -> None:
    def behave(peer: Peer) -> None:
        request = peer.receive_request()
        if request["data"].get("seed") == 1:
            peer.send(observation(session="old"))
            peer.receive_request()  # sent while the session was expiring
            peer.send_json({"type": "error", "data": {"message": "idle too long", "code": "SESSION_EXPIRED"}})
            peer.send_bytes(close_frame(1001))
            peer.wait_until_gone()
        peer.send(observation(session="new"))
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            assert (await client.reset(seed=1)).observation == {"session": "old"}
            assert (await client.reset(seed=2)).observation == {"session": "new"}

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


@pytest.mark.parametrize("lane", ["fast", "asgi"])
def test_a_message_that_the_server_finds_too_large_is_that_error_and_reset_goes_on(
    env: type[Counting], lane: Lane
) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            with pytest.raises(MessageTooLargeError, match="1009") as caught:
                await client.step({"metadata": {"padding": "x" * 2_000_000}})
            assert (caught.value.outcome, caught.value.retryable) == ("invalid", False)
            await client.reset(seed=1)
            assert (await client.step({"by": 100})).observation["total"] == 101

    with serving(env, lane, config={"max_message_size": 1_000_000}) as server:
        asyncio.run(go(server.url))


def test_an_error_of_a_kind_unknown_here_is_a_session_error_that_names_its_code() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send_json({"type": "error", "data": {"message": "on fire", "code": "FIRE"}})
        peer.receive_request()
        peer.send_json({"type": "error", "data": None})
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            with pytest.raises(SessionError, match=r"on fire \(code: FIRE\)"):
                await client.reset()
            with pytest.raises(SessionError, match="without details"):
                await client.reset()
            await client.reset()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


@pytest.mark.parametrize("seen", [[1, 2], "north", {"total": "many"}])
def test_an_observation_that_does_not_fit_the_type_is_a_typed_error(seen: Any) -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()
        peer.send_json({"type": "observation", "data": {"observation": seen, "reward": None, "done": False}})
        peer.ignore_everything()

    async def go(url: str) -> None:
        async with CountingClient(url) as client:
            with pytest.raises(EnvHiveError):
                await client.reset()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


def test_a_refused_port_is_a_connect_error_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}.*refused\. Is the server running there\?") as caught:
        asyncio.run(GenericEnvClient(f"http://127.0.0.1:{port}").reset())
    assert isinstance(caught.value, ConnectionError)
    assert (caught.value.outcome, caught.value.retryable) == ("infra_error", True)


def test_a_server_that_accepts_and_never_answers_is_a_connect_error_after_the_time_out() -> None:
    async def go(port: int) -> None:
        client = GenericEnvClient(f"http://127.0.0.1:{port}", connect_timeout_s=0.2)
        begun = time.monotonic()
        with pytest.raises(ConnectError, match=r"within 0\.2 s"):
            await client.connect()
        assert time.monotonic() - begun < 10
        await client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(go(listener.getsockname()[1]))


# Pairing: each call gets its own reply.


def test_fifty_tasks_on_one_client_get_their_own_replies(server: Running) -> None:
    async def go() -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()

            async def play(number: int) -> None:
                for round_ in range(20):
                    sent = 1000 * (number + 1) + round_
                    assert (await client.step({"by": sent})).reward == sent

            await asyncio.gather(*(play(number) for number in range(50)))
            assert await client.state() == {"episode_id": None, "step_count": 1000}

    asyncio.run(go())


def test_different_requests_at_once_get_their_own_kind_of_reply(server: Running) -> None:
    async def go() -> None:
        async with CountingClient(server.url) as client:
            await client.reset()
            calls: list[Any] = []
            for number in range(100, 150):
                calls += [client.step(Move(by=number)), client.state(), client.step(Move(do="raise"))]
            replies = await asyncio.gather(*calls, return_exceptions=True)
            for index, number in enumerate(range(100, 150)):
                stepped, state, failed = replies[3 * index : 3 * index + 3]
                assert isinstance(stepped, StepResult)
                assert stepped.reward == number
                assert isinstance(state, State)
                assert state.step_count == index + 1
                assert isinstance(failed, ExecutionError)

    asyncio.run(go())


def test_after_a_time_out_the_late_reply_is_dropped_and_the_next_call_gets_its_own(gate: Gate) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url, headers=LAYER_1) as client:
            await client.reset()
            with pytest.raises(RequestTimeoutError, match=r"No reply to step within 0\.05 s") as caught:
                await client.step({"do": "wait", "by": 100}, timeout_s=0.05)
            assert isinstance(caught.value, TimeoutError)
            assert (caught.value.outcome, caught.value.retryable) == ("timeout", True)
            next_step = asyncio.create_task(client.step({"by": 200}))
            next_state = asyncio.create_task(client.state())
            await asyncio.to_thread(gate.wait_until_reached)
            gate.open()
            result = await next_step
            assert (result.reward, result.observation["total"]) == (200.0, 300)
            assert (await next_state)["step_count"] == 2
            await client.reset()
            assert env.journal.count("make") == 1  # nothing hangs any longer: it is the same session

    env = gate.environment()
    with serving(env, "fast") as server:
        asyncio.run(go(server.url))


@pytest.mark.parametrize("headers", [{}, LAYER_1], ids=["layer 2", "layer 1"])
def test_after_a_step_that_never_ends_a_reset_opens_another_session(hanging: Hanging, headers: dict[str, str]) -> None:
    with serving(hanging.env, "fast", max_concurrent_envs=2) as server:
        with GenericEnvClient(server.url, headers=headers, message_timeout_s=0.5).sync() as client:
            client.reset(seed=1)
            for action in ({"do": "hang"}, {"by": 1}):
                with pytest.raises(RequestTimeoutError, match="No reply to step"):
                    client.step(action)
            with pytest.raises(RequestTimeoutError, match="No reply to state"):
                client.state()
            assert client.reset(seed=5).observation["total"] == 5
            assert client.step({"by": 2}).observation["total"] == 7
        server.wait_until_empty()
        assert len(server.server.hive.stuck) == 1


def test_the_clients_own_time_out_holds_for_reset_step_and_state(gate: Gate) -> None:
    async def go(url: str) -> None:
        client = GenericEnvClient(url, message_timeout_s=0.1)
        with pytest.raises(RequestTimeoutError, match="No reply to reset"):
            await client.reset(level="wait")
        with pytest.raises(RequestTimeoutError, match="No reply to step"):
            await client.step({"by": 1})
        with pytest.raises(RequestTimeoutError, match="No reply to state"):
            await client.state()
        gate.open()
        await client.close()

    with serving(gate.environment(), "fast") as server:
        asyncio.run(go(server.url))


@pytest.mark.parametrize(
    ("headers", "error", "says"),
    [
        ({}, StepTimeoutError, r"reset took longer than 0\.05 s"),
        (LAYER_1, RequestTimeoutError, r"No reply to reset within 0\.05 s"),
    ],
    ids=["layer 2", "layer 1"],
)
def test_a_reset_has_the_time_that_it_is_given(
    gate: Gate, headers: dict[str, str], error: type[EnvHiveError], says: str
) -> None:
    given: list[float | None] = []

    def reset(env: Counting, level: str = "", timeout_s: float | None = None) -> Seen:
        given.append(timeout_s)
        if level == "wait":
            gate.pass_through()
        return Counting.reset(env, level=level)

    async def go(url: str) -> None:
        async with GenericEnvClient(url, headers=headers) as client:
            await client.reset(timeout_s=20)
            with pytest.raises(error, match=says):
                await client.reset(level="wait", timeout_s=0.05)
            gate.open()
        assert given == [20, 0.05]

    with serving(counting(reset=reset), "fast") as server:
        asyncio.run(go(server.url))


@pytest.mark.parametrize("how", ["cancel", "wait_for"])
def test_after_a_cancellation_the_late_reply_is_dropped_and_the_next_call_gets_its_own(gate: Gate, how: str) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()
            if how == "wait_for":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.step({"do": "wait", "by": 100}), 0.05)
            else:
                step = asyncio.create_task(client.step({"do": "wait", "by": 100}))
                await asyncio.to_thread(gate.wait_until_reached)
                step.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await step
            next_step = asyncio.create_task(client.step({"by": 200}))
            await asyncio.to_thread(gate.wait_until_reached)
            gate.open()
            assert (await next_step).reward == 200.0

    with serving(gate.environment(), "fast") as server:
        asyncio.run(go(server.url))


def test_a_late_error_is_dropped_like_any_late_reply(gate: Gate) -> None:
    async def go(url: str) -> None:
        async with GenericEnvClient(url, headers=LAYER_1) as client:
            await client.reset()
            with pytest.raises(RequestTimeoutError):
                await client.step({"do": "wait"}, timeout_s=0.05)
            with pytest.raises(RequestTimeoutError):
                await client.step({"do": "raise"}, timeout_s=0.05)
            gate.open()
            assert (await client.step({"by": 200})).reward == 200.0

    with serving(gate.environment(), "fast") as server:
        asyncio.run(go(server.url))


def test_a_call_cancelled_while_it_connects_leaves_the_client_usable() -> None:
    arrivals: asyncio.Queue[None] = asyncio.Queue()
    first = True

    async def go() -> None:
        loop = asyncio.get_running_loop()

        def behave(peer: Peer) -> None:
            nonlocal first
            if first:
                first = False
                peer.read_request()
                loop.call_soon_threadsafe(arrivals.put_nowait, None)
                peer.wait_until_gone()
            else:
                peer.shake_hands()
                peer.answer_everything()

        with peer_server(behave, shake_hands=False) as peers:
            async with asyncio.timeout(20):
                client = GenericEnvClient(peers.url)
                connecting = asyncio.create_task(client.reset())
                await arrivals.get()
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
                assert (await client.step({"n": 1})).observation == {"n": 1}
                await client.close()

    asyncio.run(go())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_time_outs_and_cancellations_never_shift_a_reply(seed: int) -> None:
    dice = random.Random(seed)

    async def one_call(client: GenericEnvClient, sent: int) -> str:
        action = {"by": sent, "seconds": dice.choice((0.0, 0.0, 0.001, 0.003))}
        patience = dice.choice((0.0005, 0.001, 0.002, 0.004, 5.0))
        try:
            if dice.random() < 0.5:
                result = await client.step(action, timeout_s=patience)
            else:
                result = await asyncio.wait_for(client.step(action), patience)
        except TimeoutError:
            return "late"
        assert result.reward == sent
        return "in time"

    async def go(url: str) -> None:
        async with GenericEnvClient(url, headers=LAYER_1) as client:
            await client.reset()
            outcomes = [await one_call(client, 100 + number) for number in range(150)]
            for block in range(15):
                calls = (one_call(client, 1000 + 10 * block + number) for number in range(10))
                outcomes += await asyncio.gather(*calls)
            assert {"late", "in time"} == set(outcomes)
            assert (await client.step({"by": 99})).reward == 99.0
            assert (await client.state())["step_count"] == len(outcomes) + 1

    with serving(async_counting(), "fast") as server:
        asyncio.run(go(server.url))


# A server that goes away.


def test_a_server_killed_mid_step_is_a_lost_connection_and_reset_works_when_it_is_back(tmp_path: Path) -> None:
    mark = tmp_path / "stepping"

    async def go(process: ServerProcess) -> None:
        async with GenericEnvClient(process.url) as client:
            await client.reset()
            steps = [
                asyncio.create_task(client.step({"seconds": 30, "metadata": {"mark": str(mark)}})),
                *(asyncio.create_task(client.step({"by": number})) for number in range(100, 110)),
            ]
            await asyncio.to_thread(eventually, mark.exists)
            process.kill()
            for error in await asyncio.gather(*steps, return_exceptions=True):
                assert isinstance(error, ConnectionLostError)
                assert (error.outcome, error.retryable) == ("infra_error", True)
            with pytest.raises(ConnectError, match="Is the server running there"):
                await client.reset()
            with pytest.raises(ConnectionLostError):
                await client.step({"by": 1})
            await asyncio.to_thread(process.start)
            with pytest.raises(ConnectionLostError):
                await client.step({"by": 1})
            with pytest.raises(ConnectionLostError):
                await client.state()
            await client.reset(seed=1)
            assert (await client.step({"by": 100})).observation["total"] == 101

    with ServerProcess() as process:
        asyncio.run(go(process))


def test_a_server_that_died_and_came_back_while_idle_is_found_again_by_reset() -> None:
    async def go(process: ServerProcess) -> None:
        async with GenericEnvClient(process.url) as client:
            await client.reset()
            process.kill()
            await asyncio.to_thread(process.start)
            await client.reset(seed=1)
            assert (await client.step({"by": 100})).observation["total"] == 101

    with ServerProcess() as process:
        asyncio.run(go(process))


def test_a_reset_waits_for_a_server_that_is_being_restarted() -> None:
    async def go(process: ServerProcess) -> None:
        async with GenericEnvClient(process.url) as client:
            await client.reset()
            process.end()
            with pytest.raises(ConnectionLostError, match="The server closed the connection"):
                await client.step({"by": 1})
            reset = asyncio.create_task(client.reset(seed=1))
            await asyncio.to_thread(process.start)
            await reset
            assert (await client.step({"by": 100})).observation["total"] == 101

    with ServerProcess() as process:
        asyncio.run(go(process))


def test_a_step_after_the_server_came_back_is_refused_rather_than_done_in_a_fresh_environment() -> None:
    async def go(process: ServerProcess) -> None:
        async with GenericEnvClient(process.url) as client:
            await client.reset()
            process.kill()
            await asyncio.to_thread(process.start)
            for _ in range(3):
                with pytest.raises(ConnectionLostError):
                    await client.step({"by": 1})
            await client.reset()
            assert (await client.state())["step_count"] == 0

    with ServerProcess() as process:
        asyncio.run(go(process))


def test_a_reset_on_a_connection_that_turns_out_to_be_dead_is_tried_once_more() -> None:
    def behave(peer: Peer) -> None:
        if peer.receive_request()["data"].get("seed") == 1:
            peer.send(observation(session="old"))
            peer.receive_request()
            return  # and hangs up
        peer.send(observation(session="new"))
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            assert (await client.reset(seed=1)).observation == {"session": "old"}
            assert (await client.reset(seed=2)).observation == {"session": "new"}

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))


def test_a_reset_is_not_tried_for_ever() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()

    async def go(url: str) -> None:
        client = GenericEnvClient(url)
        with pytest.raises(ConnectionLostError):
            await client.reset()
        with pytest.raises(ConnectionLostError):
            await client.reset()
        await client.close()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))
        assert peers.connections == 2


def test_many_resets_after_a_lost_connection_share_one_new_session() -> None:
    def behave(peer: Peer) -> None:
        if peer.receive_request()["data"].get("seed") == 1:
            peer.send(observation(session="old"))
            return  # and hangs up
        peer.send(observation())
        peer.answer_everything()

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            assert (await client.reset(seed=1)).observation == {"session": "old"}
            await asyncio.gather(*(client.reset(seed=2) for _ in range(10)))

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))
        assert peers.connections == 2


def test_a_server_that_shuts_down_answers_the_running_step_and_says_why_it_leaves(gate: Gate) -> None:
    async def go(server: Running) -> None:
        async with GenericEnvClient(server.url) as client:
            await client.reset()
            step = asyncio.create_task(client.step({"do": "wait", "by": 100}))
            await asyncio.to_thread(gate.wait_until_reached)
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            gate.open()
            assert (await step).reward == 100.0
            await stopping
            with pytest.raises(ConnectionLostError, match="1001: server shutting down"):
                await client.step({"by": 1})
            with pytest.raises(ConnectError, match="Is the server running there"):
                await client.reset()

    with serving(gate.environment(), "fast") as server:
        asyncio.run(go(server))


def test_each_call_on_a_lost_connection_raises_an_error_of_its_own() -> None:
    def behave(peer: Peer) -> None:
        peer.receive_request()

    async def go(url: str) -> list[EnvHiveError]:
        client = GenericEnvClient(url)
        errors: list[EnvHiveError] = []
        for _ in range(3):
            with pytest.raises(ConnectionLostError) as caught:
                await client.step({})
            errors.append(caught.value)
        await client.close()
        return errors

    with peer_server(behave) as peers:
        assert len({id(error) for error in asyncio.run(go(peers.url))}) == 3


# Closing.


def test_close_while_a_coroutine_is_stepping_is_prompt_and_frees_the_slot() -> None:
    async def go(server: Running) -> None:
        client = GenericEnvClient(server.url)
        await client.reset()
        step = asyncio.create_task(client.step({"seconds": 60}))
        session = next(iter(server.server.hive.sessions.values()))
        await asyncio.to_thread(eventually, lambda: session.busy_with == "step")
        await asyncio.wait_for(client.close(), 6.5)
        with pytest.raises(ConnectionLostError, match="closed"):
            await step
        await asyncio.to_thread(server.wait_until_empty)
        async with GenericEnvClient(server.url) as other:
            await other.reset()

    with serving(async_counting(), "fast", max_concurrent_envs=1) as server:
        asyncio.run(go(server))


def test_close_while_a_thread_is_stepping_does_not_wait_for_it_and_the_slot_is_free(gate: Gate) -> None:
    async def go(server: Running) -> None:
        client = GenericEnvClient(server.url)
        await client.reset()
        step = asyncio.create_task(client.step({"do": "wait"}))
        await asyncio.to_thread(gate.wait_until_reached)
        await asyncio.wait_for(client.close(), 6.5)
        with pytest.raises(ConnectionLostError, match="closed"):
            await step
        assert server.server.active_sessions == 0
        assert len(server.server.hive.stuck) == 1
        gate.open()
        deadline = time.monotonic() + 20
        while server.server.hive.stuck and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert not server.server.hive.stuck

    with serving(gate.environment(), "fast", max_concurrent_envs=1) as server:
        asyncio.run(go(server))


def test_close_waits_until_the_place_is_free_so_that_the_next_client_finds_room(env: type[Counting]) -> None:
    async def go(url: str) -> None:
        for _ in range(20):
            async with GenericEnvClient(url) as client:
                await client.reset()

    with serving(env, "fast", max_concurrent_envs=1) as server:
        asyncio.run(go(server.url))
    assert env.journal.count("close") == 20


def test_close_while_a_reset_is_running_leaves_no_session_behind(gate: Gate) -> None:
    async def go(server: Running) -> None:
        client = GenericEnvClient(server.url)
        await client.connect()
        reset = asyncio.create_task(client.reset(level="wait"))
        await asyncio.to_thread(gate.wait_until_reached)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        gate.open()
        await closing
        try:
            with pytest.raises(ConnectionLostError, match="closed"):
                await reset
            await asyncio.to_thread(server.wait_until_empty)
        finally:
            await client.close()

    with serving(gate.environment(), "fast") as server:
        asyncio.run(go(server))


def test_close_while_connecting_leaves_no_session_behind() -> None:
    arrived, go_on, gone = threading.Event(), threading.Event(), threading.Event()

    def behave(peer: Peer) -> None:
        arrived.set()
        assert go_on.wait(20)
        try:
            peer.shake_hands()
            peer.ignore_everything()
        finally:
            gone.set()

    async def go(url: str) -> bool:
        client = GenericEnvClient(url)
        connecting = asyncio.create_task(client.connect())
        assert await asyncio.to_thread(arrived.wait, 20)
        await client.close()
        go_on.set()
        await asyncio.gather(connecting, return_exceptions=True)
        left = await asyncio.to_thread(gone.wait, 2)
        await client.close()
        return left

    with peer_server(behave, shake_hands=False) as peers:
        assert asyncio.run(go(peers.url))


def test_the_server_hears_an_orderly_goodbye() -> None:
    heard: list[Any] = []

    def behave(peer: Peer) -> None:
        while True:
            kind, payload = peer.receive()
            heard.append(json.loads(payload)["type"] if kind == 1 else kind)
            if kind == 8:
                peer.send_bytes(close_frame(1000))
                return
            if heard[-1] == "reset":
                peer.send(observation())

    async def go(url: str) -> None:
        async with GenericEnvClient(url) as client:
            await client.reset()

    with peer_server(behave) as peers:
        asyncio.run(go(peers.url))
    assert heard == ["reset", "close", 8]
