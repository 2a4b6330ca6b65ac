"""Folders for Unix sockets. The path of one may have 107 characters on Linux, and 103 elsewhere."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final

from envhive.errors import ConfigurationError

SHORT_PLACES: Final = ("/tmp", "/var/tmp", "/dev/shm")
"""Where to look when the path of the user's own place for temporary files is too long."""


def folder_for_sockets(prefix: str, longest: str) -> Path:
    """A new folder that only this user may enter, whose path leaves room for a socket of the name `longest`."""
    why: OSError | None = None
    for place in (None, *SHORT_PLACES):
        try:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        except OSError as error:
            why = error
            continue
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(str(folder / longest))
            (folder / longest).unlink()
        except OSError as error:  # too long, or a file system that has no sockets
            why = error
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    raise ConfigurationError(f"There is no folder for Unix sockets ({why}): set TMPDIR to one that has a short path.")
