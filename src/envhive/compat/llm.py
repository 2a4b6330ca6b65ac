"""OpenEnv's clients of language models: the OpenAI API, which most servers of models speak, and Anthropic's.

The packages `openai` and `anthropic` are imported when a client is made, so that mentioning one costs nothing.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from envhive.compat.conversation import for_anthropic, tools_for_anthropic, tools_for_openai

_PORTS: Final = range(1, 65536)
_NO_KEY: Final = "not-needed"
"""What is sent where no key is given: the packages insist on one, servers on one's own machine do not."""


@dataclass
class ToolCall:
    """A tool that the model wants to be called."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """What a model said, and which tools it wants to be called.

    Example:
        >>> LLMResponse("hello").to_message_dict()
        {'role': 'assistant', 'content': 'hello'}
    """

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """The same as a message of the OpenAI API, for the next request."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": json.dumps(each.args)}}
                for each in self.tool_calls
            ]
        return message


class LLMClient(ABC):
    """A language model somewhere else.

    Args:
        endpoint: An http or https URL, with or without a port and a path.
        port: The port, where the URL has none.
    """

    def __init__(self, endpoint: str, port: int | None) -> None:
        self.endpoint = endpoint
        self.port = port

    @property
    def base_url(self) -> str:
        """The endpoint with its port."""
        return _with_port(self.endpoint, self.port)

    @abstractmethod
    async def complete(self, prompt: str, **kwargs: Any) -> str:
        """What the model answers to a prompt. Keywords (`temperature`, `max_tokens`) are for this call alone."""

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        """What the model answers in a conversation (messages of the OpenAI API) with tools (as MCP describes them)."""
        raise NotImplementedError(f"{type(self).__name__} has no complete_with_tools: it takes prompts only")


