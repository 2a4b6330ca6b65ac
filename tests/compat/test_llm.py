"""Clients of language models, with stand-ins for the packages that they need."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from envhive.compat.llm import (
    AnthropicClient,
    LLMClient,
    LLMResponse,
    OpenAIClient,
    ToolCall,
    create_llm_client,
)
from envhive.rubrics import LLMJudge
from envhive.types import Action, Observation
from tests.test_layers import loaded_by


class StandIn:
    """An SDK's client: notes what it is asked, and answers what it was given."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.asked: list[dict[str, Any]] = []
        self.answer: Any = None
        self.chat = SimpleNamespace(completions=self)
        self.messages = self

    async def create(self, **request: Any) -> Any:
        self.asked.append(request)
        return self.answer


@pytest.fixture(autouse=True)
def _packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, name in (("openai", "AsyncOpenAI"), ("anthropic", "AsyncAnthropic")):
        module = ModuleType(package)
        setattr(module, name, StandIn)
        monkeypatch.setitem(sys.modules, package, module)


def openai(content: str | None = "", calls: Any = None, **settings: Any) -> Any:
    client = OpenAIClient("http://localhost", 8000, "small", **settings)
    message = SimpleNamespace(content=content, tool_calls=calls)
    client._client.answer = SimpleNamespace(choices=[SimpleNamespace(message=message)])
    return client


def anthropic(*blocks: Any, **settings: Any) -> Any:
    client = AnthropicClient("http://localhost", 8000, "small", **settings)
    client._client.answer = SimpleNamespace(content=[SimpleNamespace(**block) for block in blocks])
    return client


def test_a_prompt_is_completed_by_either() -> None:
    client = openai("four", system_prompt="Count.")
    assert asyncio.run(client.complete("2+2?", max_tokens=3)) == "four"
    (asked,) = client._client.asked
    assert asked == {
        "model": "small",
        "messages": [{"role": "system", "content": "Count."}, {"role": "user", "content": "2+2?"}],
        "max_tokens": 3,
        "temperature": 0.0,
    }
    client = anthropic({"type": "text", "text": "fo"}, {"type": "thinking"}, {"type": "text", "text": "ur"})
    assert asyncio.run(client.complete("2+2?", temperature=1.0)) == "four"
    (asked,) = client._client.asked
    assert asked == {
        "model": "small",
        "messages": [{"role": "user", "content": "2+2?"}],
        "max_tokens": 256,
        "extra_body": {"temperature": 1.0},
    }


def test_tools_that_a_model_wants_are_told_in_one_way() -> None:
    tools = [{"name": "look", "inputSchema": {"properties": {"far": {}}}}]
    messages = [{"role": "user", "content": "Look"}]
    function = SimpleNamespace(name="look", arguments='{"far": 1}')
    clients = [
        openai(None, [SimpleNamespace(id="c1", function=function)]),
        anthropic({"type": "tool_use", "id": "c1", "name": "look", "input": {"far": 1}}),
    ]
    for client in clients:
        answer = asyncio.run(client.complete_with_tools(messages, tools))
        assert answer == LLMResponse("", [ToolCall("c1", "look", {"far": 1})])
        assert json.loads(answer.to_message_dict()["tool_calls"][0]["function"]["arguments"]) == {"far": 1}
    schema = {"type": "object", "properties": {"far": {}}}
    assert clients[0]._client.asked[0]["tools"][0]["function"]["parameters"] == schema
    assert clients[1]._client.asked[0]["tools"] == [{"name": "look", "description": "", "input_schema": schema}]


def test_a_given_schema_is_left_as_it_was() -> None:
    schema: dict[str, Any] = {"allOf": [{"required": ["a"]}]}
    client = openai("")
    asyncio.run(client.complete_with_tools([], [{"name": "look", "inputSchema": schema}]))
    assert schema == {"allOf": [{"required": ["a"]}]}


