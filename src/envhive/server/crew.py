"""The workers of a server, as one of them sees the others.

Each worker listens on a Unix socket of its own, in a folder that only this user may enter. Over these sockets
workers hand connections to one another (the accepted socket itself, by descriptor), and ask each other how
they are, so that whichever worker a request reaches answers for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from envhive.errors import ConfigurationError
from envhive.server import forks
from envhive.server.ledger import MOST_HIVES, Ledger, Ticket
from envhive.server.places import SharedPlaces

logger: Final = logging.getLogger("envhive.server")

_PREFIX: Final = 4
_MOST_DESCRIPTORS: Final = 32
_BACKLOG: Final = 128
_UUID_LENGTH: Final = 36
_SIGN_S: Final = 0.25
"""How often a worker gives a sign of life: several times within the second after which it is taken for stalled."""


class Parcel(msgspec.Struct, tag="parcel", frozen=True):
    """A connection on its way to another worker; its socket travels beside it."""

    hive: int
    key: str
    headers: list[tuple[str, str]]
    early: bytes
    owner: int | None
    layer: int
    session: str | None
    ticket: Ticket | None
    """For the place that is reserved for it; None if it has a session."""


class Question(msgspec.Struct, tag="question", frozen=True):
    number: int
    hive: int
    what: str


class Answer(msgspec.Struct, tag="answer", frozen=True):
    number: int
    report: Any


Letter = Parcel | Question | Answer

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Letter).decode


class Channel:
    """A connection to another worker: letters, some with a descriptor."""

    def __init__(
        self,
        link: socket.socket,
        on_letter: Callable[[Channel, Letter, int | None], None],
        on_lost: Callable[[Channel], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._on_letter = on_letter
        self._on_lost = on_lost
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()
        self._outgoing: deque[tuple[bytes, int | None]] = deque()
        self.is_open = True
        """Whether the other can be told anything. If not, what it has said last may still be there to be read."""
        self._is_read_to_its_end = False
        link.setblocking(False)
        self._loop.add_reader(link, self._read)

    def send(self, letter: Letter, descriptor: int | None = None) -> None:
        """Send a letter; the descriptor, if any, is this channel's to close."""
        if not self.is_open:
            if descriptor is not None:
                os.close(descriptor)
            return
        body = _encode(letter)
        self._outgoing.append((len(body).to_bytes(_PREFIX, "big") + body, descriptor))
        if len(self._outgoing) == 1:
            self._write()

    def close(self) -> None:
        self._stop_writing()
        if self._is_read_to_its_end:
            return
        self._is_read_to_its_end = True
        self._loop.remove_reader(self._link)
        self._link.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _stop_writing(self) -> None:
        """The other is gone, and with it what it has not read."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_writer(self._link)
        for _, descriptor in self._outgoing:
            if descriptor is not None:
                os.close(descriptor)
        self._outgoing.clear()
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)  # if it was no end of the other's, it is to end this, too
        self._on_lost(self)

    def _write(self) -> None:
        while self._outgoing:
            data, descriptor = self._outgoing[0]
            try:
                if descriptor is None:
                    sent = self._link.send(data)
                else:
                    sent = socket.send_fds(self._link, [data], [descriptor])
            except BlockingIOError:
                self._loop.add_writer(self._link, self._write)
                return
            except OSError:
                self._stop_writing()
                return
            if descriptor is not None:
                os.close(descriptor)  # it is on its way, and the system holds it
            if sent < len(data):
                self._outgoing[0] = (data[sent:], None)
            else:
                self._outgoing.popleft()
        self._loop.remove_writer(self._link)

    def _read(self) -> None:
        # To the end: if the other died with letters unread, uvloop calls this once, for its last ones and its death.
        while not self._is_read_to_its_end and self._read_some():
            pass

    def _read_some(self) -> bool:
        """Take in what has come; False if there is nothing."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._link, 65536, _MOST_DESCRIPTORS)
        except BlockingIOError:
            return False
        except OSError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        if not data:
            self.close()
            return False
        self._incoming += data
        self._open_letters()
        return True

    def _open_letters(self) -> None:
        while len(self._incoming) >= _PREFIX:
            end = _PREFIX + int.from_bytes(self._incoming[:_PREFIX], "big")
            if len(self._incoming) < end:
                return
            letter = _decode(bytes(self._incoming[_PREFIX:end]))
            del self._incoming[:end]
            # At this process's limit of descriptors the system drops the one that came with a parcel.
            with_socket = isinstance(letter, Parcel) and self._descriptors
            self._on_letter(self, letter, self._descriptors.popleft() if with_socket else None)


