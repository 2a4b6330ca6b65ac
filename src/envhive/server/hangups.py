"""HTTP clients that hang up before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

OWN_RECEIVE: Final = "envhive.receive"
"""Where a scope leads to the `receive` that the request came with, whatever middleware has put in its place since. A
weak reference: it would keep the request and its scope alive until Python looks for cycles."""

_TURNS: Final = 6
"""Of the event loop: more than it takes from the end of a connection to the end of what `unless_gone` runs."""

CLIENT_GONE: Final = 499
"""What proxies write down of such a request. Nobody reads it."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer to a request that nobody can come back to: the work is cancelled when its client hangs up."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_cancel_when_gone(request, working))
    try:
        return await working
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not watching.done() or (task is not None and task.cancelling()):
            raise  # it is the request itself that is cancelled, by whoever serves it
        return Response(status_code=CLIENT_GONE)
    finally:
        watching.cancel()


async def _cancel_when_gone(request: Request, working: asyncio.Task[Response]) -> None:
    await hung_up(request.scope, request.receive)
    working.cancel()


async def hung_up(scope: Scope, receive: Receive) -> None:
    """Wait until the client hangs up; for ever, where nobody tells.

    This server's own `receive` tells, at once if the client has long gone.
    """
    if (reference := scope.get(OWN_RECEIVE)) is None:
        await _hung_up_as_far_as_is_known(receive)
        return
    while (own := reference()) is not None and (await own())["type"] != "http.disconnect":
        pass  # the body, which nobody has read


async def look_once_more() -> None:
    """Before a session is kept, let a hang-up that has arrived by now cancel this: nobody would name it, or end it."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _hung_up_as_far_as_is_known(receive: Receive) -> None:
    """The same under a server of others.

    Its own `receive` waits until it knows more. Middleware that has read the body often puts one in its place that
    never waits: it gives the body again each time, or says the second time that the client is gone. So one that says so
    without having waited is not believed, although the client may have been gone before it was asked.
    """
    loop = asyncio.get_running_loop()
    body_has_ended = False
    while True:
        waited = asyncio.Event()
        loop.call_soon(waited.set)
        message = await receive()
        if message["type"] == "http.disconnect":
            if waited.is_set():
                return
            break
        if body_has_ended:
            break
        body_has_ended = not message.get("more_body", False)  # of one that nobody has read
    await loop.create_future()
