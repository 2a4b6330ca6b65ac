"""Sessions that stay, as one load process drives them: each at its own pace, or all at a fixed rate."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport

from envhive.bench.alarm import Alarm
from envhive.bench.dial import Dialer, Said, kind_of
from envhive.bench.jobs import Close, Drive, Driven, Open, Opened, clock, durations, pack

_RESET: Final = b'{"type": "reset", "data": {}}'
_REPORT_EVERY_S: Final = 0.25
_DUE_AT_ONCE: Final = 1000
"""Overdue steps sent in one go before replies are looked at again."""


class Window:
    """What is measured, and until when."""

    def __init__(self, job: Drive) -> None:
        self.begin = job.begin_at
        self.end = job.begin_at + job.seconds
        self.step = f'{{"type": "step", "data": {job.action}}}'.encode()
        self.think_s = job.think_s
        self.open_loop = job.rate is not None
        self.stopping = False
        self.steps = self.well = self.failed = 0
        self.latencies = durations()
        self.lag = durations()
        self.errors: Counter[str] = Counter()

    def answered(self, due_at: float, now: float, error: str | None) -> None:
        if error is None and self.begin <= now < self.end:
            self.steps += 1  # also one that was due before: the server's CPU time of the window went into it
        if not self.concerns(due_at, now):
            return
        self.latencies.append(now - due_at)
        if error is None:
            self.well += 1
        else:
            self.failed += 1
            self.errors[error] += 1

    def concerns(self, due_at: float, now: float) -> bool:
        """Whether the window has to tell of a step that was due then and is answered, or given up, now.

        With a fixed rate, a step belongs to the window it was due in, however late its answer comes. Otherwise to the
        window that it touches: a server that stalls for the whole of it must not be left out of its figures.
        """
        return due_at < self.end and (self.begin <= due_at if self.open_loop else self.begin <= now)


class Resident(WSListener):
    """One session that stays."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._resetting = False
        self.transport: WSTransport | None = None
        self.window: Window | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.due: deque[float] = deque()
        """When the step that is under way was due, and those that wait behind it."""
        self.lost = False

    # What picows tells.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        transport.send(WSMsgType.TEXT, _RESET)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.TEXT:
            error, done = self._said.read(frame.get_payload_as_memoryview())
            if self._resetting:
                self._begun_anew(error)
            elif self.opened.done():
                self._answered(error, done)
            elif error is None:
                self.opened.set_result(None)
            else:
                self.opened.set_exception(ConnectionError(error))
        elif frame.msg_type is WSMsgType.CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.lost = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("connection lost"))
        elif self.window is not None and not self.window.stopping:
            self.window.errors["connection lost"] += 1

    # What the window asks for.

    def step_at(self, due_at: float) -> None:
        """A step is due; it is sent when those before it are answered."""
        self.due.append(due_at)
        if len(self.due) == 1 and not self._resetting:
            self._send()

    def unanswered(self) -> list[float]:
        """When the steps were due that have no answer."""
        left = list(self.due)
        self.due.clear()
        return left

    def _send(self) -> None:
        if self.transport is not None and not self.lost and self.window is not None:
            self.transport.send(WSMsgType.TEXT, self.window.step)

    def _answered(self, error: str | None, done: bool) -> None:
        if self.window is None or not self.due:
            return  # an answer that nobody measures any more
        self.window.answered(self.due.popleft(), clock(), error)
        if done and self.transport is not None:
            self._resetting = True  # no step is for an episode that is over
            self.transport.send(WSMsgType.TEXT, _RESET)
        else:
            self._go_on()

    def _begun_anew(self, error: str | None) -> None:
        self._resetting = False
        if error is not None and self.window is not None:
            self.window.failed += 1
            self.window.errors[error] += 1
        self._go_on()

    def _go_on(self) -> None:
        """The next step: the one that waits, or in the closed loop a new one."""
        window = self.window
        if window is None:
            return
        if self.due:
            self._send()
        elif not window.open_loop and not window.stopping:
            if window.think_s:
                asyncio.get_running_loop().call_later(window.think_s, self._think_over)
            else:
                self.due.append(clock())
                self._send()

    def _think_over(self) -> None:
        if self.window is not None and not self.window.stopping:
            self.step_at(clock())


