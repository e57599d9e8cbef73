import math
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from pretended_card import pretended_card
from small_stages import MACAL, few_digits

from tests.trainables.worker.bench_here import (
    EPOCHS,
    Place,
    fault_of,
    finish,
    notices,
    on_a_clock,
    steps,
)
from trainables.common.errors import StorageError
from trainables.data import PreparedData
from trainables.jobs import FaultKind, Report, Status
from trainables.losses._base import LOSSES, RowLoss
from trainables.store import locks
from trainables.worker import Bench, Worker, stored_report

RUNS = [Status.RUNNING] * 2 + [Status.FINISHED]
CONFIGURATION, MACHINE, MEMORY, _, STORAGE = (str(kind) for kind in FaultKind)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return few_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def place(tmp_path: Path, data: PreparedData) -> Iterator[Place]:
    threads = torch.get_num_threads()
    yield Place(tmp_path, data)
    torch.set_num_threads(threads)


def statuses(reports: list[Report]) -> list[Status]:
    return [report.status for report in reports]


def test_training_reports_every_epoch_and_leaves_an_artifact(place):
    found = place.run()
    stored = place.stored()
    assert (statuses(found), steps(found)) == (RUNS, [[epoch] for epoch in EPOCHS])
    assert [report.epoch for report in found] == EPOCHS
    last = found[-1]
    assert {"val_acc", "val_ece", "val_nll"} <= set(last.metrics)
    assert all(math.isfinite(value) for value in last.metrics.values())
    assert last.metrics == last.history[-1].metrics == stored.record["metrics"]
    assert (last.artifact, last.fault, last.cost.reused) == (stored.key, None, False)
    assert (last.host, last.node) == (os.uname().nodename, "n7")
    seconds = [report.cost.seconds for report in found]
    assert seconds == sorted(seconds)
    assert seconds[-2] < stored.record["seconds"] < seconds[-1] + 0.001
    assert (last.cost.epoch_seconds or 0) > 0 < (last.cost.peak_memory or 0)


def test_reports_and_states_come_in_time_and_seconds_add_up(place):
    seven = {"protocol": {"epochs": 7}}
    with on_a_clock():
        first = place.worker(report_seconds=15, every=40, **seven)
        found, left = [], []
        for _ in range(3):
            found.append(first.step())
            left.append(len(place.states()))
        first.close()
        found += finish(place.worker(report_seconds=15, every=40, **seven))
    # More than fifteen seconds are two epochs. The state is that of the second report.
    assert steps(found) == [[1, 2], [3, 4], [5, 6], [1, 2, 3, 4, 5, 6], [7]]
    assert [report.cost.seconds for report in found] == [20, 40, 60, 60, 70]
    assert left == [0, 1, 1]
    stored = place.stored(**seven)
    assert stored.record["seconds"] == 70


def test_stored_outcome_is_not_computed_again(place):
    first = place.run()[-1]
    (again,) = place.run()
    assert (again.status, again.cost.reused, again.epoch) == (Status.FINISHED, True, 0)
    assert again.metrics == first.metrics
    assert [epoch.step for epoch in again.history] == EPOCHS
    assert (again.cost.epoch_seconds, again.cost.peak_memory) == (None, None)


def test_other_score_of_a_stored_outcome_is_computed(place, tmp_path):
    place.run()
    (stored,) = place.run(score="val_nll_after_ts")
    anew = Place(tmp_path / "anew", place.data).run(score="val_nll_after_ts")[-1]
    assert (stored.cost.reused, anew.cost.reused) == (True, False)
    assert stored.metrics["val_nll_after_ts"] == pytest.approx(
        anew.metrics["val_nll_after_ts"], abs=1e-6
    )
    assert 0 < stored.metrics["val_nll_after_ts"] != stored.metrics["val_nll"]


def test_stored_report_answers_but_for_trainings(place):
    place.run()
    trained = place.stored()
    job = place.job(stage="refine", parts=MACAL, upstream=trained)
    assert stored_report(place.store, job) is None
    worker = Worker(place.bench())
    worker.open(job)
    last = finish(worker)[-1]
    known = stored_report(place.store, job)
    assert (known.metrics, known.artifact) == (last.metrics, last.artifact)
    assert (known.cost.reused, known.cost.seconds, len(known.history)) == (True, 0.0, 4)
    assert stored_report(place.store, place.job()) is None


