"""A stand-in for Kubernetes' API: keeps what it is given, has "pods" that answer /health, and writes down who asked."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_PATH = re.compile(
    r"/(?:api|apis/apps)/v1/namespaces/(?P<namespace>[^/]+)/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?:/(?P<part>\w+))?"
)
_GONE_AFTER_LOOKS = 2
"""A pod that is deleted is seen leaving so often before it is gone."""


class Cluster:
    """What the API knows."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        """Method and path, in the order of the requests."""
        self.given: list[dict[str, Any]] = []
        """All objects that were posted."""
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in ("deployments", "services", "secrets", "pods")
        }
        self.trouble: dict[str, str] | None = None
        """Why containers wait, if they do."""
        self.port = _free_port()
        self._servers: dict[str, ThreadingHTTPServer] = {}
        self._made = 0
        self._looks: dict[str, int] = {}
        self.lock = threading.RLock()

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        with self.lock:
            parts = urlsplit(url)
            self.asked.append((method, parts.path))
            found = _PATH.fullmatch(parts.path)
            if found is None or found["kind"] not in self.objects:
                return 404, {"kind": "Status", "code": 404}
            if found["name"] is None:
                return self._collection(method, found["namespace"], found["kind"], parse_qs(parts.query), body)
            return self._one(method, found["kind"], found["name"], found["part"], body)

    def _collection(
        self, method: str, namespace: str, kind: str, query: dict[str, list[str]], body: Any
    ) -> tuple[int, Any]:
        things = self.objects[kind]
        if method == "POST":
            self.given.append(body)
            body["metadata"].update(namespace=namespace, generation=1)
            things[body["metadata"]["name"]] = body
            self._settle()
            return 201, body
        name, _, value = query["labelSelector"][0].partition("=")
        chosen = [thing for thing in things.values() if thing["metadata"]["labels"].get(name) == value]
        answer = {"kind": "List", "metadata": {}, "items": json.loads(json.dumps(chosen))}
        if kind == "pods":
            self._let_go()
        return 200, answer

    def _one(self, method: str, kind: str, name: str, part: str | None, body: Any) -> tuple[int, Any]:
        thing = self.objects[kind].get(name)
        if thing is None:
            return 404, {"kind": "Status", "code": 404}
        if part == "log":
            return 200, f"{name} says hello"
        if method == "DELETE":
            del self.objects[kind][name]
            self._stop_server(name)
            if kind == "deployments":
                self._settle()
        elif method == "PATCH":
            _merge(thing, body)
            thing["metadata"]["generation"] += 1
            self._settle()
        return 200, thing

    def _settle(self) -> None:
        """What controllers do: have the pods that Deployments want, with the template that they have now."""
        for name, deployment in self.objects["deployments"].items():
            spec = deployment["spec"]
            pods = [pod for pod in self.objects["pods"].values() if "deletionTimestamp" not in pod["metadata"]]
            now = json.dumps(spec["template"], sort_keys=True)
            current = [pod for pod in pods if pod["template"] == now]
            for pod in [each for each in pods if each["template"] != now] + current[spec["replicas"] :]:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            for _ in range(spec["replicas"] - len(current)):
                self._add_pod(name, spec["template"], now)
            count = spec["replicas"]
            deployment["status"] = {
                "observedGeneration": deployment["metadata"]["generation"],
                **dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), count),
            }

    def _add_pod(self, deployment: str, template: Any, key: str) -> None:
        self._made += 1
        name, address = f"{deployment}-{self._made}", f"127.0.0.{10 + self._made}"
        state = {"running": {}} if self.trouble is None else {"waiting": self.trouble}
        container = {
            "name": "server",
            "image": "",
            "imageID": "",
            "restartCount": 0,
            "ready": self.trouble is None,
            "state": state,
        }
        status = {"phase": "Running", "podIP": address, "containerStatuses": [container]}
        metadata = {"name": name, "namespace": "lab", "labels": template["metadata"]["labels"]}
        spec = {**template["spec"], "nodeName": "a-node"}
        self.objects["pods"][name] = {"metadata": metadata, "spec": spec, "status": status, "template": key}
        if self.trouble is None:
            server = ThreadingHTTPServer((address, self.port), _Healthy)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self._servers[name] = server

    def _let_go(self) -> None:
        for name, pod in list(self.objects["pods"].items()):
            if "deletionTimestamp" in pod["metadata"]:
                self._looks[name] = self._looks.get(name, 0) + 1
                if self._looks[name] >= _GONE_AFTER_LOOKS:
                    del self.objects["pods"][name]
                    self._stop_server(name)

    def _stop_server(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is not None:
            server.shutdown()
            server.server_close()

    def close(self) -> None:
        for name in list(self._servers):
            self._stop_server(name)


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its base's name
        """Tests need not hear of it."""

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Healthy(_Quiet):
    def do_GET(self) -> None:
        self.reply(200, b"{}")


@contextmanager
def kube_api(folder: Path) -> Iterator[tuple[Cluster, Path]]:
    """Serve the API on loopback; gives what it knows, and a configuration that leads to it."""
    cluster = Cluster()

    class Handler(_Quiet):
        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = cluster.answer(self.command, self.path, body)
            if isinstance(answer, str):
                self.reply(status, answer.encode(), "text/plain")
            else:
                self.reply(status, json.dumps(answer).encode())

        do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815  # http.server's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
                "users": [{"name": "me", "user": {}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "lab"}}],
            }
        )
    )
    try:
        yield cluster, config
    finally:
        server.shutdown()
        server.server_close()
        cluster.close()


def _merge(thing: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(thing.setdefault(key, {}), value)
        else:
            thing[key] = value


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
