"""`/mcp`, through Starlette's test client: good calls and bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from fastmcp import Client, FastMCP
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envhive import Action, Environment, Observation, State, create_app
from envhive.server.config import forced
from envhive.tools import CallToolAction
from tests.support.envs import Move, Seen, counting
from tests.support.tools import TOOLS, AsyncShed, Shed

STANDARD = {"Accept": "application/json, text/event-stream"}
VERSION = "2025-06-18"
BATCHING = "2025-03-26"


@pytest.fixture(scope="module", params=[Shed, AsyncShed])
def http(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with TestClient(create_app(request.param, Action, Observation, max_concurrent_envs=64)) as client:
        yield client


def listed(http: TestClient) -> set[str]:
    """The sessions there are; other tests may have left some that are closing."""
    return {each["session_id"] for each in http.get("/sessions").json()}


def request(method: str, request_id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def call(name: str, request_id: Any = 1, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", request_id, name=name, arguments=arguments)


def begin(http: TestClient, version: str = VERSION) -> dict[str, str]:
    """The headers of a session."""
    info = {"name": "test", "version": "1"}
    message = request("initialize", protocolVersion=version, capabilities={}, clientInfo=info)
    reply = http.post("/mcp", json=message, headers=STANDARD)
    assert reply.status_code == 200, reply.text
    return {**STANDARD, "Mcp-Session-Id": reply.headers["Mcp-Session-Id"]}


@pytest.fixture
def session(http: TestClient) -> Iterator[dict[str, str]]:
    headers = begin(http)
    yield headers
    http.delete("/mcp", headers=headers)


# Good calls.


def test_a_server_introduces_itself(http: TestClient) -> None:
    message = request("initialize", protocolVersion=VERSION, capabilities={}, clientInfo={})
    result = http.post("/mcp", json=message, headers=STANDARD).json()["result"]
    assert result["protocolVersion"] == VERSION
    assert result["instructions"] == "Add up."
    assert set(result["capabilities"]) == {"tools", "logging", "resources", "prompts"}


def test_tools_are_described_as_the_protocol_has_it(http: TestClient, session: dict[str, str]) -> None:
    listed = http.post("/mcp", json=request("tools/list"), headers=session).json()["result"]["tools"]
    assert {tool["name"] for tool in listed} == TOOLS
    for tool in listed:
        assert tool["inputSchema"]["type"] == "object"
        assert None not in tool.values()
        assert "meta" not in tool


def test_the_same_url_answers_openenvs_bare_calls(http: TestClient) -> None:
    listed = http.post("/mcp", json=request("tools/list")).json()["result"]["tools"]
    assert {tool["name"] for tool in listed} == TOOLS
    result = http.post("/mcp", json=call("add", by=2)).json()["result"]
    assert (result["data"], result["is_error"]) == (2, False)
    assert http.post("/mcp", json=call("add", by=2)).json()["result"]["data"] == 2  # a fresh environment each


def test_openenvs_sessions_are_made_used_and_closed(http: TestClient) -> None:
    made = http.post("/mcp", json=request("openenv/session/create")).json()["result"]["session_id"]

    def add(by: int) -> Any:
        message = request("tools/call", name="add", arguments={"by": by}, session_id=made)
        return http.post("/mcp", json=message).json()

    assert [add(2)["result"]["data"], add(3)["result"]["data"]] == [2, 5]
    closed = http.post("/mcp", json=request("openenv/session/close", session_id=made)).json()
    assert closed["result"] == {"session_id": made, "closed": True}
    assert add(1)["error"]["code"] == -32602
    again = http.post("/mcp", json=request("openenv/session/close", session_id=made)).json()
    assert (again["error"]["code"], again["id"]) == (-32602, 1)


def test_the_other_methods_are_there(http: TestClient, session: dict[str, str]) -> None:
    def ask(method: str, **params: Any) -> Any:
        return http.post("/mcp", json=request(method, **params), headers=session).json()["result"]

    assert ask("ping") == {}
    assert ask("logging/setLevel", level="error") == {}
    assert ask("completion/complete", ref={}, argument={})["completion"]["values"] == []
    assert [each["uri"] for each in ask("resources/list")["resources"]] == ["shed://total"]
    assert ask("resources/templates/list") == {"resourceTemplates": []}
    assert ask("resources/read", uri="shed://total")["contents"][0]["text"] == "0"
    assert [each["name"] for each in ask("prompts/list")["prompts"]] == ["advice"]
    assert "12" in str(ask("prompts/get", name="advice", arguments={"goal": "12"})["messages"])


def test_a_connection_is_a_session(http: TestClient) -> None:
    with http.websocket_connect("/mcp") as ws:
        ws.send_json(call("add", "a", by=2))
        assert ws.receive_json()["result"]["data"] == 2
        ws.send_json({**call("climb", "b", rungs=2), "params": {**call("climb", rungs=2)["params"]}})
        assert ws.receive_json()["id"] == "b"
        message = call("climb", "c", rungs=2)
        message["params"]["_meta"] = {"progressToken": "p"}
        ws.send_json(message)
        heard = [ws.receive_json() for _ in range(3)]
        assert [note["params"]["progress"] for note in heard[:2]] == [1, 2]
        assert heard[2]["id"] == "c"
        ws.send_json(call("add", "d", by=3))
        assert ws.receive_json()["result"]["data"] == 5


def test_frames_of_mcp_go_between_reset_and_step(http: TestClient) -> None:
    with http.websocket_connect("/ws") as ws:

        def ask(**message: Any) -> Any:
            ws.send_json(message)
            return ws.receive_json()

        ask(type="reset", data={"seed": 10})
        assert ask(type="mcp", data=call("add", by=2))["data"]["result"]["data"] == 12
        stepped = ask(type="step", data={"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}})
        assert (stepped["data"]["reward"], stepped["data"]["observation"]["result"]["data"]) == (13.0, 13)
        wrong = ask(type="mcp", data={"jsonrpc": "2.0", "id": 9, "method": "fly"})
        assert (wrong["type"], wrong["data"]["id"], wrong["data"]["error"]["code"]) == ("mcp", 9, -32601)
        assert ask(type="state")["data"]["step_count"] == 13


# Bad ones.


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (5, -32600),
        ("text", -32600),
        (None, -32600),
        ([], -32600),
        ({}, -32600),
        ({"id": 1}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, -32600),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "more": 1}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None}, -32602),
        (request("fly"), -32601),
        (request("reset"), -32601),
        (request("server/discover"), -32601),
        (request("tools/call"), -32602),
        (request("tools/call", name=""), -32602),
        (request("tools/call", name=5), -32602),
        (request("tools/call", name="add", arguments=[1]), -32602),
        (request("tools/call", name="fly"), -32602),
        (request("tools/call", name="reset"), -32602),
        (request("tools/list", cursor="next"), -32602),
        (request("resources/read"), -32602),
        (request("resources/read", uri="shed://nothing"), -32602),
        (request("prompts/get", name="nothing"), -32602),
        (request("prompts/get", name="advice", arguments=5), -32602),
        (request("logging/setLevel", level="loud"), -32602),
    ],
)
@pytest.mark.parametrize("way", ["bare", "session", "websocket", "frame"])
def test_a_bad_call_gets_the_right_code_and_its_own_id(
    http: TestClient, session: dict[str, str], message: Any, code: int, way: str
) -> None:
    if way == "websocket":
        with http.websocket_connect("/mcp") as ws:
            ws.send_json(message)
            reply = ws.receive_json()
            ws.send_json(request("ping", "on"))
            assert ws.receive_json()["id"] == "on"
    elif way == "frame":
        if not isinstance(message, dict):
            return  # such a frame is none
        with http.websocket_connect("/ws") as ws:
            ws.send_json({"type": "mcp", "data": message})
            reply = ws.receive_json()["data"]
    else:
        reply = http.post("/mcp", content=json.dumps(message), headers=session if way == "session" else {}).json()
    assert (reply["jsonrpc"], reply["error"]["code"]) == ("2.0", code)
    assert reply["id"] == id_of(message)


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"jsonrpc": "2.0", "id": 1', b"\xff\xfe", "[" * 100_000])
def test_what_is_no_json_is_a_parse_error(http: TestClient, session: dict[str, str], text: Any) -> None:
    for headers, status in (({}, 200), (STANDARD, 400), (session, 400)):
        reply = http.post("/mcp", content=text, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"], reply.json()["id"]) == (status, -32700, None)
    if isinstance(text, str):
        with http.websocket_connect("/mcp") as ws:
            ws.send_text(text)
            assert ws.receive_json()["error"]["code"] == -32700


def test_initialize_needs_a_version_and_takes_no_place_without(http: TestClient) -> None:
    before = listed(http)
    for params in ({}, {"protocolVersion": 5}):
        reply = http.post("/mcp", json=request("initialize", **params), headers=STANDARD)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32602)
        assert "Mcp-Session-Id" not in reply.headers
    assert not listed(http) - before


def test_requests_that_need_a_session_say_so(http: TestClient, session: dict[str, str]) -> None:
    assert http.get("/mcp", headers=STANDARD).status_code == 400
    assert http.delete("/mcp").status_code == 400
    assert http.get("/mcp", headers={**session, "Accept": "application/json"}).status_code == 406
    for method in ("get", "delete"):
        lost = getattr(http, method)("/mcp", headers={**STANDARD, "Mcp-Session-Id": "nowhere"})
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, -32001)


def test_notifications_get_no_answer(http: TestClient, session: dict[str, str]) -> None:
    for note in ("notifications/initialized", "notifications/cancelled", "notifications/unheard-of"):
        for params in ({}, {"requestId": 99}, {"requestId": []}, [1], None):
            reply = http.post("/mcp", json={"jsonrpc": "2.0", "method": note, "params": params}, headers=session)
            assert (reply.status_code, reply.content) == (202, b"")
    answer = {"jsonrpc": "2.0", "id": 5, "result": {}}
    assert http.post("/mcp", json=answer, headers=session).status_code == 202


def test_a_tools_failure_is_for_the_agent_to_read(http: TestClient, session: dict[str, str]) -> None:
    for name, arguments, text in (("fail", {}, "the floor gave way"), ("add", {"by": "x"}, "by")):
        result = http.post("/mcp", json=call(name, **arguments), headers=session).json()["result"]
        assert result["isError"] is True
        assert text in result["content"][0]["text"]
        bare = http.post("/mcp", json=call(name, **arguments)).json()["error"]
        assert text in bare["message"]
        assert bare["data"]["error_type"] in ("execution_error", "invalid_args")


def test_text_that_has_no_utf_8_form_can_be_answered(http: TestClient, session: dict[str, str]) -> None:
    message = json.dumps(call("fail", "id \udc80", text="bad file \udc80"))
    for headers in (session, {}):
        reply = http.post("/mcp", content=message, headers=headers)
        assert reply.status_code == 200
        assert json.loads(reply.content)["id"] == "id \udc80"
    echoed = http.post("/mcp", content=json.dumps(call("say", text="x\udc80")), headers=session)
    assert echoed.status_code == 200


def test_a_full_server_says_so_with_counts() -> None:
    with TestClient(create_app(Shed, Action, Observation, max_concurrent_envs=1)) as http:
        headers = begin(http)
        counts = {"code": "CAPACITY_REACHED", "active_sessions": 1, "max_sessions": 1}
        message = request("initialize", 7, protocolVersion=VERSION)
        refused = http.post("/mcp", json=message, headers=STANDARD)
        assert refused.status_code == 503
        for reply in (
            refused.json(),
            http.post("/mcp", json=request("tools/list", 7)).json(),
            http.post("/mcp", json=request("openenv/session/create", 7)).json(),
        ):
            assert (reply["id"], reply["error"]["code"]) == (7, -32000)
            assert counts.items() <= reply["error"]["data"].items()
        with http.websocket_connect("/mcp") as ws:
            assert counts.items() <= ws.receive_json()["error"]["data"].items()
        assert http.delete("/mcp", headers=headers).status_code == 204
        assert http.post("/mcp", json=request("tools/list")).status_code == 200


# Batches.


def test_a_batch_is_answered_where_the_version_has_them(http: TestClient) -> None:
    headers = begin(http, BATCHING)
    batch = [
        call("add", 1, by=2),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request("fly", 2),
        7,
        request("ping", "three"),
    ]
    replies = http.post("/mcp", json=batch, headers=headers).json()
    assert sorted(str(reply["id"]) for reply in replies) == ["1", "2", "None", "three"]
    assert {reply["id"]: reply.get("error", {}).get("code") for reply in replies} == {
        1: None,
        2: -32601,
        None: -32600,
        "three": None,
    }
    notes = [{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 2
    assert http.post("/mcp", json=notes, headers=headers).status_code == 202
    assert http.post("/mcp", json=[], headers=headers).json()["error"]["code"] == -32600
    http.delete("/mcp", headers=headers)


def test_a_batch_is_no_request_where_the_version_has_none(http: TestClient, session: dict[str, str]) -> None:
    for headers in (session, {}, STANDARD):
        reply = http.post("/mcp", json=[request("ping")], headers=headers).json()
        assert (reply["id"], reply["error"]["code"]) == (None, -32600)


# Without tools, and with a step as a tool.


def test_an_environment_without_tools_says_so() -> None:
    with TestClient(create_app(counting(), Move, Seen)) as http:
        for message in (request("tools/list"), call("add")):
            error = http.post("/mcp", json=message).json()["error"]
            assert (error["code"], error["message"]) == (-32603, "Environment does not support MCP")
        assert http.post("/mcp", json=request("resources/list")).json()["result"] == {"resources": []}


class Bystander(Environment[Action, Observation, State]):
    """Has a client of its tools, as environments had before there was a base class for tools, and counts its steps."""

    def __init__(self) -> None:
        server = FastMCP("bystander")
        server.tool(self.weigh)
        self.mcp_client = Client(server)
        self.steps = 0

    def weigh(self, what: str) -> dict[str, Any]:
        """Weigh something."""
        return {"what": what, "grams": len(what)}

    def reset(self, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Action, **kwargs: Any) -> Observation:
        self.steps += 1
        return Observation()

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


def test_tools_behind_a_client_are_called_without_a_step() -> None:
    app = create_app(Bystander, CallToolAction, Observation)
    with TestClient(app) as client, client.websocket_connect("/ws") as ws:
        ws.send_json({"type": "mcp", "data": request("tools/list")})
        (tool,) = ws.receive_json()["data"]["result"]["tools"]
        assert (tool["name"], tool["description"]) == ("weigh", "Weigh something.")
        ws.send_json({"type": "mcp", "data": call("weigh", what="feather")})
        assert ws.receive_json()["data"]["result"]["data"] == {"what": "feather", "grams": 7}
        ws.send_json({"type": "state"})
        assert ws.receive_json()["data"]["step_count"] == 0


def test_an_exposed_step_begins_an_episode_by_itself() -> None:
    env = counting()
    with forced(expose_step=True):
        app = create_app(env, Move, Seen)
    with TestClient(app) as http:
        headers = begin(http)
        (act,) = http.post("/mcp", json=request("tools/list"), headers=headers).json()["result"]["tools"]
        assert (act["name"], set(act["inputSchema"]["properties"])) == ("act", {"by", "do", "seconds"})
        for total in (3, 6):
            result = http.post("/mcp", json=call("act", by=3), headers=headers).json()["result"]
            assert result["structuredContent"]["observation"]["total"] == total
        failed = http.post("/mcp", json=call("act", do="raise"), headers=headers).json()["result"]
        assert (failed["isError"], failed["content"][0]["text"]) == (True, "the floor gave way")
        wrong = http.post("/mcp", json=call("act", by=13), headers=headers).json()["result"]
        assert wrong["isError"] is True
        assert env.journal.count("reset") == 1
        http.delete("/mcp", headers=headers)


# Whatever comes.


def id_of(message: Any) -> Any:
    """The id that the answer to a message must have."""
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, (str, int)) and not isinstance(found, bool) else None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
methods = st.sampled_from(
    [
        *("initialize", "ping", "logging/setLevel", "completion/complete", "tools/list", "tools/call"),
        *("resources/list", "resources/templates/list", "resources/read", "prompts/list", "prompts/get"),
        *("openenv/session/create", "openenv/session/close", "notifications/cancelled", "notifications/initialized"),
        "server/discover",
    ]
)
params = st.dictionaries(
    st.sampled_from(
        ["name", "arguments", "cursor", "uri", "level", "protocolVersion", "session_id", "requestId", "_meta"]
    ),
    json_values
    | st.sampled_from(["add", "fail", "climb", "advice", "shed://total", VERSION])
    | st.just({"progressToken": 1}),
    max_size=4,
)
ids = st.integers() | st.text(max_size=5) | json_values
near_requests = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={"id": ids, "method": methods | json_values, "params": params | json_values, "result": json_values},
)
documents = near_requests | json_values | st.lists(near_requests | json_values, max_size=3)
whatever = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check_answer(answer: Any, message: Any) -> None:
    assert isinstance(answer, dict)
    assert answer["jsonrpc"] == "2.0"
    assert ("result" in answer) != ("error" in answer)
    assert answer["id"] == id_of(message)
    if "error" in answer:
        assert isinstance(answer["error"]["code"], int)
        assert isinstance(answer["error"]["message"], str)
        assert "Traceback" not in answer["error"]["message"]


def bodies_of(reply: Any) -> list[Any]:
    """The messages in a response, whether it is a document or a stream."""
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
        return [message for message in map(json.loads, data) if "method" not in message]
    return [json.loads(reply.content)] if reply.content else []


@whatever
@given(document=documents, standard=st.booleans())
@example(document=request("initialize", 2**70, protocolVersion=VERSION), standard=True)
def test_whatever_is_posted_without_a_session_is_answered_in_json_rpc(
    http: TestClient, document: Any, standard: bool
) -> None:
    reply = http.post("/mcp", content=json.dumps(document), headers=STANDARD if standard else {})
    assert reply.status_code in (200, 202, 400, 503)
    assert (reply.status_code == 202) == (not reply.content)
    for answer in bodies_of(reply):
        check_answer(answer, document)
        made = answer.get("result", {})
        if reply.status_code == 503:
            assert answer["error"]["data"]["code"] == "CAPACITY_REACHED"
        if "Mcp-Session-Id" in reply.headers:
            http.delete("/mcp", headers={**STANDARD, "Mcp-Session-Id": reply.headers["Mcp-Session-Id"]})
        elif isinstance(made, dict) and "session_id" in made:
            http.post("/mcp", json=request("openenv/session/close", session_id=made["session_id"]))


@pytest.mark.parametrize("version", [VERSION, BATCHING])
def test_whatever_is_posted_to_a_session_is_answered_in_json_rpc(http: TestClient, version: str) -> None:
    headers = begin(http, version)

    @whatever
    @given(document=documents)
    def check(document: Any) -> None:
        reply = http.post("/mcp", content=json.dumps(document), headers=headers)
        assert reply.status_code in (200, 202)
        for answer in bodies_of(reply):
            if isinstance(answer, list):
                asked = [id_of(each) for each in document]
                assert [each["id"] for each in answer if each["id"] not in asked] == []
            else:
                check_answer(answer, document)

    check()
    # `initialize` may have come again and changed the version, but the session is as good as new.
    assert http.post("/mcp", json=request("ping", "end"), headers=headers).json()["id"] == "end"
    http.delete("/mcp", headers=headers)


def test_whatever_a_connection_sends_is_answered_in_json_rpc(http: TestClient) -> None:
    sent: list[Any] = []  # answers may come late, when others have been sent

    with http.websocket_connect("/mcp") as ws:

        def hear_until(request_id: str) -> None:
            while True:
                heard = ws.receive_json()
                for answer in heard if isinstance(heard, list) else [heard]:
                    if "method" in answer:
                        continue
                    assert answer["jsonrpc"] == "2.0"
                    assert ("result" in answer) != ("error" in answer)
                    if answer["id"] == request_id:
                        return
                    assert answer["id"] is None or answer["id"] in sent

        @whatever
        @given(document=documents, number=st.uuids())
        def check(document: Any, number: Any) -> None:
            sent.extend(id_of(each) for each in (document if isinstance(document, list) else [document]))
            ws.send_text(json.dumps(document))
            ws.send_json(request("ping", str(number)))
            hear_until(str(number))

        check()
        ws.send_json(call("add", "the last", by=0))  # calls are carried out in order, so all others have been answered
        hear_until("the last")
