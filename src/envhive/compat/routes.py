"""OpenEnv's way to declare GET endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI


@dataclass
class GetEndpointConfig:
    """One GET endpoint, and what answers it."""

    path: str
    handler: Callable[[], Any]
    response_model: Any
    tag: str
    summary: str
    description: str


def register_get_endpoints(app: FastAPI, configs: Iterable[GetEndpointConfig]) -> None:
    """Put endpoints on an app."""
    for config in configs:
        app.add_api_route(
            config.path,
            _endpoint(config.handler),
            methods=["GET"],
            response_model=config.response_model,
            tags=[config.tag],
            summary=config.summary,
            description=config.description,
        )


def _endpoint(handler: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def endpoint() -> Any:
        return handler()

    return endpoint