@pytest.mark.parametrize(
    ("endpoint", "port", "url"),
    [
        ("http://localhost", 8000, "http://localhost:8000/v1"),
        ("http://localhost:8000/", None, "http://localhost:8000/v1"),
        ("https://host/gate/", 443, "https://host:443/gate"),
    ],
)
def test_a_server_is_found_where_it_is(endpoint: str, port: int | None, url: str) -> None:
    client: Any = OpenAIClient(endpoint, port, "small")
    assert client._client.settings == {"base_url": url, "api_key": "not-needed"}
    keyed: Any = AnthropicClient(endpoint, port, "small", api_key="")
    assert keyed._client.settings == {"base_url": url.removesuffix("/v1"), "api_key": ""}


@pytest.mark.parametrize(
    ("endpoint", "port", "why"),
    [
        ("localhost", 8000, "must begin with http"),
        ("http://", 8000, "names no host"),
        ("http://ada:secret@host", 8000, "belongs in api_key"),
        ("http://host?key=1", None, "no query"),
        ("http://host:", None, "no port after the colon"),
        ("http://host", 70000, "ports go from 1 to 65535"),
        ("http://host:x", None, "Port could not be cast"),
        ("http://host:1", 2, "has port 1, which is not port=2"),
    ],
)
def test_a_bad_address_is_told_without_its_password(endpoint: str, port: int | None, why: str) -> None:
    with pytest.raises(ValueError, match="is no URL of a language model") as caught:
        OpenAIClient(endpoint, port, "small")
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_hosted_models_are_had_by_name() -> None:
    client: Any = create_llm_client("OpenAI", "gpt-4", "key", system_prompt="S", temperature=0.5)
    assert client._client.settings == {"base_url": "https://api.openai.com:443/v1", "api_key": "key"}
    assert (client.system_prompt, client.temperature, client.max_tokens) == ("S", 0.5, 4096)
    newer: Any = create_llm_client("openai", "o3-mini", "key")
    newer._client.answer = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="hi"))])
    asyncio.run(newer.complete("hi"))
    assert newer._client.asked[0].keys() == {"model", "messages", "max_completion_tokens"}
    assert isinstance(create_llm_client("anthropic", "large", "key"), AnthropicClient)
    with pytest.raises(ValueError, match="no client for the provider 'nobody'; there are 'anthropic' and 'openai'"):
        create_llm_client("nobody", "x", "key")


@pytest.mark.parametrize(("package", "client"), [("openai", OpenAIClient), ("anthropic", AnthropicClient)])
def test_a_package_that_is_missing_is_told_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, package: str, client: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        client("http://localhost", 8000, "small")
    assert str(caught.value) == f"{client.__name__} needs the package {package!r}: pip install {package}"


def test_a_package_that_is_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'httpx'", name="httpx")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="No module named 'httpx'"):
        OpenAIClient("http://localhost", 8000, "small")


def test_mentioning_the_clients_imports_neither_package() -> None:
    statement = "from envhive import compat; compat.install(); from openenv.core import LLMClient, create_llm_client"
    assert not loaded_by(statement) & {"openai", "anthropic", "httpx"}


def test_a_client_of_ones_own_needs_one_method() -> None:
    class Parrot(LLMClient):
        async def complete(self, prompt: str, **kwargs: Any) -> str:
            return prompt

    parrot = Parrot("http://localhost/", 8000)
    assert (parrot.base_url, asyncio.run(parrot.complete("hi"))) == ("http://localhost:8000", "hi")
    with pytest.raises(NotImplementedError, match="Parrot has no complete_with_tools"):
        asyncio.run(parrot.complete_with_tools([], []))
    with pytest.raises(TypeError, match="abstract"):
        LLMClient("http://localhost", 1)


def test_a_judge_asks_such_a_client() -> None:
    judge = LLMJudge("Rate {action}", openai("Score: 0.7"))
    assert asyncio.run(judge(Action(), Observation())) == pytest.approx(0.7)
