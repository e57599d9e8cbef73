"""A script: drives the trainable without a cluster and prints, as JSON, what came of each scenario.

Usage: ray_edge_scenarios.py sealed|open FOLDER. FOLDER holds what ``Workshop`` prepares and the
artifact store with an evaluation. ``open`` only makes the attempts at test data, in a process that
never ran a trial. A trial seals its process for good, hence the script.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from pretended_card import pretended_card
from small_stages import MACAL, request

from trainables import ray_edge
from trainables.common.errors import StorageError
from trainables.data import PreparedData, TestDataSealedError, read_source
from trainables.losses._base import LOSSES, RowLoss
from trainables.ray_edge import StageTrainable
from trainables.stages import StageRequest, evaluate_on_test
from trainables.store.artifacts import ArtifactStore

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
(DIRECTORY,) = (path.parent for path in (FOLDER / "data").glob("*/split.json"))
DATA = PreparedData.open(DIRECTORY)
SHARED = FOLDER / "artifacts"
EVALUATED = (FOLDER / "evaluated").read_text().split()
SCENARIOS: dict[str, Callable[[], Any]] = {}
ATTEMPTS: dict[str, Callable[[], Any]] = {}
HELD: list[Any] = []


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


def attempt(function: Callable[[], Any]) -> Callable[[], Any]:
    ATTEMPTS[function.__name__] = function
    return function


class Edge(StageTrainable):
    """The trainable, which Tune would hand the last two settings."""

    def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
        storage = str(config.pop("storage"))
        super().setup(config, storage, config.pop("report_seconds"), config.pop("every", 0))


def wanted(protocol: dict[str, Any] | None = None, **changes: Any) -> StageRequest:
    return request(DATA, protocol={"epochs": 3, **(protocol or {})}, **changes)


def config(gpus: float = 0.0, **changes: Any) -> dict[str, Any]:
    return {"request": wanted(**changes).plain(), "cpus": 1, "gpus": gpus, "score": "val_nll"}


def edge(storage: Path, report_seconds: float = 0.0, every: int = 0, **changes: Any) -> Edge:
    place = {"storage": storage, "report_seconds": report_seconds, "every": every}
    return Edge({**config(**changes), **place})


def fresh_store() -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER))


def reports(trial: Edge) -> list[dict[str, Any]]:
    """Train to the end."""
    found = [trial.train()]
    while not found[-1]["done"]:
        found.append(trial.train())
    return found


def brief(report: dict[str, Any]) -> dict[str, Any]:
    names = ("status", "reason", "reused", "epoch", "done", "metrics")
    return {name: report[name] for name in (*names, "storage_failed", "memory_failed")}


def lock_of(storage: Path, **changes: Any) -> Any:
    asked = wanted(**changes)
    return ArtifactStore(storage).lock(asked.stage, asked.key())


def stored(storage: Path, **changes: Any) -> Any:
    asked = wanted(**changes)
    return ArtifactStore(storage).find(asked.stage, asked.key())


class Clock:
    """Stands still but while an epoch is computed, or while the trainable sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@contextmanager
def on_a_clock(begun: Callable[[], object] = lambda: None) -> Iterator[Clock]:
    """Have every epoch take ten seconds of a clock, and call what is to happen at its start."""
    clock, real = Clock(), ray_edge.open_together

    def opened(*given: Any) -> Any:
        run = real(*given)
        compute = run.run_epoch

        def run_epoch() -> Any:
            begun()
            clock.now += 10
            return compute()

        run.run_epoch = run_epoch  # type: ignore[method-assign]
        return run

    with patch.multiple(ray_edge, time=clock, open_together=opened):
        yield clock


@scenario
def a_training() -> Any:
    storage = fresh_store()
    found = reports(edge(storage))
    artifact = stored(storage)
    return {
        "statuses": [report["status"] for report in found],
        "epochs": [report["epoch"] for report in found],
        "steps": [[entry["step"] for entry in report["history"]] for report in found],
        "scores": [report["score"] == report["metrics"]["val_nll"] for report in found],
        "last": brief(found[-1]),
        "history": found[-1]["history"][-1]["metrics"],
        "stored": dict(artifact.record["metrics"]),
        "rising": all(a["seconds"] < b["seconds"] for a, b in pairwise(found)),
        "cost": found[-2]["seconds"] < artifact.record["seconds"] < found[-1]["seconds"] + 0.001,
    }


@scenario
def short_epochs_together() -> Any:
    (report,) = reports(edge(fresh_store(), report_seconds=1e9))
    return {"steps": [entry["step"] for entry in report["history"]], **brief(report)}


