"""A Docker of the tests' own: a daemon that nobody else uses, and an image of this checkout, without any registry.

    mmdebstrap ───► a small Debian with Python, kept as an archive ──► docker import ──► docker build docker/Dockerfile
    pip download ─► wheels of what EnvHive needs, kept ──────────────────────────────────┘

The archive and the wheels are made once a machine, beside the peers' environments, and the daemon keeps its layers
there, so that a checkout that has not changed is not built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from envhive.errors import ProviderError
from envhive.providers.docker_engine import connect
from envhive.providers.guarded import Guarded, tail
from tests.support.servers import eventually

REPOSITORY: Final = Path(__file__).parents[2]
CACHE: Final = Path(os.environ.get("ENVHIVE_PEER_CACHE") or REPOSITORY / ".cache" / "peers") / "docker"
IMAGE: Final = "envhive-test:latest"
STRANGER: Final = "stranger:latest"
"""An image with a server that knows nothing of EnvHive, nor of the variables that it is given."""
BASE: Final = "pybase:latest"

_BRIDGE: Final = ("envhivetest0", "172.29.77.1/24")
_NEEDED: Final = {"dockerd": "docker.io", "ip": "iproute2", "mmdebstrap": "mmdebstrap"}
_USELESS: Final = ("doc", "man", "locale")
"""What the image does without of /usr/share."""
_STRANGER: Final = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *about):
        pass

print("a stranger serves", flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
_MADE_S: Final = 900.0
_START_S: Final = 60.0


class Docker:
    """A daemon that runs, and where it is."""

    def __init__(self, folder: Path) -> None:
        self.host = f"unix://{folder / 'docker.sock'}"
        self.client: Any = connect(self.host)

    def containers(self) -> list[str]:
        """The names of all, whatever their state."""
        return [name.removeprefix("/") for each in self.client.api.containers(all=True) for name in each["Names"][:1]]


@contextmanager
def private_docker() -> Iterator[Docker]:
    """Start a daemon with the image in it; skips, with the reason, where that cannot be."""
    _require_all()
    with ExitStack() as stack:
        lock = stack.enter_context((Path(tempfile.gettempdir()) / "envhive-test-docker.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # the bridge and Swarm's ports are one a machine
        archive, wheels = _base_archive(), _wheels()
        folder = Path(tempfile.mkdtemp(prefix="envhive-docker-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _make_bridge()
        stack.callback(_run, "ip", "link", "delete", _BRIDGE[0])
        daemon = Guarded(_daemon(folder), folder / "log", grace_s=20.0, remove=folder)
        stack.callback(daemon.stop)
        docker = _connected(daemon, folder)
        stack.callback(docker.client.close)
        _remove_all(docker)  # that the last run left behind, if it was killed
        stack.callback(_remove_all, docker)  # or the daemon might be ended before it has ended its containers
        _import_base(docker, archive, wheels, folder / "base")
        _build_image(docker, folder / "context")
        _build_stranger(docker, folder / "stranger")
        yield docker


def _require_all() -> None:
    if os.geteuid() != 0:
        pytest.skip("a Docker daemon of one's own needs root")
    for program, package in _NEEDED.items():
        if shutil.which(program) is None and not (program == "mmdebstrap" and list(CACHE.glob("*.tar"))):
            pytest.skip(f"{program} is not installed: apt-get install {package}")


# What is made once a machine.


def _base_archive() -> Path:
    suite = _suite()
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / f"python-{suite}.tar"
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                draft = Path(temporary) / "archive.tar"
                packages = "--include=python3-minimal,python3-venv,ca-certificates"
                excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _USELESS]
                _run("mmdebstrap", "--variant=minbase", packages, *excluded, suite, str(draft), *_mirror(suite))
                draft.rename(archive)
    return archive


def _suite() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if found is None or "ID=debian" not in Path("/etc/os-release").read_text().splitlines():
        pytest.skip("the tests' image is made with mmdebstrap, from this machine's Debian, and this is none")
    return found[1]


def _mirror(suite: str) -> list[str]:
    """Where this machine has its packages from; mmdebstrap knows a place if this machine does not say."""
    told = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {suite}")
    return told.split()[:1]


def _wheels() -> Path:
    """What EnvHive needs, to be run and to be built, for the Python of the image."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    lock_file = REPOSITORY / "requirements.lock"
    key = hashlib.sha256("\n".join([*wanted, lock_file.read_text()]).encode()).hexdigest()[:16]
    folder = CACHE / f"wheels-{key}"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                draft = Path(temporary) / "wheels"
                pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
                for_image = ["--only-binary=:all:", "--python-version", _python_of_the_image()]
                _run(*pip, *for_image, "--constraint", str(lock_file), "--dest", str(draft), *wanted)
                draft.rename(folder)
    return folder