def test_damaged_outcome_is_computed_again(place):
    first = place.run()[-1]
    stored = place.stored()
    (stored.directory / "weights.safetensors").write_bytes(b"x")
    found = place.run()
    assert (found[-1].metrics, found[-1].cost.reused) == (first.metrics, False)
    (notice,) = notices(found)
    assert "weights.safetensors" in notice
    assert "damaged" in notice


def test_a_worker_waits_for_another_one_that_computes_the_same_stage(place):
    worker, other = place.worker(), place.worker()
    other.step()
    waiting = worker.step()
    assert (waiting.status, waiting.metrics, waiting.epoch) == (Status.WAITING, {}, 0)
    ended = finish(other)[-1]
    then = worker.step()
    assert (then.status, then.cost.reused, then.metrics) == (Status.FINISHED, True, ended.metrics)


def test_silent_worker_is_not_waited_for(place, monkeypatch):
    """A scheduler may have stopped it, and its process then lies idle with the lock."""
    with place.lock() as held, on_a_clock() as clock:
        monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: clock.now))
        worker = place.worker()
        assert worker.step().status == Status.WAITING
        clock.now += locks.PATIENCE_SECONDS - 0.3
        assert [worker.step().status for _ in range(2)] == [Status.WAITING, Status.RUNNING]
        assert clock.paused == [0.2, 0.2]
        assert held.path.exists()
        assert finish(worker)[-1].status == Status.FINISHED


@pytest.mark.parametrize("shift", [-1e6, 1e6], ids=["behind", "ahead"])
def test_other_clocks_change_nothing_about_a_lock(place, monkeypatch, shift):
    """The holder's machine has another clock, and then ceases to exist."""
    lock, now = place.lock(), 1000.0
    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    with place.lock() as held:
        for _ in range(3):  # Each is a sign of life.
            shift += 1
            os.utime(held.path, (0, time.time() + shift))
            assert not lock.take()
            now += locks.PATIENCE_SECONDS
        assert not lock.take()
        now += 1
        assert lock.take()


def test_worker_gives_signs_of_life(place):
    path, seen = place.lock().path, list[bool]()
    path.touch()
    os.utime(path, (0, 0))
    with on_a_clock(lambda: seen.append(path.stat().st_mtime > 0)):
        worker = place.worker()
        worker.step()
        assert seen == [True]  # During the first epoch, which others wait for.
        os.utime(path, (0, 0))
        worker.step()
    assert path.stat().st_mtime > 0
    worker.close()


def test_unfinished_job_is_left_to_others(place):
    worker, other = place.worker(), place.worker()
    before = worker.step()
    assert other.step().status == Status.WAITING
    worker.open(place.job(seed=1))
    own = finish(worker)
    assert steps(own) == [[epoch] for epoch in EPOCHS]
    assert finish(other)[-1].status == Status.FINISHED
    with place.lock(seed=2):
        worker.open(place.job(seed=2))
        waiting = worker.step()
    assert (waiting.history, waiting.metrics) == ((), {})
    assert waiting.cost.epoch_seconds == 0 < (before.cost.epoch_seconds or 0)


def test_jobs_of_a_process_do_not_mix(place):
    """An unfinished one, one whose outcome is there, and one that is computed anew."""
    place.run(seed=1)
    with on_a_clock():
        worker = place.worker(every=20)
        worker.step()
        found = []
        for seed in (1, 2):
            worker.open(place.job(seed=seed))
            found.append(worker.step())
        assert [(r.status, r.cost.reused, r.cost.seconds) for r in found] == [
            (Status.FINISHED, True, 0),
            (Status.RUNNING, False, 10),
        ]
        assert place.states() == []
        worker.step()
    assert len(place.states()) == 1  # The state is that of its own second report.
    worker.close()


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.10 GiB free.\nSee ..."


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (RuntimeError("first line\nsecond"), CONFIGURATION, "RuntimeError: first line"),
        (MemoryError("cannot allocate"), CONFIGURATION, "MemoryError: cannot allocate"),
        (
            torch.OutOfMemoryError(OUT_OF_MEMORY),
            MEMORY,
            f"OutOfMemoryError: {OUT_OF_MEMORY.splitlines()[0]}",
        ),
        (ValueError(), CONFIGURATION, "ValueError: "),
        (OSError(5, "Input/output error"), MACHINE, "OSError: [Errno 5] Input/output error"),
        (StorageError("cannot write x: no space"), STORAGE, "cannot write x: no space"),
    ],
)
def test_stage_that_raises_is_a_failed_job_and_the_worker_goes_on(
    place, monkeypatch, error, kind, reason
):
    def broken(*_: Any) -> Any:
        raise error

    worker = place.worker()
    with monkeypatch.context() as patched:
        patched.setattr(Bench, "open_run", broken)
        (report,) = finish(worker)
    assert fault_of(report) == (kind, reason)
    with place.lock():  # It is free.
        pass
    worker.open(place.job(seed=1))
    assert statuses(finish(worker)) == RUNS


