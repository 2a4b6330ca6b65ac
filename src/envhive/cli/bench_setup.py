"""What the bench commands share: the options that name a server and a place for results, and what comes of them."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from envhive.cli.shared import parse_settings
from envhive.errors import ConfigurationError
from envhive.providers import PROVIDERS, make_provider

if TYPE_CHECKING:
    from envhive.bench.lab import Lab
    from envhive.bench.records import Kind, Recorder
    from envhive.bench.subject import Subject

F = TypeVar("F", bound=Callable[..., Any])

_SPARE_PLACES = 1.25
"""Places in a fleet for each session: they are dealt out evenly, not exactly so."""

_SERVER = [
    click.option("--url", help="A running server, such as http://host:8000."),
    click.option("--serve", "target", help="Start `envhive serve` with this target, and stop it in the end."),
    click.option("--serve-peer", "peer", help="Start a peer with its benchmark environment: openenv, openenv:async."),
    click.option("--workers", type=click.IntRange(1, 1024), default=1, show_default=True, help="Of a server to start."),
    click.option(
        "--provider",
        type=click.Choice(list(PROVIDERS)),
        help="Start what --serve names there: a target, folder or image.  [default: here, without a provider]",
    ),
    click.option(
        "--replicas",
        type=click.IntRange(1, 1024),
        default=1,
        show_default=True,
        help="Of the --provider's servers; several get Envoy before them.",
    ),
    click.option(
        "--option",
        "provider_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse_settings,
        help="An option of the --provider. Repeatable.",
    ),
    click.option("--pid", type=click.IntRange(min=1), help="Process of the server at --url, if it is on this machine."),
    click.option("--processes", type=click.IntRange(1, 256), help="Load processes.  [default: as many as help]"),
]
_RUN = [
    click.option("--label", help="Name of the infrastructure in tables and plots."),
    click.option("--server-cores", type=click.IntRange(min=1), help="Cores of the server's machine."),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for the results.  [default: bench-results/<time>]",
    ),
]


def server_options(command: F) -> F:
    """The options that name a server, and those that name a place for the results."""
    for option in reversed(_SERVER):
        command = option(run_options(command) if option is _SERVER[-1] else command)
    return command


def run_options(command: F) -> F:
    for option in reversed(_RUN):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The shared options, checked."""

    url: str | None = None
    target: str | None = None
    peer: str | None = None
    workers: int = 1
    provider: str | None = None
    replicas: int = 1
    provider_options: dict[str, Any] = field(default_factory=dict)
    pid: int | None = None
    processes: int | None = None
    label: str | None = None
    server_cores: int | None = None
    out: Path | None = None

    def check_server(self) -> None:
        """One server must be named, and must be there."""
        from envhive.bench import procfs
        from envhive.bench.subject import check_reachable

        if sum(given is not None for given in (self.url, self.target, self.peer)) != 1:
            raise ConfigurationError("Give either --url of a running server, or --serve TARGET to start one.")
        if self.provider is not None and self.target is None:
            raise ConfigurationError("--provider starts what --serve names, and that was not given.")
        if self.provider is None and (self.replicas > 1 or self.provider_options):
            raise ConfigurationError("--replicas and --option are for a --provider, and none was given.")
        if self.pid is not None and self.url is None:
            raise ConfigurationError("--pid tells the process of the server at --url, and none was given.")
        if self.pid is not None and procfs.available() and not procfs.tree(self.pid):
            raise ConfigurationError(f"There is no process {self.pid} here.")
        if self.url is not None and (odd := check_reachable(self.url)) is not None:
            click.echo(odd, err=True)

    @contextmanager
    def serving(self, most_sessions: int) -> Iterator[Subject]:
        """The server that was named; stopped in the end if it was started."""
        from envhive.bench import peers, servers
        from envhive.bench.limits import raise_file_limit
        from envhive.bench.subject import Subject

        raise_file_limit()  # the server inherits it
        if self.url is not None:
            with Subject(url=self.url, pid=self.pid) as subject:
                yield subject
        elif self.provider is not None:
            with self._provided(most_sessions) as url, Subject(url=url) as subject:
                yield subject
        elif self.target is not None:
            recipe = servers.envhive(self.target, max_sessions=most_sessions, workers=self.workers)
            with Subject(recipe=recipe) as subject:
                yield subject
        else:
            peer, form = peers.find(self.peer or "")
            python = peers.install(peer, click.echo)
            with peers.app_folder(peer) as app:
                recipe = peers.peer_server(peer, python, form, app, f"{peer.name} {form}", self.workers)
                with Subject(recipe=recipe) as subject:
                    yield subject

    @contextmanager
    def _provided(self, most_sessions: int) -> Iterator[str]:
        """The address of the servers that a provider runs."""
        from envhive.fleet.fleet import Fleet

        assert self.provider is not None
        assert self.target is not None
        provider = make_provider(
            self.provider,
            self.target,
            replicas=self.replicas,
            workers=self.workers,
            max_sessions=math.ceil(_SPARE_PLACES * most_sessions / self.replicas),
            progress=lambda sentence: click.echo(f"{self.provider}: {sentence}", err=True),
            **self.provider_options,
        )
        if self.replicas == 1:
            with provider:
                yield provider.base_url
        else:
            with Fleet(provider) as fleet:
                yield fleet.url

    @property
    def infrastructure(self) -> str | None:
        """What to call it where nobody has said."""
        if self.provider is None:
            return self.peer
        return self.provider if self.replicas == 1 else f"{self.provider} × {self.replicas} + Envoy"

    def recorder(self, kind: Kind) -> Recorder:
        from envhive.bench.lab import new_run

        return new_run(
            kind,
            label=self.label or self.infrastructure,
            out=self.out,
            command=_without_passwords(shlex.join(["envhive", *sys.argv[1:]])),
            url=None if self.url is None else _without_passwords(self.url),
            server_cores=self.server_cores,
        )


def _without_passwords(text: str) -> str:
    """Addresses may hold a name and a password, which are nobody's business who reads the results."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)


def prepare(options: dict[str, Any]) -> Setup:
    """Before anything is measured: the packages that the lab needs, and the shared options."""
    from envhive.bench.screen import need_the_extra

    need_the_extra()
    return Setup(**options)


def run(recorder: Recorder, measure: Callable[[Lab], None]) -> NoReturn:
    """Measure, show, draw, and end with the exit code that fits."""
    from envhive.bench.lab import conduct

    sys.exit(conduct(recorder, measure))
