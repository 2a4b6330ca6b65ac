"""A worker process: `python -m envhive.server.worker`, started by the supervisor and by nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Final

import uvicorn

from envhive.errors import ConfigurationError, EnvironmentFactoryError
from envhive.server.auth import Tokens
from envhive.server.config import OF_THE_PROCESS, ServerConfig, as_mode, forced
from envhive.server.crew import Crew, enlist
from envhive.server.leaving import leave
from envhive.server.ledger import Ledger
from envhive.server.logs import set_up_logging
from envhive.server.nursery import keep_private
from envhive.server.run import Moments, run_app
from envhive.server.target import describe_target, load_target
from envhive.server.upgrade import receive_parcels
from envhive.server.workers import ORDERS

_LONGEST_WAIT: Final = 60.0
"""Seconds to wait for the other workers before accepting connections without them."""
_LOOK_S: Final = 0.5
"""Seconds between two looks at whether the others still find this worker."""
_PAUSE_S: Final = 10.0
"""Seconds before the next, where nothing can be done about it."""

logger: Final = logging.getLogger("envhive.server")


class WorkerMoments(Moments):
    """A worker's life among the others."""

    def __init__(self, orders: dict[str, Any], crew: Crew, about: dict[str, Any]) -> None:
        self._orders = orders
        self._crew = crew
        self._about = about
        self._staying: asyncio.Task[None] | None = None
        self._is_orphan = False

    async def before_listening(self, server: uvicorn.Server) -> None:
        receive_parcels(server.server_state.connections)
        self._crew.start()
        self._staying = asyncio.create_task(self._stay_where_others_look(server))
        # The pipe's other end closes when the supervisor is gone, however it went.
        asyncio.get_running_loop().add_reader(self._orders["lifeline"], self._orphaned, server)
        deadline = time.monotonic() + (_LONGEST_WAIT if self._orders["first"] else 0)
        while not all(self._crew.ledger.at_work()) and time.monotonic() < deadline and not server.should_exit:
            await asyncio.sleep(0.01)  # so that the first sessions find all workers to be spread over

    def ready(self) -> None:
        tell(self._orders["status"], self._about)

    def draining(self) -> None:
        self._crew.decline()

    def stopping(self) -> None:
        if self._is_orphan:
            self._give_up_the_port()
        self._leave_the_folder()
        self._crew.leave()

    async def _stay_where_others_look(self, server: uvicorn.Server) -> None:
        """If somebody clears out the folder of the sockets, no worker could reach another one any more."""
        speak = functools.partial(  # as uvicorn makes it
            server.config.http_protocol_class,  # type: ignore[call-arg]
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        while True:
            await asyncio.sleep(_LOOK_S)
            if server.started and not self._crew.can_be_found():
                try:
                    listener = self._crew.listen_anew()
                    added = await asyncio.get_running_loop().create_unix_server(speak, sock=listener)
                except OSError as error:
                    logger.error("The sockets for other workers are gone, and could not be made again: %s", error)
                    await asyncio.sleep(_PAUSE_S)
                else:
                    server.servers.append(added)
                    logger.warning("The sockets for other workers were gone, and have been made again")

    def _leave_the_folder(self) -> None:
        if self._staying is not None:
            self._staying.cancel()

    def _give_up_the_port(self) -> None:
        """For all workers: one that C code holds up does not hear that its supervisor is gone, and would keep it."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._orders["listener"])) as listener:
            listener.shutdown(socket.SHUT_RDWR)

    def _orphaned(self, server: uvicorn.Server) -> None:
        self._is_orphan = True
        self._leave_the_folder()
        asyncio.get_running_loop().remove_reader(self._orders["lifeline"])
        shutil.rmtree(self._orders["folder"], ignore_errors=True)  # nobody else is left to do it
        server.should_exit = True


def main() -> int:
    orders: dict[str, Any] = json.loads(os.environ.pop(ORDERS))
    for name in ("listener", "ledger", "lifeline", "status"):
        os.set_inheritable(orders[name], False)  # or what an environment starts would keep the server's port
    options = orders["options"]
    if options.get("mode") is not None:
        options["mode"] = as_mode(options["mode"])
    options["tokens"] = Tokens.unsealed(options["tokens"])
    config = ServerConfig.resolve(**options)
    set_up_logging(config.log_level, config.log_format, orders["index"])
    crew = Crew(orders["index"], Path(orders["folder"]), Ledger(orders["ledger"], orders["count"]))
    enlist(crew)
    keep_private(*(orders[name] for name in ("ledger", "lifeline", "status")))
    wanted = {name: value for name, value in options.items() if name not in OF_THE_PROCESS}
    try:
        with forced(**wanted):
            target = load_target(orders["target"], orders["settings"])
    except (ConfigurationError, EnvironmentFactoryError) as error:
        tell(orders["status"], {"error": str(error)})
        return 2
    moments = WorkerMoments(orders, crew, describe_target(target))
    listeners = [socket.socket(fileno=orders["listener"]), crew.listen_for_requests()]
    return run_app(target.app, config, listeners, moments)


def tell(status: int, message: dict[str, Any]) -> None:
    """Tell the supervisor the one thing it waits for."""
    os.write(status, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    leave(main())
