"""A TCP proxy that cuts connections, for tests of what survives that."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Final

from tests.support.servers import eventually

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with a reset, dropping whatever is on its way."""


class CuttingProxy:
    """Passes bytes both ways, and cuts each connection after a random number of them while it is `cutting`."""

    def __init__(self, port: int, seed: int, fewest: int, most: int) -> None:
        self._target = port
        self._dice = random.Random(seed)
        self._range = (fewest, most)
        self.cuts = 0
        self.cutting = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self) -> None:
        """Until `stop` is called; connections that are open then end with the event loop."""
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        await self._stopped.wait()
        server.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _carry(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far, far_out = await asyncio.open_connection("127.0.0.1", self._target)
        budget = [self._dice.randint(*self._range)]

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if self.cutting and len(data) >= budget[0]:
                        sink.write(data[: budget[0]])  # a frame may end in the middle
                        self.cuts += 1
                        return
                    budget[0] -= len(data)
                    sink.write(data)
                    await sink.drain()

        both = {asyncio.ensure_future(copy(near, far_out)), asyncio.ensure_future(copy(far, near_out))}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            hard = self._dice.random() < 0.5
            for writer in (near_out, far_out):
                if hard:
                    with contextlib.suppress(OSError):  # the other side was faster
                        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    writer.transport.abort()
                else:
                    writer.close()


@contextlib.contextmanager
def cutting_proxy(port: int, *, seed: int = 0, fewest: int = 50, most: int = 4000) -> Iterator[CuttingProxy]:
    """A proxy in front of a server on this machine, on a thread of its own."""
    proxy = CuttingProxy(port, seed, fewest, most)
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve()), daemon=True)
    thread.start()
    try:
        eventually(lambda: proxy.port)
        yield proxy
    finally:
        proxy.stop()
        thread.join(10)
