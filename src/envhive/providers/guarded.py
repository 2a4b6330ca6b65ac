"""A command on this machine that ends when the process that started it does, however that ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_GUARD: Final = Path(__file__).with_name("guard.py")
_SLACK_S: Final = 10.0


class Guarded:
    """A command with a guard between it and us. See `guard.py`.

    Args:
        command: What to run; empty if there is only something to sweep.
        log: Where its output goes.
        environment: All of its variables.
        grace_s: How long it may take to end when told to.
        sweep: A command to run afterwards, which removes what is left elsewhere.
        remove: A folder to remove afterwards.
        apart: Whether the guard must not be our child, as something kills those when we end.

    Sweep and removal are for when we are gone: after `stop` they are ours to do.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 5.0,
        sweep: Sequence[str] = (),
        remove: Path | None = None,
        apart: bool = False,
    ) -> None:
        self._grace_s = grace_s
        options = ["--grace", str(grace_s)]
        options += ["--sweep", json.dumps(list(sweep))] if sweep else []
        options += ["--remove", str(remove)] if remove is not None else []
        options += ["--apart"] if apart else []
        read_end, self._hold = os.pipe()
        try:
            with log.open("ab") if log is not None else contextlib.nullcontext(subprocess.DEVNULL) as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_GUARD), *options, "--", *command],
                    stdin=read_end,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is ours to handle
                )
        except BaseException:  # Ctrl-C too: what is half made is not left behind
            os.close(self._hold)
            raise
        finally:
            os.close(read_end)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait until it has ended by itself; raises `subprocess.TimeoutExpired`."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it, and wait until it is gone. May be called twice."""
        hold, self._hold = self._hold, -1
        if hold < 0:
            return
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                os.write(hold, b".")
        # Otherwise a guard that stands apart, whose starter was killed before us, removes and sweeps: we are next.
        os.close(hold)
        try:
            self._process.wait(self._grace_s + _SLACK_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def tail(path: Path, lines: int) -> str:
    """The last lines of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 1000 * lines))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