class Flaky(RowLoss):
    """Plain cross-entropy that raises what is left in ``errors``, after so many batches each."""

    errors: ClassVar[list[tuple[int, Exception]]] = []

    def per_row(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.errors:
            left, error = self.errors.pop(0)
            if left == 0:
                raise error
            self.errors.insert(0, (left - 1, error))
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


@pytest.fixture(autouse=True)
def flaky_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    LOSSES.names()  # Loads those there are.
    monkeypatch.setitem(LOSSES._entries, "flaky", Flaky)


BATCHES = 8  # of an epoch: 400 images, 50 a batch
SECOND = BATCHES + 2


def attempts(place: Place, *errors: tuple[int, Exception], gpus: float = 0.0) -> list[Report]:
    """Open a worker for each attempt, as executors do while the machine is at fault."""
    Flaky.errors, found, workers = list(errors), list[Report](), list[Worker]()
    while not found or (found[-1].fault and found[-1].fault.kind == FaultKind.MACHINE):
        # All of them live meanwhile, as one that an executor has not ended yet may.
        workers.append(place.worker(every=0, parts={"flaky": {}, "plp": {}}, gpus=gpus))
        found += finish(workers[-1])
    return found


def test_machine_fault_is_resumed_in_another_process(place, tmp_path):
    expected = attempts(Place(tmp_path / "other", place.data))[-1]
    device = torch.AcceleratorError("CUDA error: unspecified launch failure\nSee ...")
    found = attempts(place, (SECOND, OSError(5, "Input/output error")), (0, device))
    failed = [report.fault for report in found if report.fault is not None]
    reasons = [fault.reason for fault in failed]
    assert reasons == [
        "OSError: [Errno 5] Input/output error",
        "AcceleratorError: CUDA error: unspecified launch failure",
    ]
    assert all("per_row" in f.traceback and "raise error" in f.traceback for f in failed)
    failing = f"train of flaky+plp failed because of machine {os.uname().nodename}"
    resuming = "train of flaky+plp resumes after epoch 1 of 3"
    assert notices(found) == [
        text for reason in reasons for text in (f"{failing}: {reason}", resuming)
    ]
    assert found[-1].metrics == expected.metrics
    assert place.states() == []


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("a value out of range"), 0),
        (torch.OutOfMemoryError("CUDA out of memory"), 1),
        (StorageError("cannot write artifact x: No space left on device"), 1),
    ],
)
def test_state_stays_where_another_attempt_may_end_well(place, error, kept):
    found = attempts(place, (SECOND, error))
    assert statuses(found) == [Status.RUNNING, Status.FAILED]
    assert len(place.states()) == kept


def test_share_that_is_too_small_is_announced(place):
    with pretended_card():
        worker = Worker(place.bench())
        worker.open(place.job(gpus=0.25))
        worker._refusal = torch.OutOfMemoryError("CUDA out of memory")
        (report,) = finish(worker)
    assert report.notices == (
        "train of ce ran out of memory on 0.25 of a GPU; it runs once more, on a whole GPU",
    )


def test_device_that_cannot_be_taken_is_reported_by_the_first_step(place, monkeypatch):
    refused = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    def refuse(*_: Any) -> None:
        raise refused

    worker = Worker(place.bench())
    with pretended_card(), monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "set_per_process_memory_fraction", refuse)
        patched.setattr(torch.cuda, "empty_cache", refuse)
        worker.open(place.job(gpus=1.0))
        assert fault_of(worker.step()) == (MACHINE, f"RuntimeError: {refused}")
    worker.open(place.job())
    assert statuses(finish(worker)) == RUNS


def test_training_that_diverges_is_the_configurations_fault(place):
    kind, reason = fault_of(place.run(protocol={"lr": 1e30})[-1])
    assert kind == CONFIGURATION
    assert re.fullmatch(r"TrainingDivergedError: .* (in|of) epoch \d", reason)
    assert place.stored(protocol={"lr": 1e30}) is None


def test_a_fault_names_the_artifact_or_data_that_is_missing(place, tmp_path):
    place.run()
    missing = place.stored()
    elsewhere = Place(tmp_path / "elsewhere", place.data)
    refined = elsewhere.run(stage="refine", parts=MACAL, upstream=missing)[-1]
    assert re.match(r"InputError: artifact .* is missing or damaged", fault_of(refined)[1])
    gone = replace(place.wanted(), data=str(tmp_path / "none"))
    assert str(tmp_path / "none") in fault_of(place.run(wanted=gone)[-1])[1]


