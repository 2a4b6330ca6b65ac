"""`validate`: all stages, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envhive.checks import Broken, Report
from envhive.errors import ConfigurationError
from envhive.server.target import must_be_known
from envhive.validation.live import LiveChecks
from envhive.validation.outcome import StageName, Validation
from envhive.validation.probe import check_contract
from envhive.validation.serving import http_url, is_url, local_server
from envhive.validation.static import check_folder


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to validate."""

    live: bool = True
    sessions: int = 8
    actions: list[dict[str, Any]] = field(default_factory=list)
    timeout_s: float = 30.0
    openenv_python: str | None = None


def validate(subject: str, wishes: Wishes, on_stage: Callable[[StageName], None] = lambda stage: None) -> Validation:
    """Check a folder, a target as `envhive serve` takes it, or a running server; raises if it is none of these."""
    validation = Validation(subject)
    if is_url(subject):
        on_stage("live")
        asyncio.run(_check_live(http_url(subject), wishes, validation.stage("live")))
        return validation
    must_be_known(subject)
    if Path(subject).is_dir():
        on_stage("static")
        check_folder(Path(subject), validation.stage("static"))
    on_stage("contract")
    servable = check_contract(subject, wishes.actions, wishes.timeout_s, validation.stage("contract"))
    live = validation.stage("live")
    if not wishes.live:
        live.skipped.append("all of it: --no-live")
    elif not servable:
        live.skipped.append("all of it: there is nothing to serve before the above is mended")
    else:
        on_stage("live")
        _serve_and_check(subject, wishes, live)
    return validation


def _serve_and_check(target: str, wishes: Wishes, report: Report) -> None:
    server = local_server(target)
    try:
        with server:
            asyncio.run(_check_live(server.url, wishes, report))
            with report.checking("the server is still there at the end"):
                if server.exit_code is not None:
                    raise Broken(
                        f"it ended with code {server.exit_code}: {' '.join(server.last_words().split())[-300:]}",
                        'Do not end the process from an environment; ISOLATION = "process" keeps a crash to a session.',
                    )
    except ConfigurationError as error:
        with report.checking("a server starts"):
            raise Broken(str(error), f"Try it: envhive serve {target}") from None


async def _check_live(url: str, wishes: Wishes, report: Report) -> None:
    checks = LiveChecks(
        url,
        report,
        sessions=wishes.sessions,
        actions=list(wishes.actions),
        timeout_s=wishes.timeout_s,
        openenv_python=wishes.openenv_python,
    )
    await checks.run()
