"""Slurm for real: a controller and two nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from envhive.errors import ConfigurationError, ProviderError
from envhive.providers.base import Replica, is_healthy
from envhive.providers.slurm import SlurmProvider
from tests.integration.provider_contract import TARGET, Engine, Player, ProviderContract, processes_of
from tests.support.processes import children_of
from tests.support.servers import eventually
from tests.support.slurm import Slurm, slurm_cluster

pytestmark = pytest.mark.integration


class SlurmEngine(Engine):
    starting = f"""
from envhive.providers.slurm import SlurmProvider
provider = SlurmProvider({TARGET!r}, replicas=2, **{{options}})
"""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def provider(self, target: str, **options: Any) -> SlurmProvider:
        return SlurmProvider(target, **{"start_timeout_s": 90, **options})

    def has(self, run_id: str) -> list[str]:
        return self._slurm.jobs(f"envhive-{run_id}")

    def cancel(self, run_id: str) -> None:
        self._slurm.ask("scancel", f"--name=envhive-{run_id}")

    def has_nothing(self, run_id: str) -> bool:
        return super().has_nothing(run_id) and not (self._slurm.folder / "envhive" / "slurm" / run_id).exists()

    def node_of(self, replica: Replica) -> str:
        return replica.where.rpartition(" on ")[2]


@pytest.fixture(scope="module")
def engine() -> Iterator[SlurmEngine]:
    with slurm_cluster() as slurm, pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environ.items():
            patch.setenv(name, value)
        patch.setenv("XDG_STATE_HOME", str(slurm.folder))  # where providers keep their folders
        yield SlurmEngine(slurm)


class TestSlurm(ProviderContract):
    pass


def test_jobs_whose_starter_vanished_with_its_machine_end_by_themselves(engine: SlurmEngine) -> None:
    with engine.starter(lease_s=1.5) as (process, run_id):
        assert len(engine.has(run_id)) == 2
        for child in children_of(process.pid):  # its guard: nobody is left who could cancel the jobs
            os.kill(int(child), signal.SIGKILL)
        process.kill()
        eventually(lambda: not engine.has(run_id), within=60)
        eventually(lambda: not processes_of(run_id), within=15)


def test_a_cancelled_job_lets_its_sessions_finish(engine: SlurmEngine) -> None:
    with engine.provider(TARGET) as provider, ExitStack() as stack:
        player = Player(provider.base_url, stack)
        engine.cancel(provider.run_id)
        eventually(lambda: not is_healthy(provider.base_url))
        assert player.plays()
        player.client.close()
        eventually(lambda: not engine.has(provider.run_id), within=20)


def test_a_partition_that_is_not_there_is_an_error_in_slurms_words(engine: SlurmEngine) -> None:
    with pytest.raises(ProviderError, match="invalid partition specified: nowhere"):
        engine.provider(TARGET, partition="nowhere").start()


def test_a_job_that_gets_no_node_says_what_it_waits_for(engine: SlurmEngine) -> None:
    provider = engine.provider(TARGET, sbatch="--hold --nice=1", start_timeout_s=1.0)
    with pytest.raises(ProviderError, match=r"0 of 1 replicas were healthy in time(.|\n)*PENDING \(JobHeldUser\)"):
        provider.start()
    eventually(lambda: engine.has_nothing(provider.run_id))


def test_slurms_programs_are_missed_by_name(
    engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no sbatch, squeue, scancel, scontrol"):
        engine.provider(TARGET).start()
