"""The endpoints do what the OpenAPI document says they do, whatever they are sent."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.belongings import nothing_left_behind
from tests.support.processes import ServerProcess, envhive_serve

pytestmark = pytest.mark.integration

EXAMPLES: Final = 30
"""Requests to each endpoint."""
CHECKED: Final = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
DOCUMENTED: Final = (501, 504)
"""Server errors that are no fault: an environment without task sets is asked for them; a time limit is too short."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("openapi") / "log"
    with envhive_serve("echo", "--max-sessions", "64", log=log) as server:
        yield server
        assert "Traceback" not in log.read_text()


def test_every_answer_is_one_that_the_document_names(server: ServerProcess) -> None:
    # Draining is for good: whatever is asked after it would be asked of a server that refuses.
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json").exclude(path="/drain")
    operations = [found.ok() for found in document.get_all_operations()]
    assert {"/reset", "/step", "/state", "/health", "/sessions", "/mcp"} <= {each.path for each in operations}
    failures = []
    with nothing_left_behind(server, f"{len(operations)} endpoints, {EXAMPLES} random requests each") as tally:
        for operation in operations:
            try:
                ask_at_random(operation, tally.counts)
            except BaseExceptionGroup as failure:  # all endpoints are asked, and then all that is wrong is told
                failures.append(f"{operation.label}: {failure}")
        end_all_sessions(server)  # that nobody came back to; they would wait for a while
    assert not failures, "\n\n".join(failures)


def end_all_sessions(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{server.url}/sessions", timeout=10) as answer:
        for session in json.load(answer):
            url = f"{server.url}/sessions/{session['session_id']}"
            urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=10).close()


def ask_at_random(operation: Any, counts: Any) -> None:
    @settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        response = case.call()
        counts[str(response.status_code)] += 1
        checks = CHECKED[1:] if response.status_code in DOCUMENTED else CHECKED
        case.validate_response(response, checks=list(checks))

    ask()
