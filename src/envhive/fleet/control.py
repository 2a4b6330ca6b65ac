"""A fleet that runs by itself, and the commands that reach it through a socket in its folder.

    envhive fleet up ──► a process of its own: Fleet, and a socket ◄── envhive fleet status | scale | restart | down

A command is one line of JSON, `{"do": "scale", "count": 4}`. Lines come back: `{"progress": "..."}` any number of
times, then `{"done": ...}` or `{"error": "..."}`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from envhive.errors import ConfigurationError, EnvHiveError, ProviderError
from envhive.fleet.fleet import Fleet
from envhive.providers import make_provider
from envhive.sockets import folder_for_sockets

logger: Final = logging.getLogger("envhive.fleet")

_SOCKET: Final = "socket"
"""A file that says where the socket is: the path of a socket must be short, and that of a home folder may be long."""
_LOG: Final = "fleet.log"
_LOOK_S: Final = 0.05
_APPEAR_S: Final = 60.0


def fleets_folder() -> Path:
    """Where the fleets of this user keep their sockets and logs."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "envhive" / "fleets"


class Control:
    """A running fleet, as the command line sees it."""

    def __init__(self, name: str) -> None:
        if not name.replace("-", "").isalnum():
            raise ConfigurationError(f"A fleet's name has letters, digits and dashes, not {name!r}.")
        self.name = name
        self.folder = fleets_folder() / name

    @property
    def is_there(self) -> bool:
        """Whether its process answers."""
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    def launch(self, orders: dict[str, Any], on_progress: Callable[[str], None]) -> dict[str, Any]:
        """Start a fleet in a process of its own, and wait until it is healthy. Returns its status."""
        if self.is_there:
            raise ConfigurationError(
                f"The fleet {self.name!r} is up already: `envhive fleet down --name {self.name}` ends it, "
                f"another --name starts another."
            )
        self._clear()  # what a killed one has left
        self.folder.mkdir(parents=True, mode=0o700)
        with (self.folder / _LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "envhive.fleet.control", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it goes on when the terminal is closed
            )
        assert process.stdin is not None
        with process.stdin:  # not by its command line: that can be read by others, and there may be a token in it
            process.stdin.write(json.dumps(orders).encode())
        try:
            self._wait_until_there(process)
            return self.ask("wait", on_progress=on_progress)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)  # what is half started is stopped
            process.wait()
            self._clear()
            raise

    def _clear(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(Path((self.folder / _SOCKET).read_text()).parent, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_there(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _APPEAR_S
        while not self.is_there:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ProviderError(f"The fleet did not start. The last it said:\n{self._last_words()}")
            time.sleep(_LOOK_S)

    def ask(self, do: str, on_progress: Callable[[str], None] | None = None, **arguments: Any) -> dict[str, Any]:
        """Have the fleet do something; raises what it says if it cannot."""
        try:
            connection = self._connect()
        except OSError:
            raise ConfigurationError(
                f"There is no fleet {self.name!r}: `envhive fleet up` starts one, `envhive fleet list` names those "
                f"that are there."
            ) from None
        with connection, connection.makefile("rw") as lines:
            lines.write(json.dumps({"do": do, **arguments}) + "\n")
            lines.flush()
            for line in lines:
                said = json.loads(line)
                if "error" in said:
                    raise ProviderError(said["error"])
                if "done" in said:
                    done: dict[str, Any] = said["done"]
                    return done
                if on_progress is not None:
                    on_progress(said["progress"])
        if do == "down":
            return {}  # an engine's library may end the fleet's process before it has answered: Ray's does
        raise ProviderError(f"The fleet has ended. The last it said:\n{self._last_words()}")

    def log(self, lines: int) -> str:
        """What the fleet itself has said: its servers' logs are among its answers."""
        with contextlib.suppress(OSError):
            return "\n".join((self.folder / _LOG).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _last_words(self) -> str:
        return self.log(20)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect((self.folder / _SOCKET).read_text())
        except OSError:
            connection.close()
            raise
        return connection


class Daemon:
    """The process of a fleet: it runs the fleet, and does what comes through the socket."""

    def __init__(self, folder: Path, orders: dict[str, Any]) -> None:
        self._folder = folder
        self._orders = orders
        self._fleet: Fleet | None = None
        self._failure: EnvHiveError | None = None
        self._settled = threading.Event()
        self._over = threading.Event()
        self._changing = threading.Lock()
        self._listeners: set[queue.Queue[dict[str, Any] | None]] = set()

    def run(self) -> int:
        """Run until told to stop. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._over.set())
        short = folder_for_sockets("envhive-", "control")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(short / "control"))
        listener.listen()
        (self._folder / "draft").write_text(str(short / "control"))
        (self._folder / "draft").replace(self._folder / _SOCKET)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        threading.Thread(target=self._start, daemon=True).start()
        while not self._over.wait(1.0):
            pass  # in slices, so that a signal is seen
        self._settled.wait()
        try:
            if self._fleet is not None:
                self._fleet.stop()
        finally:
            listener.close()
            for folder in (short, self._folder):
                shutil.rmtree(folder, ignore_errors=True)
        return 0 if self._failure is None else 1

    def _start(self) -> None:
        try:
            orders = self._orders
            provider = make_provider(orders["provider"], orders["what"], **orders["options"])
            provider.progress = self._progress
            fleet = Fleet(provider, **orders["fleet"])
            fleet.start()
            self._fleet = fleet
        except EnvHiveError as error:
            self._failure = error
        except Exception as error:  # whatever an engine's library raises, who waits is to hear of it
            logger.exception("The fleet did not start")
            self._failure = ProviderError(f"{type(error).__name__}: {error}")
        finally:
            self._settled.set()

    def _progress(self, sentence: str) -> None:
        logger.info("%s", sentence)
        for listener in list(self._listeners):
            listener.put({"progress": sentence})

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError), connection.makefile("rw") as lines:
            line = lines.readline()
            if line:
                self._answer(json.loads(line), lines)

    def _answer(self, request: dict[str, Any], lines: TextIO) -> None:
        """Do what is asked on another thread, and pass on what is said meanwhile."""
        said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._listeners.add(said)
        threading.Thread(target=self._do, args=(request, said), daemon=True).start()
        try:
            while (item := said.get()) is not None:
                lines.write(json.dumps(item) + "\n")
                lines.flush()
        finally:
            self._listeners.discard(said)
            if request.get("do") == "down" or self._failure is not None:
                self._over.set()

    def _do(self, request: dict[str, Any], said: queue.Queue[dict[str, Any] | None]) -> None:
        try:
            said.put({"done": self._carry_out(request)})
        except EnvHiveError as error:
            said.put({"error": str(error)})
        except Exception as error:  # whatever an engine's library raises, who asked is to hear of it
            logger.exception("%s failed", request.get("do"))
            said.put({"error": f"{type(error).__name__}: {error}"})
        finally:
            said.put(None)

    def _carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        self._settled.wait()
        if self._failure is not None:
            raise self._failure
        fleet = self._fleet
        assert fleet is not None
        match request:
            case {"do": "status" | "wait"}:
                return fleet.status()
            case {"do": "logs", "lines": int(lines)}:
                return {"logs": fleet.logs(lines)}
            case {"do": "scale", "count": int(count)}:
                with self._changing:
                    fleet.scale(count)
                return fleet.status()
            case {"do": "restart"}:
                with self._changing:
                    fleet.restart()
                return fleet.status()
            case {"do": "down", "drain_s": int(seconds) | float(seconds)}:
                if seconds:
                    fleet.drain(seconds)
                fleet.stop()
                return {}
            case _:
                raise ConfigurationError(f"A fleet cannot {request.get('do')!r}.")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return Daemon(Path(sys.argv[1]), json.load(sys.stdin)).run()


if __name__ == "__main__":
    sys.exit(main())
