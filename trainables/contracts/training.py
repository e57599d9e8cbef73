"""Checks that train on or measure a few images of digits, or read a data set."""

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces import load_space
from trainables.common.errors import InputError
from trainables.contracts.losses import ends
from trainables.contracts.require import UntriedError, require
from trainables.data import SplitSpec, prepare, read_source
from trainables.data.suites import find_suite, prepare_suite
from trainables.stages import StageRequest, TaskData, open_stage
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore

PROTOCOL = {"epochs": 2, "batch_size": 64, "lr": 0.1}
SPLIT = SplitSpec(validation=100, test=100, train_limit=150)
STAGES = {"refinement": "refine", "calibrator": "calibrate", "fitting objective": "calibrate"}
KINDS = {
    "refinement": "refinements",
    "calibrator": "calibrators",
    "fitting objective": "objectives",
}


def computes_the_same_twice(noun: str, name: str) -> None:
    """Two trainings with this part on a few images give the same, finite metrics."""
    first, second = (_figures(noun, name) for _ in range(2))
    for key, value in first.items():
        require(math.isfinite(value), f"{key} is {value}")
    different = sorted(key for key in first if first[key] != second[key])
    require(not different, f"a second training differs in {', '.join(different)}")


def trains_by_its_parameters(noun: str, name: str) -> None:
    """Each searched parameter changes the metrics of a training on a few images."""
    searched = load_space(KINDS[noun], name).searched()
    before = _figures(noun, name) if searched else {}
    for key, parameter in searched.items():
        found = (_figures(noun, name, {key: value}) for value in ends(parameter))
        require(
            any(figures != before for figures in found),
            f"no value of {key} changes a figure; do not search it, or test it on other data",
        )


def reads_the_same_twice(name: str) -> None:
    """Reading the data set twice gives the same rows."""
    with TemporaryDirectory() as folder:
        first, second = (read_source(name, folder).fingerprint for _ in range(2))
    require(first == second, "the rows differ")


def measures_the_same_twice(name: str) -> None:
    """Measuring the suite twice on a few images gives the same, finite metrics."""
    first, second = (_measured(name) for _ in range(2))
    for key, value in first.items():
        require(math.isfinite(value), f"{key} is {value}")
    require(first == second, "the figures differ")


def _measured(name: str) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        prepared = prepare("digits", folder, SPLIT, Path(folder) / "data")
        suite = find_suite(name, folder)
        try:
            suite.check(prepared.info)
        except InputError as error:
            raise UntriedError from error
        weights = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

        def outputs(rows: np.ndarray) -> Tensor:
            return (torch.tensor(rows).reshape(len(rows), -1) / 255 @ weights).log_softmax(1)

        clean = outputs(np.array(prepared.test().values))
        return suite.judge(prepare_suite(name, folder, prepared), outputs, clean)[0]


def _figures(noun: str, name: str, changes: Mapping[str, Any] = {}) -> dict[str, float]:
    model = name if noun == "model" else "convnet"
    stage = STAGES.get(noun, "train")
    with TemporaryDirectory() as folder:
        prepared = prepare("digits", folder, SPLIT, Path(folder) / "data")
        data, store = TaskData(prepared, torch.device("cpu")), ArtifactStore(Path(folder) / "store")

        def compute(
            stage: str, parts: Mapping[str, Mapping[str, Any]], upstream: Artifact | None = None
        ) -> Artifact:
            request = StageRequest(
                stage=stage,
                parts=parts,
                data=str(prepared.directory),
                model=model,
                protocol=protocol_from(PROTOCOL).to_dict(),
                seed=0,
                upstream=upstream.key if upstream else None,
                upstream_stage=upstream.stage if upstream else None,
            )
            run = open_stage(request, store, data)
            metrics: dict[str, float] = {}
            while run.epoch < run.epochs:
                metrics = run.run_epoch()
            return run.finish(metrics)

        if stage == "train":
            part = "ce" if noun == "model" else name
            values = {**load_space("methods", part).default_point(given=changes), **changes}
            found = compute("train", {part: values})
        else:
            part = f"ts-{name}" if noun == "fitting objective" else name
            values = {**load_space(KINDS[noun], name).default_point(given=changes), **changes}
            found = compute(stage, {part: values}, compute("train", {"ce": {}}))
        # Durations always differ.
        return {key: v for key, v in found.record["metrics"].items() if "seconds" not in key}