@scenario
def epochs_of_ten_seconds() -> Any:
    """Broken off after the third of four reports, and gone on with from the second one's state."""
    storage, seven = fresh_store(), {"protocol": {"epochs": 7}}
    found, left = [], []
    with on_a_clock():
        first = edge(storage, report_seconds=15, every=2, **seven)
        for _ in range(3):
            found.append(first.train())
            left.append(len(list((storage / "checkpoints").rglob("*.pt"))))
        first.stop()
        resumed = reports(edge(storage, report_seconds=15, every=2, **seven))
    return {
        "steps": [[entry["step"] for entry in report["history"]] for report in (*found, *resumed)],
        "seconds": [report["seconds"] for report in (*found, *resumed)],
        "states": left,
        "cost": stored(storage, **seven).record["seconds"],
    }


@scenario
def a_stored_artifact() -> Any:
    storage = fresh_store()
    first = reports(edge(storage))[-1]
    (report,) = reports(edge(storage))
    asked, anew = (
        reports(Edge({**config(), "score": "val_refinement", "storage": root, "report_seconds": 0}))
        for root in (storage, fresh_store())
    )
    return {
        "first": brief(first),
        "again": brief(report),
        "history": report["history"],
        "score": report["score"] == first["score"],
        "other scores": [found[-1]["score"] for found in (asked, anew)],
        "reused": [found[-1]["reused"] for found in (asked, anew)],
    }


@scenario
def a_damaged_artifact() -> Any:
    storage = fresh_store()
    first = reports(edge(storage))[-1]
    (stored(storage).directory / "weights.safetensors").write_bytes(b"x")
    found = reports(edge(storage))
    return {
        "first": brief(first),
        "again": brief(found[-1]),
        "notices": [text for report in found for text in report["notices"]],
    }


@scenario
def waiting_for_another_that_finishes() -> Any:
    storage = fresh_store()
    trial, other = edge(storage), edge(storage)
    other.train()
    waiting = trial.train()
    finished = reports(other)[-1]
    return {
        "waiting": brief(waiting),
        "infinite": waiting["score"] == float("inf"),
        "other": brief(finished),
        "then": brief(trial.train()),
    }


@scenario
def waiting_for_another_that_gives_up() -> Any:
    storage = fresh_store()
    trial = edge(storage)
    with lock_of(storage):
        waiting = trial.train()["status"]
    return {"waiting": waiting, "then": [report["status"] for report in reports(trial)]}


@scenario
def another_that_is_silent() -> Any:
    storage = fresh_store()
    trial = edge(storage)
    with lock_of(storage) as held:
        os.utime(held.lock_file, (0, time.time() - ray_edge.PATIENCE_SECONDS - 1))
        found = reports(trial)
    return {"last": brief(found[-1]), "stored": stored(storage) is not None}


@scenario
def patience() -> Any:
    """The other one was heard of ten minutes ago but for a second; the next look is later."""
    storage = fresh_store()
    trial = edge(storage)
    with lock_of(storage) as held, on_a_clock() as clock:
        os.utime(held.lock_file, (0, clock.now - 599.9))
        return [[trial.train()["status"] for _ in range(2)], clock.slept]


@scenario
def a_lock_of_long_ago() -> Any:
    """What is seen of it during the first epoch, which others wait for."""
    storage, seen = fresh_store(), []
    path = lock_of(storage).lock_file
    Path(path).touch()
    os.utime(path, (0, 0))
    with on_a_clock(lambda: seen.append(os.stat(path).st_mtime > 0)):
        edge(storage).train()
    return seen


@scenario
def signs_of_life() -> Any:
    storage = fresh_store()
    trial = edge(storage)
    trial.train()
    path = lock_of(storage).lock_file
    os.utime(path, (0, 0))
    trial.train()
    return os.stat(path).st_mtime > 0


@scenario
def another_configuration_midway() -> Any:
    storage = fresh_store()
    trial, other = edge(storage), edge(storage)
    before = trial.train()
    blocked = other.train()["status"]
    reset = trial.reset(config(seed=1))
    own = reports(trial)
    with lock_of(storage, seed=2):
        trial.reset(config(seed=2))
        waiting = trial.train()
    return {
        "blocked": blocked,
        "waiting": {**brief(waiting), "history": waiting["history"]},
        "infinite": waiting["score"] == float("inf"),
        "anew": waiting["epoch_seconds"] == 0 < before["epoch_seconds"],
        "reset": reset,
        "other": reports(other)[-1]["status"],
        "own": brief(own[-1]),
        "steps": [[entry["step"] for entry in report["history"]] for report in own],
        "seeds": [stored(storage, seed=seed) is not None for seed in (0, 1)],
    }


