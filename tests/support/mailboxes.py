"""Jobs for threads, and their answers, on an event loop of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from envhive.errors import EnvHiveError
from envhive.server.pool import Pool
from envhive.server.threads import Mailbox, Worker

STACK = 512 * 1024


def on_a_loop(test: Callable[[Mailbox], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(Mailbox(asyncio.get_running_loop(), STACK)), 30)

    asyncio.run(main())


class Customer:
    given_up = False


def ask(
    worker: Worker | Pool, job: Callable[..., Any], *args: Any, customer: Customer | None = None
) -> asyncio.Future[Any]:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: EnvHiveError | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    if isinstance(worker, Pool):
        worker.submit(job, args, done, customer or Customer())
    else:
        worker.submit(job, args, done)
    return answer