class Member(Protocol):
    """A hive, as its crew sees it."""

    def report(self, what: str) -> Any:
        """Its `health`, its `sessions` or its `metrics`."""


class Crew:
    """All workers of a server, from the place of number `index` among them."""

    def __init__(self, index: int, folder: Path, ledger: Ledger) -> None:
        self.index = index
        self.ledger = ledger
        self._folder = folder
        self._members: list[Member] = []
        self.on_parcel: Callable[[Any, Parcel, socket.socket], None] | None = None
        """Called with the hive that a connection is for."""
        self._listener: socket.socket | None = None
        self._channels: dict[int, Channel] = {}
        self._on_the_way: dict[int, deque[Ticket]] = {}
        """Of connections that each of the others may not have taken yet."""
        self._incoming: set[Channel] = set()
        self._asked: dict[int, tuple[Channel, asyncio.Future[Any]]] = {}
        self._questions = 0

    # At the start.

    def join(self, member: Member, limit: int) -> SharedPlaces:
        """Places for a hive. Workers load the same app, so the hives of all of them come in the same order."""
        hive = len(self._members)
        if hive >= MOST_HIVES:
            raise ConfigurationError(f"An app with workers may serve {MOST_HIVES} environments at most.")
        self._members.append(member)
        return SharedPlaces(self.ledger, hive, self.index, limit)

    def start(self) -> None:
        """Listen to the others, and tell them that sessions are welcome here."""
        forks.keep_folder(str(self._folder))
        self._listen()
        self.ledger.set_at_work(self.index, True)
        self._give_signs()

    def _give_signs(self) -> None:
        """Show the others, for as long as the event loop runs, that it does."""
        self.ledger.sign(self.index)
        asyncio.get_running_loop().call_later(_SIGN_S, self._give_signs)

    def _listen(self) -> None:
        self._listener = self._bind(self._path(self.index))
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def listen_for_requests(self) -> socket.socket:
        """A listening socket for the HTTP requests that other workers pass on to this one."""
        return self._bind(self.path_for_requests(self.index))

    def _bind(self, path: Path) -> socket.socket:
        # The folder may be gone: some clear out temporary files while they are in use.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self._folder} is not this user's own any more")
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
        except OSError:
            listener.close()
            raise
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener

    def can_be_found(self) -> bool:
        """Whether this worker's sockets are where others look for them."""
        return self._path(self.index).exists() and self.path_for_requests(self.index).exists()

    def listen_anew(self) -> socket.socket:
        """Make the sockets again that others look for; returns that for HTTP requests."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        self._listen()
        return self.listen_for_requests()

    def path_for_requests(self, worker: int) -> Path:
        return self._folder / f"{worker}.http"

    def decline(self) -> None:
        """Take no more newcomers: this worker drains. Whoever has a session here still gets here."""
        self.ledger.set_at_work(self.index, True, takes_newcomers=False)

    def leave(self) -> None:
        """Take no more sessions: this worker is about to stop."""
        self.ledger.set_at_work(self.index, False)

    # Handing over.

    def owner_of(self, session_id: str) -> int | None:
        """The worker that made a session, if its name tells of one that is at work."""
        worker = session_id.rpartition(".")[2][_UUID_LENGTH + 1 :]
        at_work = self.ledger.at_work()
        if not worker.isascii() or not worker.isdecimal() or len(worker) > 4:
            return None
        return int(worker) if int(worker) < len(at_work) and at_work[int(worker)] else None

    def reaches(self, worker: int) -> bool:
        """Whether another worker can be spoken to: it may have died a moment ago."""
        return self._channel_to(worker) is not None

    def hand_over(self, worker: int, parcel: Parcel, connection: int) -> bool:
        """Give a connection to another worker; False if that cannot be reached: its place there is free again."""
        channel, copied = None, -1
        try:
            channel = self._channel_to(worker)
            copied = -1 if channel is None else os.dup(connection)
        except OSError as error:  # no descriptor is left
            logger.error("A connection could not be handed over: %s", error)
        if channel is None or copied < 0:
            if parcel.ticket is not None:
                self.ledger.lose(parcel.ticket)
            return False
        if parcel.ticket is not None:
            self._on_the_way.setdefault(worker, deque()).append(parcel.ticket)
            self._still_on_the_way(worker)
        channel.send(parcel, copied)
        return channel.is_open

    def _still_on_the_way(self, worker: int) -> list[Ticket]:
        """What another worker has yet to take; they arrive in the order in which they were sent."""
        tickets = self._on_the_way.get(worker, deque())
        for _ in range(len(tickets) - self.ledger.on_the_way(self.index, worker)):
            tickets.popleft()
        return list(tickets)

    # Asking.

    async def ask_all(self, hive: int, what: str, timeout: float = 2.0) -> dict[int, Any]:
        """What each worker reports of a hive; None from one that is down, or does not answer in time."""
        answers: dict[int, Any] = {self.index: self._members[hive].report(what)}
        waiting = {}
        for worker, at_work in enumerate(self.ledger.at_work()):
            if worker == self.index:
                continue
            answers[worker] = None
            channel = self._channel_to(worker) if at_work else None
            if channel is not None:
                self._questions += 1
                waiting[worker] = asyncio.get_running_loop().create_future()
                self._asked[self._questions] = (channel, waiting[worker])
                channel.send(Question(self._questions, hive, what))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=timeout)
        for worker, future in waiting.items():
            if future.done() and not future.cancelled():
                answers[worker] = future.result()
        for number in [number for number, (_, future) in self._asked.items() if future in waiting.values()]:
            del self._asked[number]  # a late answer is nobody's
        return dict(sorted(answers.items()))

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, OSError):
            link, _ = self._listener.accept()
            self._incoming.add(Channel(link, self._take, self._incoming.discard))

    def _channel_to(self, worker: int) -> Channel | None:
        channel = self._channels.get(worker)
        if channel is not None and channel.is_open:
            return channel
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor is left
            logger.error("Worker %d could not be reached: %s", worker, error)
            return None
        try:
            link.connect(str(self._path(worker)))
        except OSError:
            link.close()
            return None
        self._channels[worker] = channel = Channel(link, self._take, self._lost)
        return channel

    def _lost(self, channel: Channel) -> None:
        for worker in [worker for worker, known in self._channels.items() if known is channel]:
            for ticket in self._still_on_the_way(worker):
                self.ledger.lose(ticket)
        for asked, future in self._asked.values():
            if asked is channel and not future.done():
                future.set_result(None)

    def _take(self, channel: Channel, letter: Letter, descriptor: int | None) -> None:
        if isinstance(letter, Parcel):
            if descriptor is None or self.on_parcel is None:
                if letter.ticket is not None:
                    self.ledger.lose(letter.ticket)
                logger.error("A connection was lost on its way here: no descriptor is left for it")
                return
            self.on_parcel(self._members[letter.hive], letter, socket.socket(fileno=descriptor))
        elif isinstance(letter, Question):
            channel.send(Answer(letter.number, self._members[letter.hive].report(letter.what)))
        else:
            _, future = self._asked.pop(letter.number, (channel, None))
            if future is not None and not future.done():
                future.set_result(letter.report)

    def _path(self, worker: int) -> Path:
        return self._folder / f"{worker}.sock"


_crew: Crew | None = None


def enlist(crew: Crew) -> None:
    """From now on, hives of this process belong to `crew`."""
    global _crew
    _crew = crew


def current_crew() -> Crew | None:
    """The crew of this process, if it is a worker."""
    return _crew
