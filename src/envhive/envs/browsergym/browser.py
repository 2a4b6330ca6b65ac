"""One Chromium and one shop for all environments of a process.

BrowserGym starts two browsers for each episode, of Playwright's own download. Handed this in the place of Playwright,
it gets a context of one browser each time, of whichever Chromium is installed.
"""

from __future__ import annotations

import inspect
import os
import shutil
import threading
from typing import Any, ClassVar

import browsergym.core
from playwright._impl import _connection, _sync_base
from playwright.sync_api import sync_playwright

from envhive.envs import CHROMIUM, HEADLESS_SHELL
from envhive.envs.browsergym.site import HOST, Site


class _Inspect:
    """Stands in for the module `inspect` in Playwright.

    Playwright looks at the stack several times in each call, with the lines of source around each frame, which it does
    not use: a tenth of a step's time, and most of it where the stack is deep. Here it gets the frames alone.
    """

    def stack(self) -> list[inspect.FrameInfo]:
        return inspect.stack(0)[1:]

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


_connection.inspect = _sync_base.inspect = _Inspect()


class Browser:
    """Chromium, which can reach the shop and, besides it, one host at most."""

    _current: ClassVar[Browser | None] = None

    def __init__(self, executable: str, host: str) -> None:
        self._users = 0
        self._made_for = (executable, host)
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self.site = Site()
        self._playwright: Any = None
        self._browser: Any = None
        try:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(
                executable_path=executable or next(filter(None, map(shutil.which, (HEADLESS_SHELL, *CHROMIUM))), None),
                args=_flags(self.site.port, host),
                ignore_default_args=["--hide-scrollbars"],  # as BrowserGym does, so that screenshots have them
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except BaseException:  # Ctrl-C too: what is half made is not left behind
            self._end()
            raise
        browsergym.core._set_global_playwright(self)

    # What BrowserGym sees of it: as much of Playwright as it uses.

    @property
    def selectors(self) -> Any:
        return self._playwright.selectors

    @property
    def chromium(self) -> Browser:
        return self

    def launch(self, **options: Any) -> _Share:
        return _Share(self._browser)

    # What the environment sees of it.

    @classmethod
    def shared(cls, executable: str, host: str) -> Browser:
        """The one of this process; to be given back with `release`."""
        found = cls._current
        if found is None or found._pid != os.getpid():
            cls._current = found = Browser(executable, host)
        if found._thread != threading.get_ident():
            raise RuntimeError("A process has one browser, used by one thread: serve it with --isolation process.")
        if found._made_for != (executable, host):
            raise RuntimeError("A process has one browser: its environments must agree on executable and start_url.")
        found._users += 1
        return found

    def release(self) -> None:
        """It ends when nobody uses it any more."""
        self._users -= 1
        if self._users == 0:
            Browser._current = None
            browsergym.core._set_global_playwright(None)
            self._end()

    def _end(self) -> None:
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self.site.close()


class _Share:
    """What BrowserGym takes for a browser of its own."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []

    def new_context(self, **options: Any) -> Any:
        self._contexts.append(self._browser.new_context(**options))
        return self._contexts[-1]

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        self._contexts.clear()


def _flags(port: int, host: str) -> list[str]:
    rules = f"MAP {HOST} 127.0.0.1:{port}, MAP * ~NOTFOUND" + (f", EXCLUDE {host}" if host else "")
    return [
        f"--host-resolver-rules={rules}",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-features=OverlayScrollbars,ExtendedOverlayScrollbars",
        "--disable-gpu",
        "--disable-quic",
        "--disable-sync",
        "--no-first-run",
        "--no-proxy-server",
    ]
