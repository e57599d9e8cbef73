"""Ways to reach test data; as a script: what comes of each in a process that a worker has sealed.

Usage: attempts.py sealed|open FOLDER, where FOLDER holds digits, a store and ``evaluation``: the
stage and key of a training, and the key of its evaluation. ``open`` seals nothing.
"""

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData, TestDataSealedError, read_source
from trainables.stages import evaluate_on_test
from trainables.store.artifacts import ArtifactStore

Attempt = Callable[["Prize"], Any]
ATTEMPTS: dict[str, Attempt] = {}


class Prize:
    """Test data, prepared and predicted on, in a folder."""

    def __init__(self, folder: Path) -> None:
        (directory,) = (path.parent for path in (folder / "data").glob("*/split.json"))
        self.folder, self.data = folder, PreparedData.open(directory)
        self.labels = directory / "test" / "labels.npy"
        self.store = ArtifactStore(folder / "artifacts")
        stage, key, self.evaluation = (folder / "evaluation").read_text().split()
        self.ref = ArtifactRef(stage, key)
        self.held: list[Any] = []


def attempt(function: Attempt) -> Attempt:
    ATTEMPTS[function.__name__] = function
    return function


@attempt
def prepared_test(prize: Prize) -> Any:
    return prize.data.test().labels


@attempt
def opened_again(prize: Prize) -> Any:
    return PreparedData.open(prize.data.directory).test().labels


@attempt
def numpy_load(prize: Prize) -> Any:
    return np.load(prize.labels)


@attempt
def whole_source(prize: Prize) -> Any:
    return read_source("digits", prize.folder).train.labels


@attempt
def scikit_learn(prize: Prize) -> Any:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)[1]


@attempt
def stored_evaluation(prize: Prize) -> Any:
    found = prize.store.find(ArtifactRef("evaluate", prize.evaluation))
    return found.tensors("test")["labels"].numpy()


@attempt
def evaluation_anew(prize: Prize) -> Any:
    _, found = evaluate_on_test(prize.store, prize.ref, prize.data)
    return found.tensors("test")["labels"].numpy()


@attempt
def live_objects(prize: Prize) -> Any:
    prize.held.append(prize.data.test())
    found = [
        value
        for holder in gc.get_objects()
        for value in gc.get_referents(holder)
        if type(value) in (np.ndarray, np.memmap, torch.Tensor)
        if tuple(value.shape) == (prize.data.counts["test"],) and "int64" in str(value.dtype)
    ]
    return np.asarray(found[0])


def outcomes(prize: Prize) -> dict[str, str]:
    """Return of each attempt whether it ``reached`` test data or met the seal."""
    found = {}
    for name, function in ATTEMPTS.items():
        try:
            found[name] = "reached" if len(function(prize)) else "odd"
        except TestDataSealedError:
            found[name] = "sealed"
        prize.held.clear()
    gc.collect()
    return found


def main(mode: str, folder: Path) -> None:
    from small_stages import request

    from trainables.jobs import Job, StageWork
    from trainables.worker import Bench, Worker

    prize = Prize(folder)
    results = {}
    if mode == "sealed":
        worker = Worker(Bench(folder / "artifacts", sealed=True, report_seconds=1e9))
        results["before the first step"] = outcomes(prize)["prepared_test"]
        work = StageWork(request=request(prize.data, seed=5))
        worker.open(Job(key="k", group="g", number=0, work=work))
        results["status"] = str(worker.step().status)
    sys.stdout.write(json.dumps({**results, **outcomes(prize)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