def _python_of_the_image() -> str:
    names = _run("tar", "--list", "--file", str(_base_archive()), "--wildcards", "./usr/bin/python3.*")
    found = re.search(r"/python(3\.\d+)$", names, re.MULTILINE)
    assert found is not None, names
    return found[1]


# What every run makes.


def _make_bridge() -> None:
    name, address = _BRIDGE
    if Path(f"/sys/class/net/{name}").exists():
        # Tests were killed, and their containers may still be at it, with addresses that are about to be given away.
        _run("ip", "link", "delete", name)
    _run("ip", "link", "add", name, "type", "bridge")
    _run("ip", "address", "add", address, "dev", name)
    _run("ip", "link", "set", name, "up")


def _daemon(folder: Path) -> list[str]:
    """No packet filter: another Docker of this machine keeps its rules, and containers cannot leave the machine."""
    places = [f"--data-root={CACHE / 'engine'}", f"--exec-root={folder / 'exec'}", f"--pidfile={folder / 'pid'}"]
    network = ["--bridge", _BRIDGE[0], "--iptables=false", "--ip6tables=false"]
    return ["dockerd", *places, *network, f"--host=unix://{folder / 'docker.sock'}"]


def _connected(daemon: Guarded, folder: Path) -> Docker:
    found: list[Docker] = []

    def answers() -> bool:
        if daemon.exit_code is not None:
            pytest.skip(f"dockerd does not start here:\n{tail(folder / 'log', 10)}")
        with contextlib.suppress(ProviderError):
            found.append(Docker(folder))
        return bool(found)

    eventually(answers, within=_START_S)
    return found[0]


def _remove_all(docker: Docker) -> None:
    """The swarm, containers, and layers that nobody needs."""
    from docker.errors import APIError

    docker.client.swarm.leave(force=True)
    for container in docker.client.api.containers(all=True):
        with contextlib.suppress(APIError):  # Swarm is removing it already
            docker.client.api.remove_container(container["Id"], force=True, v=True)
    docker.client.images.prune()


def _import_base(docker: Docker, archive: Path, wheels: Path, context: Path) -> None:
    """Its tag says which archive it came from: an image that is made anew has other layers."""
    kept = f"{BASE.split(':')[0]}:{int(archive.stat().st_mtime)}"
    if not docker.client.images.list(name=kept):
        name, tag = kept.split(":")
        docker.client.api.import_image_from_file(str(archive), repository=name, tag=tag)
    shutil.copytree(wheels, context / "wheels")
    (context / "Dockerfile").write_text(f"FROM {kept}\nCOPY wheels /wheels\n")
    docker.client.images.build(path=str(context), tag=BASE, rm=True)


def _build_image(docker: Docker, context: Path) -> None:
    context.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "docker/Dockerfile"):
        shutil.copy(REPOSITORY / name, context / Path(name).name)
    shutil.copytree(REPOSITORY / "src", context / "src", ignore=shutil.ignore_patterns("__pycache__"))
    options = {"BASE": BASE, "PIP_OPTIONS": "--no-index --find-links=/wheels --no-compile"}
    docker.client.images.build(path=str(context), tag=IMAGE, buildargs=options, rm=True, network_mode="none")


def _build_stranger(docker: Docker, context: Path) -> None:
    context.mkdir()
    (context / "server.py").write_text(_STRANGER)
    (context / "Dockerfile").write_text(f'FROM {BASE}\nCOPY server.py /\nCMD ["python3", "/server.py"]\n')
    docker.client.images.build(path=str(context), tag=STRANGER, rm=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_MADE_S)
    assert done.returncode == 0, f"{' '.join(command[:2])} ended with {done.returncode}:\n{done.stdout[-2000:]}"
    return done.stdout
