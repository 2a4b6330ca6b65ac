"""Pairing replies with requests on a wire that has no request ids.

Replies come in the order of the requests, one each. A request that nobody waits for any longer
(its caller timed out or was cancelled) keeps its place in the line, so that its late reply is
recognised and dropped instead of being handed to the next caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

OnReply = Callable[[Any, BaseException | None], None]


class Ticket:
    """A place in the line."""

    __slots__ = ("_on_reply",)

    def __init__(self, on_reply: OnReply) -> None:
        self._on_reply: OnReply | None = on_reply

    def abandon(self) -> None:
        """Nobody waits any longer; the reply will be dropped when it comes."""
        self._on_reply = None

    def settle(self, reply: Any, error: BaseException | None) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(reply, error)


class Pairing:
    """The line of requests whose replies are still to come.

    Example:
        >>> line, seen = Pairing(), []
        >>> first = line.expect(lambda reply, error: seen.append(reply))
        >>> second = line.expect(lambda reply, error: seen.append(reply))
        >>> first.abandon()
        >>> line.deliver("late"), line.deliver("mine"), seen
        (True, True, ['mine'])
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, on_reply: OnReply) -> Ticket:
        """Take a place for a request that is being sent now."""
        ticket = Ticket(on_reply)
        self._waiting.append(ticket)
        return ticket

    def deliver(self, reply: Any, error: BaseException | None = None) -> bool:
        """Give a reply to the request at the head of the line; False if no request is waiting."""
        if not self._waiting:
            return False
        self._waiting.popleft().settle(reply, error)
        return True

    def fail_all(self, make_error: Callable[[], BaseException]) -> None:
        """The connection is gone: every request in the line gets an error of its own."""
        while self._waiting:
            self._waiting.popleft().settle(None, make_error())