class Household:
    """All the sessions of this process that stay."""

    def __init__(self) -> None:
        self.residents: list[Resident] = []
        self._said = Said()
        self._window: Window | None = None

    async def open(self, job: Open, report: Callable[[int, int], None]) -> Opened:
        """Open and reset sessions, so many at once."""
        took, errors, spent = durations(), Counter[str](), time.process_time()
        dialer, turn = Dialer(job.url, job.sources), asyncio.Semaphore(job.at_once)
        deadline = asyncio.get_running_loop().time() + job.timeout_s

        async def open_one() -> None:
            async with turn:
                began, resident = clock(), Resident(self._said)
                try:
                    async with asyncio.timeout_at(deadline):
                        await dialer.connect_ws(resident)
                        await resident.opened
                except (OSError, WSError) as error:
                    errors[str(error) if type(error) is ConnectionError else kind_of(error)] += 1
                    _let_go(resident)
                else:
                    took.append(clock() - began)
                    self.residents.append(resident)
                if (len(took) + sum(errors.values())) % 64 == 0:
                    report(len(took) + sum(errors.values()), sum(errors.values()))

        try:
            await dialer.look_up()
        except OSError as error:
            errors[kind_of(error)] += job.sessions
        else:
            await asyncio.gather(*(open_one() for _ in range(job.sessions)))
        return Opened(pack(took), dict(errors), clock(), time.process_time() - spent, self._said.words)

    def cut(self, at: float) -> None:
        """The window that is being measured ends sooner than it was to."""
        if self._window is not None:
            self._window.end = min(self._window.end, at)

    async def drive(self, job: Drive, report: Callable[[int, int], None]) -> Driven:
        self._window = window = Window(job)
        residents = [resident for resident in self.residents if not resident.lost]
        if len(residents) < len(self.residents):
            window.errors["connection lost"] += len(self.residents) - len(residents)
        for resident in residents:
            resident.due.clear()
            resident.window = window
        await asyncio.sleep(max(job.warm_up_at - clock(), 0))
        with contextlib.ExitStack() as stack:
            if job.rate is not None and residents:
                stack.enter_context(_arrivals(job, window, residents, job.rate))
            elif job.rate is None:
                self._set_off(window, residents)
            cpu_s = await self._wait(window, report)
        lost = sum(resident.lost for resident in self.residents)
        await self._drain(window, residents, job.drain_s)
        now, unanswered = clock(), 0
        # In the closed loop a session that was lost asks for no more steps, so it counts as a whole. At a fixed rate
        # steps are due at it all the same, and nobody answers them.
        asked = residents if window.open_loop else [resident for resident in residents if not resident.lost]
        for due_at in (due_at for resident in asked for due_at in resident.unanswered()):
            if window.concerns(due_at, now):
                unanswered += 1
                window.latencies.append(now - due_at)  # it took at least so long
        for resident in residents:
            resident.window = None
        return Driven(
            steps=window.steps,
            latencies=pack(window.latencies),
            errors=dict(window.errors),
            well=window.well,
            failed=window.failed,
            unanswered=unanswered,
            lost=lost,
            cpu_s=cpu_s,
            lag=pack(window.lag),
            said=self._said.words,
        )

    def _set_off(self, window: Window, residents: list[Resident]) -> None:
        """Start the closed loop; with time to think, spread over it, or all would step in one wave for ever."""
        loop = asyncio.get_running_loop()
        for place, resident in enumerate(residents):
            if window.think_s:
                loop.call_later(window.think_s * place / len(residents), resident._think_over)
            else:
                resident.step_at(clock())

    async def _wait(self, window: Window, report: Callable[[int, int], None]) -> float:
        """Sit out the window; returns the CPU time that this process used in it."""
        await asyncio.sleep(max(window.begin - clock(), 0))
        spent = time.process_time()
        while (left := window.end - clock()) > 0:
            await asyncio.sleep(min(left, _REPORT_EVERY_S))
            report(window.steps, sum(window.errors.values()))
        return time.process_time() - spent

    async def _drain(self, window: Window, residents: list[Resident], limit_s: float) -> None:
        """Give the steps under way their time to be answered."""
        window.stopping = True
        deadline = clock() + limit_s
        while clock() < deadline and any(resident.due and not resident.lost for resident in residents):
            await asyncio.sleep(0.01)

    async def close(self, job: Close) -> None:
        """Say goodbye to all, and wait for the server, so that its clean-up burdens nobody's next window."""
        residents, self.residents = self.residents, []
        for resident in residents:
            if resident.transport is not None and not resident.lost:
                resident.transport.send_close(WSCloseCode.OK)
        deadline = clock() + job.timeout_s
        while clock() < deadline and not all(resident.lost for resident in residents):
            await asyncio.sleep(0.01)
        for resident in residents:
            _let_go(resident)


def _let_go(resident: Resident) -> None:
    if resident.transport is not None and not resident.lost:
        resident.transport.disconnect(graceful=False)
    if resident.opened.done():
        resident.opened.cancelled() or resident.opened.exception()  # looked at, so that nobody complains
    else:
        resident.opened.cancel()


def _arrivals(job: Drive, window: Window, residents: list[Resident], rate: float) -> Alarm:
    """Steps at fixed moments, session after session, whether or not the server keeps up."""
    number = int((job.warm_up_at - job.begin_at) * rate)  # negative: the steps of the warm-up

    def send_what_is_due() -> None:
        nonlocal number
        for _ in range(_DUE_AT_ONCE):
            due_at = job.begin_at + job.first_at + number / rate
            now = clock()
            if due_at >= window.end:
                return
            if due_at > now:
                break
            if due_at >= window.begin:
                window.lag.append(now - due_at)
            residents[number % len(residents)].step_at(due_at)
            number += 1
        alarm.set(due_at)

    alarm = Alarm(send_what_is_due)
    asyncio.get_running_loop().call_soon(send_what_is_due)
    return alarm
