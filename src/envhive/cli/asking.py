"""Asking a running server, for the commands that look after one."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any, Final

import click

TOKEN_VARIABLE: Final = "ENVHIVE_TOKEN"
_ANSWER_S: Final = 10.0
_DRAINING: Final = 503


class RunningServer:
    """A server at a URL. What goes wrong is a `click.ClickException`: one line that says what to do."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if "://" in url else f"http://{url}".rstrip("/")
        token = os.environ.get(TOKEN_VARIABLE)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, path: str, method: str = "GET") -> Any:
        """What the server says, as JSON."""
        return json.loads(self.read(path, method))

    def read(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(self.url + path, method=method, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
            if error.code == _DRAINING and path in ("/health", "/drain"):
                return body  # which is how a draining server says how it is
            raise click.ClickException(f"{self.url}{path} answered {_explain(error, body)}") from None
        except TimeoutError:
            raise click.ClickException(
                f"{self.url} did not answer within {_ANSWER_S:g} s: its event loop may be blocked by an environment. "
                f"On its machine, `py-spy dump --pid PID` shows where."
            ) from None
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{self.url} could not be asked: {getattr(error, 'reason', error)}") from None


def _explain(error: urllib.error.HTTPError, body: bytes) -> str:
    if error.code == 401:
        return f"401 {error.reason}: it wants a token that it knows; set {TOKEN_VARIABLE}"
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
    return f"{error.code} {error.reason}: {detail}"