@scenario
def one_trial_after_another() -> Any:
    """An unfinished one, one whose outcome is there, and one that is computed anew."""
    storage = fresh_store()
    reports(edge(storage, seed=1))
    found = []
    with on_a_clock():
        trial = edge(storage, every=2)
        trial.train()
        for seed in (1, 2):
            trial.reset(config(seed=seed))
            found.append(trial.train())
        left = [len(list((storage / "checkpoints").rglob("*.pt")))]
        trial.train()
        left.append(len(list((storage / "checkpoints").rglob("*.pt"))))
    names = ("status", "reused", "seconds")
    return {"reports": [[report[name] for name in names] for report in found], "left": left}


def failing(error: BaseException) -> Any:
    """Have a stage raise, then give the same actor a stage that works."""
    storage = fresh_store()
    trial, original = edge(storage), ray_edge.open_together

    def broken(*_: Any) -> Any:
        raise error

    ray_edge.open_together = broken
    try:
        (report,) = reports(trial)
    finally:
        ray_edge.open_together = original
    with lock_of(storage).acquire(timeout=1):
        pass
    trial.reset(config(seed=1))
    return {"failed": brief(report), "next": [entry["status"] for entry in reports(trial)]}


@scenario
def a_stage_that_raises() -> Any:
    return failing(RuntimeError("first line\nsecond line"))


@scenario
def a_stage_without_memory() -> Any:
    return failing(MemoryError("cannot allocate"))


@scenario
def a_stage_without_device_memory() -> Any:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.10 GiB free.\nSee ..."
    return failing(torch.OutOfMemoryError(text))


@scenario
def a_stage_without_words() -> Any:
    return failing(ValueError())


@LOSSES.register("flaky")
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


FLAKY: dict[str, Any] = {"parts": {"flaky": {}, "plp": {}}}
BATCHES = 8  # of an epoch: 400 images, 50 a batch


def attempts(*errors: tuple[int, Exception]) -> Any:
    """Start a trial anew whenever it raises, as Tune does; return its reports and what it raised.

    All actors live meanwhile, as one that Tune has not ended yet may.
    """
    storage, found, raised, trials = fresh_store(), [], [], []
    Flaky.errors = list(errors)
    while not found or not found[-1]["done"]:
        trials.append(edge(storage, every=1, **FLAKY))
        try:
            while not found or not found[-1]["done"]:
                found.append(trials[-1].train())
        except Exception as error:  # noqa: BLE001 - whatever the trial raises
            raised.append(f"{type(error).__name__}: {error}")
    stages = [report["reason"] or report["status"] for report in found]
    return {
        "raised": raised,
        "reports": stages,
        "last": brief(found[-1]),
        "where": [report["traceback"] for report in found if report["traceback"]],
        "hosts": {report["host"] for report in found} == {os.uname().nodename},
        "nodes": sorted({report["node"] for report in found}),
        "notices": [text for report in found for text in report["notices"]],
        "left": len(list((storage / "checkpoints").rglob("*.*"))),
    }


@scenario
def a_machine_that_fails_twice() -> Any:
    expected = attempts()
    device = torch.AcceleratorError("CUDA error: unspecified launch failure\nSee ...")
    found = attempts((BATCHES + 2, OSError(5, "Input/output error")), (0, device))
    return {**found, "same": found["last"]["metrics"] == expected["last"]["metrics"]}


@scenario
def a_configuration_that_fails() -> Any:
    return attempts((BATCHES + 2, ValueError("a value out of range")))


@scenario
def a_device_whose_memory_does_not_suffice_midway() -> Any:
    return attempts((BATCHES + 2, torch.OutOfMemoryError("CUDA out of memory")))


@scenario
def storage_that_fills_up_midway() -> Any:
    return attempts((BATCHES + 2, StorageError("cannot write artifact x: No space left on device")))


@scenario
def a_device_that_cannot_be_taken() -> Any:
    refused = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    def refuse(*_: Any) -> None:
        raise refused

    with (
        pretended_card(),
        patch.object(torch.cuda, "set_per_process_memory_fraction", refuse),
        patch.object(torch.cuda, "empty_cache", refuse),
    ):
        trial = edge(fresh_store(), gpus=1.0)
        found = {**brief(trial.train()), "raised": False}
        try:
            trial.train()
        except RuntimeError as error:
            found["raised"] = str(error) == str(refused)
    trial.reset(config())
    return {**found, "next": [report["status"] for report in reports(trial)]}


@scenario
def a_training_that_diverges() -> Any:
    storage = fresh_store()
    trial = edge(storage, protocol={"lr": 1e30})
    found = reports(trial)
    return {"last": brief(found[-1]), "stored": stored(storage, protocol={"lr": 1e30}) is None}


