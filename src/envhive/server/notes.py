"""What a running tool says before it is done, brought from wherever it runs to whoever listens."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

_send: Callable[[Note], None] | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something said in another process, and the number of who is to hear it."""

    number: int
    said: dict[str, Any]


class Listening:
    """Hears on the event loop what is said on any thread. In another process it has a stand-in, which sends notes."""

    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _all: ClassVar[WeakValueDictionary[int, Listening]] = WeakValueDictionary()

    def __init__(self, hear: Callable[[dict[str, Any]], None]) -> None:
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._number: Final = next(self._numbers)
        self._all[self._number] = self

    def __call__(self, said: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._hear, said)

    def __reduce__(self) -> tuple[Any, ...]:
        return _stand_in, (self._number,)

    @classmethod
    def deliver(cls, note: Note) -> None:
        """A note has come. Whoever it was for may have left."""
        listening = cls._all.get(note.number)
        if listening is not None:
            listening._hear(note.said)


def send_notes_by(send: Callable[[Note], None]) -> None:
    """In an environment's process: how to send a note."""
    global _send
    _send = send


def _stand_in(number: int) -> Callable[[dict[str, Any]], None]:
    return functools.partial(_note, number)


def _note(number: int, said: dict[str, Any]) -> None:
    if _send is not None:
        _send(Note(number, said))
