"""File descriptors: each session is one, and the system lets a process have only so many."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
from typing import Final

logger: Final = logging.getLogger("envhive.server")

_SPARE: Final = 64
"""What a process has open beside its sessions."""
_SILENCE_S: Final = 60.0


def raise_limit() -> None:
    """Allow as many as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def warn_if_too_few(sessions: int) -> None:
    """Say so where this process could not have as many sessions as it may be asked for."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and sessions + _SPARE > limit:
        logger.warning(
            "A process here may have %d files open, and each of its %d sessions is one: raise `ulimit -n`, or lower "
            "--max-sessions",
            limit,
            sessions,
        )


class Scarcity:
    """Tells when no descriptor is left: the system then hangs up on clients before anybody hears of them."""

    def __init__(self) -> None:
        self._said_at: float | None = None

    def look(self, now: float) -> None:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and (
                self._said_at is None or now - self._said_at >= _SILENCE_S
            ):
                self._said_at = now
                logger.error("No file descriptor is left: newcomers are hung up on. Raise `ulimit -n`")