@scenario
def an_upstream_that_is_missing() -> Any:
    missing = ArtifactStore(SHARED).find(*EVALUATED)
    return brief(reports(edge(fresh_store(), stage="refine", parts=MACAL, upstream=missing))[-1])


@scenario
def data_that_are_gone() -> Any:
    trial = Edge(
        {
            **config(),
            "request": {**wanted().plain(), "data": str(FOLDER / "none")},
            "storage": fresh_store(),
            "report_seconds": 0.0,
        }
    )
    return brief(reports(trial)[-1])


@scenario
def an_upstream_that_is_damaged() -> Any:
    storage = fresh_store()
    reports(edge(storage))
    trained = stored(storage)
    before = {name: trained.record[name] for name in ("metrics", "history", "request")}
    asked = {"stage": "refine", "parts": MACAL, "upstream": trained}
    fields = {**wanted(**asked).plain(), "upstream_request": wanted().plain()}
    (trained.directory / "weights.safetensors").write_bytes(b"x")
    other = {**fields, "parts": {"macal": {**MACAL["macal"], "gamma": 0.6}}}
    place = {"storage": storage, "report_seconds": 0.0, "together": [other]}
    found = reports(Edge({**config(), "request": fields, **place}))
    return {
        "last": brief(found[-1]),
        "notices": [text for report in found for text in report["notices"]],
        "carried": ArtifactStore(storage).contains("refine", StageRequest(**other).key()),
        "again": before.items() <= stored(storage).record.items(),
        "key": StageRequest(**fields).key() == wanted(**asked).key(),
    }


@scenario
def a_checkpoint() -> Any:
    whole, halves = fresh_store(), fresh_store()
    expected = reports(edge(whole))[-1]
    first = edge(halves, every=2)
    first.train()
    early = list((halves / "checkpoints").rglob("*.*"))
    seconds = first.train()["seconds"]
    first.stop()
    (path,) = (halves / "checkpoints").rglob("*.*")
    state = torch.load(path, weights_only=True)
    torch.save({**state, "seconds": 1000.0}, path)
    found = reports(edge(halves))  # It goes on from what is there, and writes none of its own.
    one, other = (stored(root).tensors("weights") for root in (whole, halves))
    return {
        "expected": brief(expected),
        "resumed": brief(found[-1]),
        "reports": len(found),
        "steps": [entry["step"] for report in found for entry in report["history"]],
        "bitwise": all(torch.equal(one[name], other[name]) for name in one),
        "early": len(early),
        "seconds": state["seconds"] == seconds and found[0]["seconds"] > 1000,
        "left": len(list((halves / "checkpoints").rglob("*.*"))),
    }


@scenario
def a_damaged_checkpoint() -> Any:
    storage = fresh_store()
    first = edge(storage, every=1)
    first.train()
    first.stop()
    (path,) = (storage / "checkpoints").rglob("*.pt")
    path.write_bytes(path.read_bytes()[:100])
    found = reports(edge(storage))
    told = {"notices": found[0]["notices"], "path": str(path), "gone": not path.exists()}
    return {"last": brief(found[-1]), "reports": len(found), **told}


@scenario
def a_checkpoint_with_a_flipped_bit() -> Any:
    storage = fresh_store()
    first = edge(storage, every=1)
    first.train()
    first.stop()
    (path,) = (storage / "checkpoints").rglob("*.pt")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # torch takes it as it is
    found = reports(edge(storage, every=1))
    told = {"notices": found[0]["notices"], "path": str(path)}
    return {"last": brief(found[-1]), "reports": len(found), **told}


@scenario
def a_checkpoint_of_something_else() -> Any:
    storage = fresh_store()
    first = edge(storage, every=1)
    first.train()
    first.stop()
    (path,) = (storage / "checkpoints").rglob("*.pt")
    state = torch.load(path, weights_only=True)
    network = state["stage"]["trainer"]["network"]
    network["classifier.weight"] = network["classifier.weight"][:, :-1]
    torch.save(state, path)
    found = reports(edge(storage, every=1))
    told = {"notices": found[0]["notices"], "path": str(path)}
    return {"last": brief(found[-1]), "reports": len(found), **told}


@scenario
def a_gpu_that_torch_does_not_see() -> Any:
    with patch.object(torch.cuda, "is_available", lambda: False):
        trial = edge(fresh_store(), gpus=0.5)
        found = reports(trial)
        trial.reset(config(gpus=0.5, seed=1))
        return [text for report in (*found, *reports(trial)) for text in report["notices"]]


