"""HTTP clients that hang up before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

_CLIENT_GONE: Final = 499
"""What proxies write down of such a request. Nobody reads it."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer to a request that nobody can come back to: the work is cancelled when its client hangs up."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_cancel_when_gone(request.receive, working))
    try:
        return await working
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not watching.done() or (task is not None and task.cancelling()):
            raise  # it is the request itself that is cancelled, by whoever serves it
        return Response(status_code=_CLIENT_GONE)
    finally:
        watching.cancel()


async def _cancel_when_gone(receive: Receive, working: asyncio.Task[Response]) -> None:
    await hung_up(receive)
    working.cancel()


async def hung_up(receive: Receive) -> None:
    """Wait until the client hangs up; for ever, where `receive` does not tell.

    A server's own waits until it knows more. Middleware that has read the body often puts one in its place that never
    waits: it gives the body again each time, or says the second time that the client is gone.
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
