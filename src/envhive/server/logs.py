"""What the server and its environments log: as text or as JSON, with the session and the episode it is about.

A `LogTag` says which. It is a context variable where a session's code runs, set once where that has a thread, a task
or a process of its own; the handler reads it when a record is made. So a step costs nothing more.
"""

from __future__ import annotations

import contextvars
import copy
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(session)s%(message)s"
_SHORT_ID: Final = 8
"""Characters of a session's id that tell it from others at a glance."""


class LogTag:
    """The session and the episode that log records are about."""

    __slots__ = ("episode_id", "session_id")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.episode_id: str | None = None
        """As the last reset was told, if it was."""

    def begin_episode(self, keywords: dict[str, Any]) -> None:
        """A reset is asked for, with these keywords."""
        named = keywords.get("episode_id")
        self.episode_id = named if isinstance(named, str) else None

    def context(self) -> contextvars.Context:
        """A context in which this is the tag."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return context

    def call(self, job: Callable[..., Any], *args: Any) -> Any:
        """Call something under this tag."""
        before = _current.set(self)
        try:
            return job(*args)
        finally:
            _current.reset(before)

    def fields(self) -> dict[str, Any]:
        """For the `extra` of a message about the session that is logged elsewhere."""
        return {"session_id": self.session_id, "episode_id": self.episode_id}


_current: contextvars.ContextVar[LogTag | None] = contextvars.ContextVar("envhive_log_tag", default=None)

set_tag: Final = _current.set
"""Make a tag that of the current thread, task or process for good."""


class Inline:
    """The session whose plain code an event loop runs just now: two attributes set, where a context takes 0.2 µs."""

    __slots__ = ("tag",)

    def __init__(self) -> None:
        self.tag: LogTag | None = None


_inlines: Final[dict[int, Inline]] = {}


def inline_here() -> Inline:
    """That of the current thread."""
    return _inlines.setdefault(threading.get_ident(), Inline())


def current_tag() -> LogTag | None:
    """The session whose code is running here, if any is."""
    inline = _inlines.get(threading.get_ident())
    return _current.get() if inline is None or inline.tag is None else inline.tag


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream. One that cannot be written is lost, and nothing else is."""

    def emit(self, record: logging.LogRecord) -> None:
        tag = current_tag()
        if tag is not None and not hasattr(record, "session_id"):
            record.session_id, record.episode_id = tag.session_id, tag.episode_id
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk, or a pipe that nobody reads any more. There is no place to say so."""


class TextFormatter(logging.Formatter):
    """A line for a person, with the beginning of the session's id if there is a session."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        try:
            return super().format(record)
        except Exception:  # as in `message_of`
            readable = copy.copy(record)
            readable.msg, readable.args = message_of(record), None
            return super().format(readable)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        session_id = getattr(record, "session_id", None)
        record.session = f"[{str(session_id)[:_SHORT_ID]}] " if session_id else ""
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
            "worker": self._worker,
            "pid": os.getpid(),
            "session_id": getattr(record, "session_id", None) or None,
            "episode_id": getattr(record, "episode_id", None),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps({name: value for name, value in fields.items() if value is not None}, default=str)


def message_of(record: logging.LogRecord) -> str:
    """The message; as it was written where its arguments do not fit it."""
    try:
        return record.getMessage()
    except Exception:  # an environment's own mistake, or an argument whose `__str__` fails
        return f"{record.msg!s} (its arguments do not fit)"


def set_up_logging(level: str, log_format: str = "text", worker: int | None = None) -> None:
    """Log to the standard error stream. `worker` is this process's number, if there are several."""
    handler = LogHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(log_format == "json")
    # uvicorn's own messages about starting and connecting say nothing that the announcement does not.
    logging.getLogger("uvicorn.error").setLevel("DEBUG" if level == "debug" else "WARNING")