@scenario
def storage_that_is_full() -> Any:
    storage = fresh_store()
    (storage / "checkpoints").write_text("a file where a folder should be")
    path = ArtifactStore(storage).checkpoint("train", wanted().key())
    return {**brief(reports(edge(storage, every=1))[-1]), "path": str(path)}


@scenario
def a_checkpoint_that_does_not_fit() -> Any:
    """Where a small tensor or a large one does not fit, torch raises errors of different kinds."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    found = []
    for limit in (4096, 60_000):
        storage = fresh_store()
        trial = edge(storage, every=1)
        trial.train()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            failed = brief(reports(trial)[-1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        found.append({**failed, "then": edge(storage).train()["notices"]})
    return found


@scenario
def devices() -> Any:
    with pretended_card(total=2**60) as shares:  # Beside which a context is nothing.
        trials = [edge(fresh_store(), gpus=gpus) for gpus in (0.0, 0.5)]
        trials[1].reset(config(gpus=2.0, seed=1))
    return [[str(trial._device) for trial in trials], [round(share, 6) for _, share in shares]]


@scenario
def one_task_on_two_devices() -> Any:
    found = []
    with pretended_card():
        trial = edge(fresh_store())
        for gpus in (0.0, 1.0, 0.0):
            trial.reset(config(gpus=gpus))
            found.append(str(trial._task(str(DIRECTORY)).device))
    return found


@scenario
def tasks_at_hand() -> Any:
    """How many tasks are kept after a second one is opened, and what they and torch are told."""
    kept, told, freed = [], [], []
    asked = ((0.0, False), (0.5, False), (0.5, True))
    with (
        pretended_card(),
        patch.object(torch.cuda, "empty_cache", lambda: freed.append(None)),
    ):
        for gpus, flag in asked:
            place = {"storage": fresh_store(), "report_seconds": 0.0}
            trial = Edge({**config(gpus), "deterministic": flag, "graph": flag, **place})
            told.append(torch.are_deterministic_algorithms_enabled())
            tasks = [trial._task(f"{DIRECTORY}{end}") for end in ("", "/.")]
            kept.append(len(trial._tasks))
            told += [tasks[1].graph, trial._task(f"{DIRECTORY}/.") is tasks[1]]
        trial.stop()
    torch.use_deterministic_algorithms(False)
    return {"kept": kept, "told": told, "freed": len(freed)}


@scenario
def threads() -> Any:
    trial = edge(fresh_store())
    before = torch.get_num_threads()
    after = []
    for cpus in (2, 0.5):
        trial.reset({**config(), "cpus": cpus})
        after.append(torch.get_num_threads())
    return [before, *after]


LABELS = DIRECTORY / "test" / "labels.npy"


@attempt
def prepared_test() -> Any:
    return DATA.test().labels


@attempt
def opened_again() -> Any:
    return PreparedData.open(DIRECTORY).test().labels


@attempt
def numpy_load() -> Any:
    return np.load(LABELS)


@attempt
def whole_source() -> Any:
    return read_source("digits", FOLDER).train.labels


@attempt
def scikit_learn() -> Any:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)[1]


@attempt
def stored_evaluation() -> Any:
    found = ArtifactStore(SHARED).find("evaluate", (FOLDER / "evaluation").read_text())
    assert found is not None
    return found.tensors("test")["labels"].numpy()


@attempt
def evaluation_anew() -> Any:
    _, found = evaluate_on_test(ArtifactStore(SHARED), *EVALUATED, DATA)
    return found.tensors("test")["labels"].numpy()


@attempt
def live_objects() -> Any:
    if MODE == "open":
        HELD.append(DATA.test())
    found = [
        value
        for holder in gc.get_objects()
        for value in gc.get_referents(holder)
        if type(value) in (np.ndarray, np.memmap, torch.Tensor)
        if tuple(value.shape) == (DATA.counts["test"],) and "int64" in str(value.dtype)
    ]
    if not found:
        raise TestDataSealedError
    return np.asarray(found[0])


def outcome(function: Callable[[], Any]) -> str:
    try:
        found = function()
    except TestDataSealedError:
        return "sealed"
    return "reached" if len(found) else "odd"


def main() -> None:
    results: dict[str, Any] = {}
    if MODE == "sealed":
        before = edge(SHARED, seed=5)
        # Even a trial that has not taken its first step has given up the functions.
        results["before the first step"] = outcome(prepared_test)
        reports(before)
    results["attempts"] = {name: outcome(function) for name, function in ATTEMPTS.items()}
    if MODE == "sealed":
        results |= {name: function() for name, function in SCENARIOS.items()}
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
