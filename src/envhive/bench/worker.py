"""A load process: takes jobs from the lab over a pipe, one after the other, and ends when the lab does.

python -m envhive.bench.worker FD
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection

import uvloop

from envhive.bench.jobs import (
    Answer,
    Close,
    Closed,
    Cut,
    Drive,
    Job,
    Open,
    Progress,
    Stop,
    Storm,
    decode_job,
    encode_answer,
)
from envhive.bench.limits import raise_file_limit
from envhive.bench.pacing import Household
from envhive.bench.storming import storm


class Worker:
    """One end of the pipe, and the job that is being done."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._household = Household()
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read)
        self._report(0, 0)  # awake
        try:
            await self._over.wait()
        finally:
            loop.remove_reader(self._pipe.fileno())
            await self._leave_off()

    def _read(self) -> None:
        try:
            while self._pipe.poll():  # to the end: if the lab died with answers unread, uvloop calls this only once
                self._begin(decode_job(self._pipe.recv_bytes()))
        except (EOFError, OSError):  # the lab has ended, and with it all that it asked for
            self._over.set()

    def _begin(self, job: Job) -> None:
        if isinstance(job, Stop):
            if self._task is not None:
                self._task.cancel()
        elif isinstance(job, Cut):
            self._household.cut(job.at)
        else:
            self._task = asyncio.get_running_loop().create_task(self._work(job))

    async def _work(self, job: Job) -> None:
        gc.collect()
        gc.disable()  # a collection in the middle would idle the server for as long
        try:
            self._say(await self._do(job))
        finally:
            gc.enable()

    async def _do(self, job: Job) -> Answer:
        if isinstance(job, Storm):
            return await storm(job, self._report)
        if isinstance(job, Open):
            return await self._household.open(job, self._report)
        if isinstance(job, Drive):
            return await self._household.drive(job, self._report)
        assert isinstance(job, Close)
        await self._household.close(job)
        return Closed()

    async def _leave_off(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._household.close(Close(timeout_s=0.5))

    def _report(self, done: int, failed: int) -> None:
        self._say(Progress(done, failed))

    def _say(self, answer: Answer) -> None:
        # Watching the pipe made it non-blocking, and an answer with 100,000 durations does not fit into it at once.
        os.set_blocking(self._pipe.fileno(), True)
        try:
            self._pipe.send_bytes(encode_answer(answer))
        except OSError:
            self._over.set()
        finally:
            os.set_blocking(self._pipe.fileno(), False)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to answer
    raise_file_limit()
    with Connection(int(sys.argv[1])) as pipe:
        uvloop.run(Worker(pipe).run())


if __name__ == "__main__":
    main()