class OpenAIClient(LLMClient):
    """A server with the OpenAI API: OpenAI itself, vLLM, TGI, Ollama and others.

    Args:
        endpoint: Where it is; `/v1` is added to a URL without a path.
        port: The port, where the URL has none.
        model: Which model.
        api_key: Not needed by most servers of one's own.
        system_prompt: Said before each prompt.
        temperature: Of the sampling.
        max_tokens: Most tokens of an answer.
        use_max_completion_tokens: For newer models of OpenAI's, which call that limit so and take no temperature.
    """

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        use_max_completion_tokens: bool = False,
    ) -> None:
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        self._newer = use_max_completion_tokens
        parts = urlsplit(self.base_url)
        base_url = urlunsplit(parts._replace(path=parts.path or "/v1"))
        openai = _imported("openai", type(self).__name__)
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key=_NO_KEY if api_key is None else api_key)

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        before = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        answer = await self._ask([*before, {"role": "user", "content": prompt}], **kwargs)
        return answer.content or ""

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        answer = await self._ask(messages, tools_for_openai(tools), **kwargs)
        calls = [
            ToolCall(id=call.id, name=call.function.name, args=json.loads(call.function.arguments))
            for call in answer.tool_calls or ()
        ]
        return LLMResponse(content=answer.content or "", tool_calls=calls)

    async def _ask(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> Any:
        request: dict[str, Any] = {"model": self.model, "messages": messages}
        limit = kwargs.get("max_tokens", self.max_tokens)
        if self._newer:
            request["max_completion_tokens"] = limit
        else:
            request |= {"max_tokens": limit, "temperature": kwargs.get("temperature", self.temperature)}
        if tools:
            request["tools"] = tools
        return (await self._client.chat.completions.create(**request)).choices[0].message


class AnthropicClient(LLMClient):
    """A server with Anthropic's Messages API.

    Args:
        endpoint: Where it is.
        port: The port, where the URL has none.
        model: Which model.
        api_key: For the server.
        system_prompt: Said before each prompt, and in conversations that have no system message.
        temperature: Of the sampling.
        max_tokens: Most tokens of an answer.
    """

    def __init__(
        self,
        endpoint: str,
        port: int | None,
        model: str,
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
    ) -> None:
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        anthropic = _imported("anthropic", type(self).__name__)
        self._client = anthropic.AsyncAnthropic(base_url=self.base_url, api_key=_NO_KEY if api_key is None else api_key)

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        blocks = await self._ask([{"role": "user", "content": prompt}], self.system_prompt, **kwargs)
        return "".join(block.text for block in blocks if block.type == "text")

    async def complete_with_tools(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        system, turns = for_anthropic(messages)
        blocks = await self._ask(turns, system or self.system_prompt, tools_for_anthropic(tools), **kwargs)
        return LLMResponse(
            content="".join(block.text for block in blocks if block.type == "text"),
            tool_calls=[
                ToolCall(id=block.id, name=block.name, args=block.input) for block in blocks if block.type == "tool_use"
            ],
        )

    async def _ask(
        self,
        messages: list[dict[str, Any]],
        system: str | None,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": kwargs.get("max_tokens", self.max_tokens),
            # The package took it by name up to 0.125 and does no longer; this way all releases send the same.
            "extra_body": {"temperature": kwargs.get("temperature", self.temperature)},
        }
        if system:
            request["system"] = system
        if tools:
            request["tools"] = tools
        return (await self._client.messages.create(**request)).content


_NEWER: Final = ("gpt-5-mini", "o1", "o3", "o4-mini")
"""How the names of models begin that want `use_max_completion_tokens`."""


def create_llm_client(
    provider: str,
    model: str,
    api_key: str,
    *,
    system_prompt: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
) -> LLMClient:
    """A client of a model that OpenAI or Anthropic hosts.

    Args:
        provider: `openai` or `anthropic`.
        model: Which model.
        api_key: For the provider.
        system_prompt: Said before each prompt.
        temperature: Of the sampling.
        max_tokens: Most tokens of an answer.
    """
    settings: dict[str, Any] = {
        "api_key": api_key,
        "system_prompt": system_prompt,
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    match provider.lower():
        case "openai":
            newer = model.startswith(_NEWER)
            return OpenAIClient("https://api.openai.com", 443, model, use_max_completion_tokens=newer, **settings)
        case "anthropic":
            return AnthropicClient("https://api.anthropic.com", 443, model, **settings)
    raise ValueError(f"There is no client for the provider {provider!r}; there are 'anthropic' and 'openai'")


def _imported(package: str, wanted_by: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is there, and something that it needs is not
        raise ImportError(f"{wanted_by} needs the package {package!r}: pip install {package}") from error


def _with_port(endpoint: str, port: int | None) -> str:
    """The URL with its port, and without a slash at its end; raises `ValueError` that says what is wrong with it."""
    try:
        parts = urlsplit(endpoint)
        own = parts.port
    except ValueError as error:
        raise ValueError(f"{_without_secret(endpoint)!r} is no URL of a language model: {error}") from None
    wrong = {
        "it must begin with http:// or https://": parts.scheme not in ("http", "https"),
        "it names no host": not parts.hostname,
        "a key belongs in api_key, not into the URL": "@" in parts.netloc,
        "it may have a path, but no query and no fragment": bool(parts.query or parts.fragment),
        "there is no port after the colon": parts.netloc.endswith(":"),
        "ports go from 1 to 65535": any(each is not None and each not in _PORTS for each in (own, port)),
        f"it has port {own}, which is not port={port}": None not in (own, port) and own != port,
    }
    for reason, holds in wrong.items():
        if holds:
            raise ValueError(f"{_without_secret(endpoint)!r} is no URL of a language model: {reason}")
    netloc = parts.netloc if own is not None or port is None else f"{parts.netloc}:{port}"
    return urlunsplit(parts._replace(netloc=netloc, path=parts.path.rstrip("/")))


def _without_secret(endpoint: str) -> str:
    """For messages, which are logged: what stands before an @ may be a password."""
    scheme, separator, rest = endpoint.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}***@{host.rpartition('@')[2]}{slash}{path}" if "@" in host else endpoint
