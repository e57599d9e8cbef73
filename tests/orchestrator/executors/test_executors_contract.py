import re
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import ray
import torch

from orchestrator import run_sweep
from orchestrator.cluster.local import join_cluster
from orchestrator.executors import Executor
from orchestrator.executors.in_process import InProcess
from orchestrator.executors.processes import Processes
from orchestrator.loop import Loop
from orchestrator.storage.journal import read_events
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.plan import Plan
from orchestrator.sweep.spec import parse_sweep
from tests.orchestrator.executors.small_jobs import Deadly, Jobs, Telling, fit, prepared_logits
from tests.orchestrator.one_process import one_process
from trainables.common.errors import InputError
from trainables.common.files import code_files
from trainables.data import TestDataSealedError
from trainables.jobs import FaultKind, Status
from trainables.store.artifacts import ArtifactStore

HANG_SECONDS = 4.0  # A machine that is busy may keep a sound process from computing for one.


@contextmanager
def ray_tune(folder: Path) -> Iterator[Executor]:
    with join_cluster(None):
        from orchestrator.executors.ray_tune import RayTune

        # Each process of Ray takes seconds to start; test_run has trials side by side.
        yield RayTune(folder / "artifacts", folder, concurrent=1, hang_seconds=HANG_SECONDS)


@contextmanager
def in_process(folder: Path) -> Iterator[Executor]:
    threads = torch.get_num_threads()
    yield InProcess(folder / "artifacts")
    torch.set_num_threads(threads)


@contextmanager
def processes(folder: Path) -> Iterator[Executor]:
    yield Processes(2, folder / "artifacts", hang_seconds=HANG_SECONDS)


RAY = pytest.param(ray_tune, marks=pytest.mark.full)


@pytest.fixture(scope="module", params=[in_process, processes, RAY], ids=lambda f: f.__name__)
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


@dataclass(frozen=True)
class Served:
    """What became of a job that sees no test data, and of those after it, which may."""

    sealed: Jobs
    opened: Jobs
    killed: Path
    stopped: Path


GONE = "1"


@pytest.fixture(scope="module")
def served(executor: Executor, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Have it compute good jobs, one without its data, and two that end or stop their process."""
    folder = tmp_path_factory.mktemp("served")
    killed, stopped = folder / "killed", folder / "stopped"
    jobs = [fit(folder / "gone" if key == GONE else data, key) for key in "01234"]
    if not isinstance(executor, InProcess):
        jobs[2] = replace(jobs[2], work=Deadly.of(jobs[2], killed))
        jobs[3] = replace(jobs[3], work=Deadly.of(jobs[3], stopped, signal.SIGSTOP))
    found = Served(Jobs([fit(data, "0")]), Jobs(jobs), killed, stopped)
    run(executor, found.sealed, sealed=True)
    run(executor, found.opened, sealed=False, most=3)
    return found


@pytest.mark.full
def test_every_job_ends_once_and_in_order(served: Served) -> None:
    ends = served.opened.ends
    assert sorted(ends) == list("01234")
    assert list(ends)[-1] == "4"  # It had to wait for the others.
    good = [report for key, report in ends.items() if key != GONE]
    assert {report.status for report in good} == {Status.FINISHED}
    assert len({report.fits["ts"].metrics["ece"] for report in good}) == 1


def test_sealed_workers_reach_no_test_data_those_after_them_do(served: Served) -> None:
    fault = served.sealed.ends["0"].fault
    assert fault is not None
    assert TestDataSealedError.__name__ in fault.reason
    assert served.opened.ends["0"].status == Status.FINISHED


def test_a_fault_of_a_configuration_is_final(served: Served) -> None:
    fault = served.opened.ends[GONE].fault
    assert fault is not None
    assert (fault.kind, "gone" in fault.reason) == (FaultKind.CONFIGURATION, True)


OTHERS = pytest.mark.parametrize("executor", [processes, RAY], indirect=True)


@OTHERS
def test_job_whose_process_dies_runs_in_another(served: Served) -> None:
    assert served.killed.exists()
    assert served.opened.ends["2"].status == Status.FINISHED


@OTHERS
def test_job_whose_process_is_stopped_runs_in_another(served: Served) -> None:
    assert not psutil.pid_exists(int(served.stopped.read_text()))
    assert served.opened.ends["3"].status == Status.FINISHED


@OTHERS
def test_process_of_altered_code_computes_nothing(executor, data, monkeypatch):
    began = {**code_files(), "trainables/losses/ce.py": "0" * 64}
    monkeypatch.setattr(sys.modules[type(executor).__module__], "code_files", lambda: began)
    jobs = Jobs([fit(data, "0"), fit(data, "1")])
    told = r"^no trial can start any more: trainables/losses/ce\.py has changed since the sweep"
    with pytest.raises(InputError, match=told):
        run(executor, jobs, sealed=False)
    assert jobs.ends == {}


@pytest.mark.parametrize("executor", [processes], indirect=True)
def test_each_process_sees_a_gpu_of_its_own(executor, data, tmp_path, monkeypatch):
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


@pytest.mark.parametrize("executor", [RAY], indirect=True)
def test_ray_exports_ended_attempts(served: Served) -> None:
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


ASHA = """
name: halving
tasks:
  - name: digits
    dataset: digits
    model: convnet
    protocol: {{base: digits, epochs: 9}}
    split: {{train_limit: 200}}
recipes: [ls, ls+macal]
search:
  trials: 4
  scheduler: asha
  accuracy_tolerance: null
  spaces: {{ls: {{smoothing: {{low: 0.0, high: 0.9}}}}}}
  fixed: {{macal: {{epochs: 6}}}}
seeds: [0, 1]
resources: {{concurrent: 1}}
storage: {storage}
tracking: {{uri: 'folder:{storage}/runs'}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", [RAY], indirect=True)
def test_a_sweep_under_asha_runs_to_its_end(executor: Executor, tmp_path: Path) -> None:
    """On the Ray of this file; whom a sweep file asks for is told in test_run_edges."""
    from orchestrator.executors.ray_tune import RayTune

    @contextmanager
    def halving(plan: Plan, store: ArtifactStore, *_: object) -> Iterator[Executor]:
        yield RayTune(store.root, SweepFolder.of(plan.spec).path, concurrent=1, asha=True)

    with one_process(), patch("orchestrator.running.run.open_executor", halving):
        outcome = run_sweep(parse_sweep(ASHA.format(storage=tmp_path), "halving"))
    assert outcome.status == "finished"
    events = read_events(outcome.journal)[0]
    ends = [event for event in events if event.event == "trial_finished"]
    studies = {e.key: e.study for e in events if e.event == "trial_started"}
    counts = Counter((studies[end.key], end.status) for end in ends)
    for study in ("digits|ls", "digits|ls+macal"):
        assert counts[study, "finished"] + counts[study, "pruned"] == 5  # one is a further seed
        assert counts[study, "finished"] >= 2
        assert counts[study, "pruned"] >= 1
    chosen = {event.chosen for event in events if event.event == "study_closed"}
    finished = {end.key for end in ends if end.status == "finished"}
    assert chosen <= finished
    for end in ends:
        steps = [e.step for e in events if e.event == "epoch" and e.key == end.key]
        epochs = 6 if "macal" in studies[end.key] else 9
        assert steps == list(range(1, len(steps) + 1))
        assert (len(steps) == epochs) == (end.status == "finished")
    assert all(len(result.test) == 2 for result in outcome.results)
