"""Providers that place each replica by itself, and look after it: what they have in common."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from envhive.errors import ProviderError
from envhive.providers.base import Progress, Provider, Replica, ServerSpec, drain

_AT_ONCE: Final = 8
"""Replicas that are started or stopped at the same time."""
_HEALTHY_AFTER_S: Final = 10.0
"""A replica that has lived for so long has not failed at its start."""
_LONGEST_PAUSE_S: Final = 30.0


@dataclass
class _Place:
    """A replica that is wanted, or is about to go."""

    name: str
    began: float
    is_placed: bool = False
    """Whether the engine has it: before that it cannot have died."""
    failures: int = 0
    again_at: float | None = None
    """When to start it anew, if it has died."""
    leaving: threading.Thread | None = None
    address: Replica | None = field(default=None)


class PlacingProvider(Provider):
    """Starts, watches and stops replicas one by one. Safe to use from several threads.

    Args:
        drain_timeout_s: How long the sessions of a replica that is taken away may take to finish.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        replicas: int = 1,
        start_timeout_s: float = 120.0,
        drain_timeout_s: float = 300.0,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(spec, replicas=replicas, start_timeout_s=start_timeout_s, progress=progress)
        self.drain_timeout_s = drain_timeout_s
        self._places: dict[str, _Place] = {}
        self._made = 0
        self._lock = threading.RLock()

    # What an engine does with one replica.

    @abstractmethod
    def _place(self, name: str) -> None:
        """Begin to start a replica of this name."""

    @abstractmethod
    def _locate(self, name: str) -> Replica | None:
        """Where it answers; None as long as that is not known."""

    @abstractmethod
    def _ended(self, name: str) -> str | None:
        """How it has ended, in a few words; None while it has not."""

    @abstractmethod
    def _remove(self, name: str) -> None:
        """Stop it, in whatever state it is, and leave nothing. Fine if it is not there."""

    @abstractmethod
    def _said(self, name: str, lines: int) -> str:
        """The last lines of its log."""

    def _prepare(self) -> None:
        """What must be there before the first replica: a folder, an image, a connection to the engine."""

    def _clean_up(self) -> None:
        """What is left to do when no replica is left. May be called without `_prepare`, and twice."""

    # What they have in common.

    def _scale(self, count: int) -> None:
        with self._lock:
            if not self._places:
                self._released.clear()
                self._prepare()
            staying = [place for place in self._places.values() if place.leaving is None]
            fresh = [self._new_place() for _ in range(count - len(staying))]
            self._places.update((place.name, place) for place in fresh)
            leaving = staying[count:]
            for place in leaving:
                place.leaving = threading.Thread(target=self._see_off, args=(place,), daemon=True)
                place.leaving.start()
        self._for_all(self._put, fresh)
        for number, place in enumerate(leaving):
            self._tell(f"waiting for the sessions of {len(leaving) - number} replicas to finish")
            assert place.leaving is not None
            place.leaving.join()

    def _put(self, place: _Place) -> None:
        self._place(place.name)
        place.is_placed = True
        if self._released.is_set():  # all was stopped meanwhile
            self._remove(place.name)

    def _new_place(self) -> _Place:
        self._made += 1
        return _Place(f"r{self._made}", time.monotonic())

    def _see_off(self, place: _Place) -> None:
        """Let a replica's sessions finish, and stop it."""
        if (replica := self._find(place)) is not None:
            drain(replica.url, self.spec.token, self.drain_timeout_s, given_up=self._released)
        self._remove(place.name)
        with self._lock:
            self._places.pop(place.name, None)

    def replicas(self) -> list[Replica]:
        with self._lock:
            places = list(self._places.values())
        found = []
        for place in places:
            if (replica := self._find(place)) is not None:
                found.append(replace(replica, draining=place.leaving is not None))
        return found

    def _find(self, place: _Place) -> Replica | None:
        if place.address is None and place.again_at is None:
            place.address = self._locate(place.name)
        return place.address

    def _failure(self) -> str | None:
        with self._lock:
            places = list(self._places.values())
        for place in places:
            if place.is_placed and place.leaving is None and (how := self._ended(place.name)) is not None:
                return f"Replica {place.name} {how}."
        return None

    def tend(self) -> None:
        with self._lock:
            places = [place for place in self._places.values() if place.is_placed and place.leaving is None]
        now = time.monotonic()
        for place in places:
            if place.again_at is None and self._ended(place.name) is not None:
                place.failures = 0 if now - place.began > _HEALTHY_AFTER_S else place.failures + 1
                pause = 0.0 if place.failures <= 1 else min(_LONGEST_PAUSE_S, 0.5 * 2**place.failures)
                place.again_at, place.address = now + pause, None
                self._remove(place.name)
            if place.again_at is not None and now >= place.again_at and not self._released.is_set():
                self._replace(place)

    def _replace(self, dead: _Place) -> None:
        """Start another where one has died. It has another name: it knows nothing of the sessions of the dead."""
        with self._lock:
            if self._places.pop(dead.name, None) is None:
                return
            fresh = self._new_place()
            fresh.failures = dead.failures
            self._places[fresh.name] = fresh
        try:
            self._put(fresh)
        except ProviderError:
            fresh.is_placed, fresh.again_at = True, time.monotonic() + _LONGEST_PAUSE_S

    def restart(self) -> None:
        """Replace every replica by a fresh one, one at a time: first the new, then the old lets its sessions finish."""
        with self._lock:
            before = [place.name for place in self._places.values() if place.leaving is None]
        for name in before:
            with self._lock:
                old = self._places.get(name)
                if old is None or old.leaving is not None:
                    continue  # died meanwhile, and was replaced
                fresh = self._new_place()
                self._places[fresh.name] = fresh
            self.count += 1
            try:
                self._put(fresh)
                self._join()
            except BaseException:  # Ctrl-C too: what did not come up is not kept
                with self._lock:
                    self._places.pop(fresh.name, None)
                self._remove(fresh.name)
                raise
            finally:
                self.count -= 1
            old.leaving = threading.Thread(target=self._see_off, args=(old,), daemon=True)
            old.leaving.start()
            self._tell(f"waiting for the sessions of {name} to finish")
            old.leaving.join()

    def logs(self, lines: int = 100) -> str:
        with self._lock:
            names = list(self._places)
        parts = [(name, self._said(name, lines).strip()) for name in names]
        if len(parts) == 1:
            return parts[0][1]
        return "\n".join(f"--- {name}\n{said}" for name, said in parts if said)

    def _release(self) -> None:
        self._released.set()
        with self._lock:
            places = list(self._places.values())
        try:
            self._for_all(lambda place: self._remove(place.name), places)
            for place in places:
                if place.leaving is not None:
                    place.leaving.join()
        finally:
            with self._lock:
                self._places.clear()
                self._clean_up()

    @staticmethod
    def _for_all(action: Callable[[_Place], None], places: list[_Place]) -> None:
        """Do it to all at once; what goes wrong with one is raised when all have been done."""
        if not places:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(places))) as pool:
            futures = [pool.submit(action, place) for place in places]
        for future in futures:
            future.result()
