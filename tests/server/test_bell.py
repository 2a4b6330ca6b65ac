"""Threads wake the event loop, and what that takes is given back."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading

import pytest

from envhive.server.bell import Bell

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="nothing tells which descriptors are open")


def descriptors() -> set[str]:
    """Those that are open; the one that reads the folder no longer is."""
    return {name for name in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{name}")}


def hang(house: House) -> tuple[Bell, set[str]]:
    """A bell, and the descriptors that it took. Others may close meanwhile: garbage of the tests before."""
    before = descriptors()
    bell = Bell(asyncio.get_running_loop(), house.answer)
    return bell, descriptors() - before


class House:
    """Somebody who answers."""

    def __init__(self) -> None:
        self.answered_on: list[int] = []
        self.rung = asyncio.Event()

    def answer(self) -> None:
        self.answered_on.append(threading.get_ident())
        self.rung.set()


@pytest.fixture(params=["eventfd", "pipe"])
def _both_kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems other than Linux have no eventfd."""
    if request.param == "pipe":
        monkeypatch.setattr("envhive.server.bell.sys.platform", "darwin")


@pytest.mark.usefixtures("_both_kinds")
def test_a_ring_of_any_thread_is_answered_on_the_event_loop() -> None:
    async def main() -> None:
        house = House()
        bell = Bell(asyncio.get_running_loop(), house.answer)
        for times in range(1, 4):
            house.rung.clear()
            threading.Thread(target=bell.ring).start()
            await asyncio.wait_for(house.rung.wait(), 20)
            assert house.answered_on == [threading.get_ident()] * times
        bell.stop()

    asyncio.run(main())


@pytest.mark.usefixtures("_both_kinds")
def test_a_bell_that_was_stopped_is_silent_and_who_still_rings_reaches_nobody_else() -> None:
    async def main() -> None:
        house = House()
        bell, its_own = hang(house)
        bell.stop()
        bell.stop()
        assert its_own <= descriptors()  # or the next to open something would get its number
        bell.ring()
        await asyncio.sleep(0)
        assert not house.answered_on
        del bell
        assert not its_own & descriptors()

    asyncio.run(main())


@pytest.mark.usefixtures("_both_kinds")
def test_a_bell_that_nobody_has_any_more_gives_back_its_descriptors() -> None:
    async def main() -> None:
        house = House()
        bell, its_own = hang(house)
        assert its_own
        del bell
        async with asyncio.timeout(20):
            while its_own & descriptors():  # the loop does it
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_bell_may_outlive_its_event_loop() -> None:
    async def main() -> tuple[Bell, set[str]]:
        return hang(house)

    house = House()
    bell, its_own = asyncio.run(main())
    bell.ring()
    assert its_own <= descriptors()
    del bell
    assert not its_own & descriptors()


def test_a_bell_does_not_keep_who_answers_alive() -> None:
    async def main() -> None:
        house = House()
        bell = Bell(asyncio.get_running_loop(), house.answer)
        del house
        gc.collect()
        assert not [found for found in gc.get_objects() if type(found) is House]
        bell.ring()
        await asyncio.sleep(0)  # nobody answers, and nothing is wrong with that
        bell.stop()

    asyncio.run(main())


def test_no_bell_can_be_made_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*args: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        monkeypatch.setattr(os, "eventfd" if hasattr(os, "eventfd") else "pipe", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            Bell(asyncio.get_running_loop(), House().answer)

    asyncio.run(main())  # and nothing else goes wrong: a warning would be an error