def test_resumed_job_ends_where_an_uninterrupted_one_does(place, tmp_path):
    whole = Place(tmp_path / "whole", place.data)
    expected = whole.run()[-1]
    with on_a_clock():
        first = place.worker(every=20)
        first.step()
        assert place.states() == []
        seconds = first.step().cost.seconds
        first.close()
    (path,) = place.states()
    state = torch.load(path, weights_only=True)
    assert state["seconds"] == seconds
    torch.save({**state, "seconds": 1000.0}, path)
    (resumed,) = place.run()  # It resumes from what is there, and writes no state of its own.
    assert (resumed.metrics, steps([resumed])) == (expected.metrics, [EPOCHS])
    assert resumed.cost.seconds > 1000
    one, other = whole.stored(), place.stored()
    weights = one.tensors("weights"), other.tensors("weights")
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert place.states() == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # torch takes it as it is.


def make_foreign(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    network = state["stage"]["trainer"]["network"]
    network["classifier.weight"] = network["classifier.weight"][:, :-1]
    torch.save(state, path)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(cut, "BadZipFile"), (flip_a_bit, "ValueError"), (make_foreign, "RuntimeError")],
)
def test_a_damaged_checkpoint_makes_the_stage_start_over(place, tmp_path, damage, kind):
    first = place.worker(every=0)
    first.step()
    first.close()
    (path,) = place.states()
    damage(path)
    found = place.run()
    assert statuses(found) == RUNS
    assert notices(found) == [f"checkpoint {path} is damaged ({kind}): the stage starts over"]
    assert found[-1].metrics == Place(tmp_path / "o", place.data).run()[-1].metrics
    assert not path.exists()


@pytest.mark.parametrize("limit", [4096, 60_000])
def test_checkpoint_that_does_not_fit_says_why(place, limit):
    """Where a small tensor or a large one does not fit, torch raises errors of different kinds."""
    worker = place.worker(every=0)
    worker.step()
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        kind, reason = fault_of(finish(worker)[-1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert kind == STORAGE
    assert reason.startswith("cannot write checkpoint")
    assert reason.endswith("File too large")
    again = place.worker().step()  # The one before is whole.
    assert again.notices == ("train of ce resumes after epoch 1 of 3",)


def test_a_gpu_that_torch_does_not_see_gets_one_notice(place):
    worker = place.worker(gpus=0.5)
    found = finish(worker)
    worker.open(place.job(gpus=0.5, seed=1))
    assert notices(found + finish(worker)) == [
        f"{os.uname().nodename}: torch sees no GPU, so trials that request one compute on the CPU"
    ]


def test_resources_decide_device_and_threads(place):
    worker = Worker(place.bench())
    with pretended_card(total=2**60) as shares:  # Beside which a context is nothing.
        devices = []
        for gpus in (0.0, 0.5, 2.0):
            worker.open(place.job(gpus=gpus))
            devices.append(str(worker._bench.device))
    assert devices == ["cpu", "cuda:0", "cuda:0"]
    assert [round(share, 6) for _, share in shares] == [0.5, 1.0]
    threads = []
    for cpus in (2, 0.5):
        worker.open(place.job(cpus=cpus))
        threads.append(torch.get_num_threads())
    assert threads == [2, 1]


def test_gpu_holds_one_task_and_is_freed_with_the_job(place, monkeypatch):
    freed: list[None] = []
    directory = str(place.data.directory)
    with pretended_card():
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(None))
        worker = Worker(place.bench())
        kept, devices, flags = [], [], []
        for gpus, flag in ((0.0, False), (0.5, False), (0.5, True), (0.0, False)):
            worker.open(place.job(gpus=gpus, flags=flag))
            flags.append(torch.are_deterministic_algorithms_enabled())
            tasks = [worker._bench.task(f"{directory}{end}", flag) for end in ("", "/.")]
            kept.append(len(worker._bench._tasks))
            devices.append(str(tasks[1].device))
            assert worker._bench.task(f"{directory}/.", flag) is tasks[1]
        worker.close()
    torch.use_deterministic_algorithms(False)
    assert kept == [2, 1, 1, 3]
    assert devices == ["cpu", "cuda:0", "cuda:0", "cpu"]
    assert flags[:3] == [False, False, True]
    assert len(freed) == 4
