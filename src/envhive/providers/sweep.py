"""Removes what a provider has left behind: `python -m envhive.providers.sweep ENGINE [RUN]`.

A provider's guard runs it when the provider's process has been killed. By hand, without RUN, it lists what is there.
The exit code is 0 if nothing of the run is left.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envhive.errors import EnvHiveError
from envhive.providers.container import OWNER_LABEL, RUN_LABEL
from envhive.providers.guarded import Guarded

_AGAIN_S: Final = 0.5
_LOOKS: Final = 20


@dataclass(frozen=True)
class Leftover:
    """Something that a provider has started."""

    run: str
    owner: str
    what: str
    remove: Callable[[], object]


@dataclass(frozen=True)
class _Where:
    """Which run, of which cluster; None for all."""

    run: str | None
    namespace: str = "default"
    context: str | None = None

    @property
    def selector(self) -> str:
        return RUN_LABEL if self.run is None else f"{RUN_LABEL}={self.run}"


def _containers(where: _Where) -> Iterator[Leftover]:
    from envhive.providers.docker_engine import connect

    client = connect()
    for container in client.containers.list(all=True, ignore_removed=True, filters={"label": where.selector}):
        remove = functools.partial(container.remove, force=True, v=True)
        yield _labelled(container.labels, f"container {container.name}", remove)


def _services(where: _Where) -> Iterator[Leftover]:
    from envhive.providers.docker_engine import connect

    client = connect()
    for service in client.services.list(filters={"label": where.selector}):
        yield _labelled(service.attrs["Spec"]["Labels"], f"service {service.name}", service.remove)
    yield from _containers(where)  # those of this node, which would else wait for their sessions


def _kubernetes(where: _Where) -> Iterator[Leftover]:
    from envhive.providers.kubernetes import connect, owned

    for kind, thing, remove in owned(connect(where.context), where.selector, where.namespace):
        about = thing.metadata
        labels = {**about.labels, **(about.annotations or {})}
        yield _labelled(labels, f"{kind} {about.namespace}/{about.name}", remove)


def _jobs(where: _Where) -> Iterator[Leftover]:
    names = subprocess.run(
        ["squeue", "--noheader", "--format=%j %u %i"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    for line in names.splitlines():
        name, user, job = line.rsplit(maxsplit=2)
        found = name.removeprefix("envhive-")
        if found != name and where.run in (None, found):
            cancel = functools.partial(subprocess.run, ["scancel", job], check=True, timeout=30)
            yield Leftover(found, user, f"job {job}", cancel)


_ENGINES: Final[dict[str, Callable[[_Where], Iterator[Leftover]]]] = {
    "docker": _containers,
    "swarm": _services,
    "kubernetes": _kubernetes,
    "slurm": _jobs,
}


def _labelled(labels: dict[str, str], what: str, remove: Callable[[], object]) -> Leftover:
    return Leftover(labels[RUN_LABEL], labels.get(OWNER_LABEL, "?"), what, remove)


def by_hand(engine: str, run_id: str, *options: str) -> str:
    """What to type to remove a run."""
    return shlex.join(["python", "-m", "envhive.providers.sweep", engine, run_id, *options])


def sweeping(
    engine: str,
    run_id: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
    remove: Path | None = None,
) -> Guarded:
    """Removes all of a run, and a folder, if this process ends without having done so, however it ends."""
    command = [sys.executable, "-m", "envhive.providers.sweep", engine, run_id, *options]
    return Guarded((), sweep=command, environment={**os.environ, **(environment or {})}, remove=remove)


def sweep(engine: str, where: _Where) -> bool:
    """Remove all of a run. False if something is left."""
    for _ in range(_LOOKS):
        left = list(_ENGINES[engine](where))
        if not left:
            return True
        for each in left:
            try:
                each.remove()
            except Exception as error:  # each engine's client has its own; what is left is looked at again
                print(f"{each.what}: {error}", file=sys.stderr)
        time.sleep(_AGAIN_S)  # what its provider was starting when it was killed may only come now
    return False


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m envhive.providers.sweep", description=__doc__)
    parser.add_argument("engine", choices=_ENGINES)
    parser.add_argument("run", nargs="?", help="which run to remove; without it, what is there is listed")
    parser.add_argument("--namespace", default="default", help="of Kubernetes")
    parser.add_argument("--context", help="of Kubernetes' configuration")
    options: Any = parser.parse_args(arguments)
    where = _Where(options.run, options.namespace, options.context)
    try:
        if where.run is not None:
            return 0 if sweep(options.engine, where) else 1
        for each in _ENGINES[options.engine](where):
            print(f"{each.run}  {each.owner}  {each.what}")
    except (EnvHiveError, OSError, subprocess.SubprocessError) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
