"""Routes that OpenEnv's apps do not have: they give way to what an environment has of its own at the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import Scope

_ASKING: Final = "envhive.asking"
"""In a scope that only asks which of the app's routes would take it."""


def offer(app: FastAPI, method: str, path: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `app.get` and the like do it, but what the app has itself at this place comes first, whenever it was added."""

    def register(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        app.router.add_api_route(path, endpoint, methods=[method], route_class_override=_Offered, **options)
        return endpoint

    return register


class _Offered(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is Match.NONE or _ASKING in scope or _is_taken(scope):
            return Match.NONE, {}
        return match, child_scope


def _is_taken(scope: Scope) -> bool:
    """Whether a route of the app's own is meant for this place, and not merely for all that nobody else takes."""
    root, path = scope.get("root_path", ""), scope["path"]
    _, slash, further = path.removeprefix(root).lstrip("/").partition("/")
    here, inside, anywhere = (
        {**scope, _ASKING: True, "path": each} for each in (path, f"{path}/", f"{root}/-{slash}{further}")
    )
    return any(
        # Of a mounted app this place is the door: Starlette sends its visitors inside.
        (_takes(route, here) or (isinstance(route, Mount) and _takes(route, inside))) and not _takes(route, anywhere)
        for route in scope["app"].routes
    )


def _takes(route: BaseRoute, scope: Scope) -> bool:
    return route.matches(scope)[0] is Match.FULL
