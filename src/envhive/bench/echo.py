"""The floor: picows on uvloop, sending every frame straight back. No Python server on this stack does less.

python -m envhive.bench.echo PORT
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server


class Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, frame.get_payload_as_memoryview())
        elif frame.msg_type is WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code())
            transport.disconnect()


async def serve(port: int) -> None:
    told_to_stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    server = await ws_create_server(lambda request: Echo(), "127.0.0.1", port, backlog=4096)
    async with server:
        await told_to_stop.wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
