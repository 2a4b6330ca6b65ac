"""Run by a Python with OpenEnv, or with EnvHive in its place: the same calls, and what came of them, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Any

if "envhive" in sys.argv[1:]:
    from envhive import compat

    compat.install()

from openenv.core.llm_client import (  # type: ignore[import-not-found, unused-ignore]
    AnthropicClient,
    LLMClient,
    OpenAIClient,
    create_llm_client,
)

TOOLS: list[dict[str, Any]] = [
    {"name": "look", "description": "Look around", "inputSchema": {"type": "object", "properties": {"far": {}}}},
    {"name": "bare"},
    {"name": "empty", "inputSchema": {}},
    {"name": "odd", "inputSchema": "nonsense"},
    {"name": "one", "inputSchema": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"a": {}}}]}},
    {"name": "none", "inputSchema": {"anyOf": [{"type": "string"}], "title": "None of them"}},
    {
        "name": "all",
        "inputSchema": {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, 7, {"properties": {"b": {}}}]},
    },
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is there?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"far": true}'}},
            {"id": "c2", "type": "function", "function": {"name": "bare", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a door"},
    {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
    {"role": "assistant", "content": "A door."},
    {"role": "user", "content": "Open it."},
]
ENDPOINTS = [
    *(("http://localhost", 8000), ("http://localhost:8000", None), ("http://localhost:8000/v1/", 8000)),
    *(("https://host/gate/way/", 443), ("http://[::1]", 80), ("http://localhost", None)),
    *(("http://localhost:8000", 9000), ("ftp://host", 1), ("host", 1), ("http://", 1), ("http://u:pw@host", 1)),
    *(("http://host?q=1", 1), ("http://host#f", 1), ("http://host:", 1), ("http://host", 0), ("http://host", 65536)),
    *(("http://host:99999", None), ("http://host:x", 1), ("http://[::1", 1)),
]


class Prompts(LLMClient):  # type: ignore[misc, unused-ignore]
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        return prompt


def url_of(endpoint: str, port: int | None) -> str:
    url: str = Prompts(endpoint, port).base_url
    return url


async def outcome(make: Any) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        made = make()
        result = await made if asyncio.iscoroutine(made) else made
    except Exception as error:  # whatever it is, the two are to raise the same
        return type(error).__name__
    if hasattr(result, "to_message_dict"):
        calls = [(call.id, call.name, call.args) for call in result.tool_calls]
        return [result.content, calls, result.to_message_dict()]
    return result


async def calls_of(client: Any) -> list[Any]:
    return [
        await outcome(lambda: client.complete("Hello")),
        await outcome(lambda: client.complete("Hello", temperature=0.7, max_tokens=5, nonsense=1)),
        await outcome(lambda: client.complete_with_tools(MESSAGES, TOOLS, temperature=0.2)),
        await outcome(lambda: client.complete_with_tools([{"role": "user", "content": "Go"}], [])),
        [client.base_url, client.model, client.system_prompt, client.temperature, client.max_tokens],
    ]


async def main(url: str) -> dict[str, Any]:
    port = int(url.rpartition(":")[2])
    told: dict[str, Any] = {}
    for kind, cls in (("openai", OpenAIClient), ("anthropic", AnthropicClient)):
        told[kind] = await calls_of(cls("http://127.0.0.1", port, "small"))
        told[f"{kind} with more"] = await calls_of(
            cls(f"{url}/gate/v2", None, "small", api_key="k", system_prompt="Be wise.", temperature=1.5, max_tokens=9)
        )
    told["newer"] = await calls_of(OpenAIClient(url, None, "o3", use_max_completion_tokens=True, system_prompt="S"))
    told["endpoints"] = [await outcome(partial(url_of, *each)) for each in ENDPOINTS]
    told["abstract"] = await outcome(lambda: LLMClient("http://host", 1))
    told["prompts"] = [
        await outcome(lambda: Prompts("http://host", 1).complete("hi")),
        await outcome(lambda: Prompts("http://host", 1).complete_with_tools([], [])),
    ]
    for provider, model in (("OpenAI", "gpt-4"), ("openai", "o1-2024"), ("anthropic", "large"), ("nobody", "x")):
        made = await outcome(partial(create_llm_client, provider, model, "key", system_prompt="S"))
        told[f"{provider} {model}"] = (
            made
            if isinstance(made, str)
            else [type(made).__name__, made.base_url, made.model, made.system_prompt, made.temperature, made.max_tokens]
        )
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
