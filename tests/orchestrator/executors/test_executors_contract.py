"""What every executor does with a loop, whichever way it computes."""

from __future__ import annotations

import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from orchestrator.cluster.local import join_cluster
from orchestrator.executors import Executor
from orchestrator.executors.in_process import InProcess
from orchestrator.executors.processes import Processes
from orchestrator.loop import Loop
from tests.orchestrator.executors.small_jobs import Deadly, Jobs, Telling, fit, prepared_logits
from trainables.common.code import code_files
from trainables.common.errors import InputError
from trainables.data import TestDataSealedError
from trainables.jobs import FaultKind, Status


@contextmanager
def ray_tune(folder: Path) -> Iterator[Executor]:
    with join_cluster(None):
        from orchestrator.executors.ray_tune import RayTune

        # Each process of Ray takes seconds to start; test_run has trials side by side.
        yield RayTune(folder / "artifacts", folder, concurrent=1)


@contextmanager
def in_process(folder: Path) -> Iterator[Executor]:
    threads = torch.get_num_threads()
    yield InProcess(folder / "artifacts")
    torch.set_num_threads(threads)


@contextmanager
def processes(folder: Path) -> Iterator[Executor]:
    yield Processes(2, folder / "artifacts")


@pytest.fixture(scope="module", params=[in_process, processes, ray_tune], ids=lambda f: f.__name__)
def executor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Executor]:
    make: Callable[[Path], Any] = request.param
    with make(tmp_path_factory.mktemp("executor")) as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_logits(tmp_path_factory.mktemp("logits")).directory


def run(executor: Executor, jobs: Jobs, sealed: bool, most: int = 1) -> list[str]:
    said: list[str] = []
    executor.run(Loop(jobs, lambda event: None, most, said.append), sealed)
    return said


def test_every_job_ends_once_and_in_order(executor: Executor, data: Path) -> None:
    jobs = Jobs([fit(data, str(number)) for number in range(5)])
    run(executor, jobs, sealed=False)
    assert sorted(jobs.ends) == [str(number) for number in range(5)]
    assert list(jobs.ends)[-1] == "4"  # It had to wait for the others.
    eces = {report.fits["ts"].metrics["ece"] for report in jobs.ends.values()}
    assert len(eces) == 1
    assert all(report.status == Status.FINISHED for report in jobs.ends.values())


def test_sealed_workers_reach_no_test_data_those_after_them_do(
    executor: Executor, data: Path, tmp_path: Path
) -> None:
    jobs = Jobs([fit(data, "0")])
    run(executor, jobs, sealed=True)
    fault = jobs.ends["0"].fault
    assert fault is not None
    assert TestDataSealedError.__name__ in fault.reason
    after = Jobs([fit(tmp_path / "gone", "0"), fit(data, "1")])
    run(executor, after, sealed=False)
    fault = after.ends["0"].fault  # Of its configuration, which is not tried again.
    assert fault is not None
    assert (fault.kind, "gone" in fault.reason) == (FaultKind.CONFIGURATION, True)
    assert after.ends["1"].status == Status.FINISHED


OTHERS = pytest.mark.parametrize("executor", [processes, ray_tune], indirect=True)


@OTHERS
def test_job_whose_process_dies_runs_in_another(
    executor: Executor, data: Path, tmp_path: Path
) -> None:
    deadly = replace(fit(data, "0"), work=Deadly.of(fit(data, "0"), tmp_path / "died"))
    jobs = Jobs([deadly, fit(data, "1")])
    run(executor, jobs, sealed=False)
    assert {report.status for report in jobs.ends.values()} == {Status.FINISHED}
    assert (tmp_path / "died").exists()


@OTHERS
def test_process_of_altered_code_computes_nothing(
    executor: Executor, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = {**code_files(), "trainables/losses/ce.py": "0" * 64}
    monkeypatch.setattr(sys.modules[type(executor).__module__], "code_files", lambda: began)
    jobs = Jobs([fit(data, "0"), fit(data, "1")])
    told = r"^no trial can start any more: trainables/losses/ce\.py is not as it was when the sweep"
    with pytest.raises(InputError, match=told):
        run(executor, jobs, sealed=False)
    assert jobs.ends == {}


@pytest.mark.parametrize("executor", [processes], indirect=True)
def test_each_process_sees_a_gpu_of_its_own(
    executor: Executor, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that died is replaced by one on the same GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(Jobs, "sizes", ((1.0, 0.5),))
    deadly = replace(fit(data, "0"), work=Deadly.of(fit(data, "0"), tmp_path / "died"))
    told = [fit(data, str(number)) for number in range(1, 6)]
    told = [replace(job, work=Telling.of(job, tmp_path / "told")) for job in told]
    jobs = Jobs([deadly, *told])
    run(executor, jobs, sealed=False)
    assert set((tmp_path / "told").read_text().split()) == {"3", "5"}
    assert {report.status for report in jobs.ends.values()} == {Status.FINISHED}


@pytest.mark.parametrize("executor", [ray_tune], indirect=True)
def test_ray_exports_what_has_ended(executor: Executor, data: Path) -> None:
    run(executor, Jobs([fit(data, "0")]), sealed=False)
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    ended = re.compile(r'^ray_calsweep_attempts_total\{.*status="finished".*\} (.+)$', re.MULTILINE)
    waited, found = time.monotonic(), None
    while found is None:  # Processes tell it every ten seconds.
        assert time.monotonic() - waited < 60
        with urllib.request.urlopen(address, timeout=5) as answer:
            found = ended.search(answer.read().decode())
        time.sleep(0.5)
    assert float(found[1]) >= 1
