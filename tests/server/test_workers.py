"""The supervisor, where no workers can be had."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from envhive.server.run import bind
from envhive.server.workers import Supervisor
from tests.support.descriptors import open_descriptors


def test_a_worker_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*args: Any, **options: Any) -> Any:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    with bind("127.0.0.1", 0) as listener:
        before = open_descriptors()
        with pytest.raises(BlockingIOError):
            Supervisor(listener, 2, {}, 1.0, on_ready=lambda about: None).run()
        assert open_descriptors() == before
