"""The pages: a small shop, served on loopback by the environment itself."""

from __future__ import annotations

import threading
from collections import defaultdict
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

HOST: Final = "shop.test"
"""The browser finds it under this name, whatever its port, so that addresses are the same in every episode."""
VISIT: Final = "X-Visit"
"""The header by which the pages of one session are told from those of another."""

WARES: Final = {
    "lantern": ("Storm lantern", "18.50"),
    "kettle": ("Copper kettle", "42.00"),
    "rope": ("Hemp rope", "7.25"),
    "compass": ("Brass compass", "63.90"),
    "blanket": ("Wool blanket", "29.00"),
    "whistle": ("Tin whistle", "4.75"),
}


class Visit:
    """What the visitor of one session has done."""

    def __init__(self) -> None:
        self.basket: list[str] = []
        self.subscribers: list[str] = []


class Site:
    """The shop, on a thread of its own. A context manager."""

    def __init__(self) -> None:
        self.visits: defaultdict[str, Visit] = defaultdict(Visit)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.visits = self.visits  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        pages = {"/": _front, "/wares": _wares, "/basket": _basket, "/news": _news}
        path = urlsplit(self.path).path
        if path in pages:
            self._send(pages[path](self._visit))
        elif (ware := path.removeprefix("/wares/")) in WARES:
            self._send(_ware(ware))
        else:
            self._send(_page("Not found", "<p>There is no such page.</p>"), HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), 100_000)
        form = {
            name: values[0] for name, values in parse_qs(self.rfile.read(length).decode("utf-8", "replace")).items()
        }
        if self.path == "/basket" and form.get("ware") in WARES:
            self._visit.basket.append(form["ware"])
        elif self.path == "/basket/empty":
            self._visit.basket.clear()
        elif self.path == "/news" and form.get("name"):
            self._visit.subscribers.append(form["name"])
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/news" if self.path == "/news" else "/basket")
        self.end_headers()

    @property
    def _visit(self) -> Visit:
        visits: defaultdict[str, Visit] = self.server.visits  # type: ignore[attr-defined]
        return visits[self.headers.get(VISIT, "")]

    def _send(self, page: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: each page of each session would be a line."""


def _page(title: str, body: str) -> str:
    links = '<a href="/">Front</a> <a href="/wares">Wares</a> <a href="/basket">Basket</a> <a href="/news">News</a>'
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><link rel="icon" href="data:,">'
    return f"<!doctype html><html lang=en>{head}<nav>{links}</nav><h1>{escape(title)}</h1>{body}</html>"


def _front(visit: Visit) -> str:
    return _page("The Harbour Shop", "<p>Things for a long voyage. All wares are made up.</p>")


def _wares(visit: Visit) -> str:
    rows = "".join(f'<li><a href="/wares/{key}">{escape(name)}</a></li>' for key, (name, _) in WARES.items())
    return _page("Wares", f"<ul>{rows}</ul>")


def _ware(key: str) -> str:
    name, price = WARES[key]
    fields = f"<input type=hidden name=ware value={key}><button>Put in basket</button>"
    return _page(name, f'<p>Price: {price} crowns</p><form method=post action="/basket">{fields}</form>')


def _basket(visit: Visit) -> str:
    rows = "".join(f"<li>{escape(WARES[key][0])}</li>" for key in visit.basket)
    empty = "<form method=post action='/basket/empty'><button>Empty the basket</button></form>"
    return _page("Basket", f"<ul>{rows}</ul>{empty}" if rows else "<p>It is empty.</p>")


def _news(visit: Visit) -> str:
    rows = "".join(f"<li>{escape(name)}</li>" for name in visit.subscribers)
    form = "<form method=post action='/news'><label>Name <input name=name></label><button>Subscribe</button></form>"
    return _page("News", f"<p>Subscribers:</p><ul>{rows}</ul>{form}")
