"""A script: drives the engine on a pretended GPU and prints, as JSON, what came of each scenario.

Usage: gpu_scenarios.py FOLDER, under the pretended GPU's ``run.sh``. Its kernels compute nothing:
what is read back are leftovers of what was copied there, so that only devices, types, shapes and
ends can be told. No scenario replaces a function of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nullgpu  # Makes torch see a GPU; comes with the pretended one.
import numpy as np
import torch
from small_stages import MACAL, Workshop, request

from trainables.common.devices import trial_device
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.methods import build_method, method_names
from trainables.ray_edge import StageTrainable
from trainables.refinements import REFINEMENTS
from trainables.stages import StageRequest, TaskData, evaluate_on_test
from trainables.stages.engine import Trainer, predict
from trainables.stages.export import export_chain, load_chain
from trainables.stages.protocols import protocol_from
from trainables.stages.together import open_together
from trainables.store.artifacts import Artifact

# The pretended GPU has no cuDNN.
torch.backends.cudnn.enabled = False
FOLDER = Path(sys.argv[1])
SHARE = 0.5
SCENARIOS: dict[str, Callable[[], Any]] = {}
Parts = dict[str, dict[str, Any]]


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


def dark_images() -> PreparedData:
    """Return images whose bytes, whatever type they are read back as, are finite numbers."""
    generator = np.random.default_rng(0)
    arrays = {
        f"{kind}_{part}": values
        for part, rows in (("train", 90), ("test", 30))
        for kind, values in (
            ("x", generator.integers(0, 16, (rows, 8, 8, 3), dtype=np.uint8)),
            ("y", np.arange(rows) % 3),
        )
    }
    np.savez(FOLDER / "dark.npz", **arrays)
    split = SplitSpec(validation=30)
    return prepare(f"npz:{FOLDER / 'dark.npz'}", FOLDER, split, FOLDER / "data")


class Laboratory(Workshop):
    """A workshop on the GPU."""

    def __init__(self) -> None:
        super().__init__(FOLDER)
        self.prepared = dark_images()
        self.data = TaskData(self.prepared, trial_device(SHARE))

    def asked(self, stage: str, parts: Parts, upstream: Artifact | None = None) -> StageRequest:
        crops = {"augmentation": "crop-flip", "epochs": 2}
        fields = request(self.prepared, stage, parts, upstream, protocol=crops).plain()
        return StageRequest(**{**fields, "precision": "bfloat16"})


LAB = Laboratory()


def train(parts: Parts, model: str = "convnet", device: torch.device | None = None) -> Trainer:
    """Train one epoch."""
    made = Trainer(
        model,
        build_method(parts),
        LAB.data.search.train,
        LAB.prepared.info,
        protocol_from({"epochs": 2, "batch_size": 20, "lr": 0.1, "augmentation": "crop-flip"}),
        0,
        device or LAB.data.device,
        "bfloat16",
    )
    made.train_epoch()
    return made


@scenario
def a_share() -> Any:
    return [str(LAB.data.device), torch.cuda.get_per_process_memory_fraction(0)]


@scenario
def a_chain() -> Any:
    with nullgpu.counted() as counts:
        trained = LAB.compute(LAB.asked("train", {"ce": {}}))
        refined = LAB.compute(LAB.asked("refine", MACAL, trained))
        calibrated = LAB.compute(LAB.asked("calibrate", {"ts": {}}, refined))
    found = {}
    for artifact in (trained, refined, calibrated):
        where = artifact.stage, artifact.key
        metrics, _ = evaluate_on_test(LAB.store, *where, LAB.prepared, LAB.data.device)
        export_chain(LAB.store, *where, LAB.prepared.info, FOLDER / artifact.stage)
        outputs = load_chain(FOLDER / artifact.stage, torch.device("cuda"))
        shape = outputs(LAB.prepared.test().values).shape
        found[artifact.stage] = {"metrics": sorted(metrics), "outputs": list(shape)}
    return {"stages": found, "launches": counts["launches"], "convolutions": counts["convs"]}


@scenario
def every_method() -> Any:
    return {name: train({name: {}}).epoch for name in method_names()}


@scenario
def several_models() -> Any:
    models = ("resnet110-sd", "densenet40", "preresnet56", "wrn-16-4")
    return {name: train({"ce": {}}, name).epoch for name in models}


@scenario
def every_refinement() -> Any:
    trained = LAB.compute(LAB.asked("train", {"ls": {}}))
    found = {}
    for name in REFINEMENTS.names():
        first, second = (
            LAB.asked("refine", {name: {"epochs": 2, "lr": lr}}, trained) for lr in (0.1, 0.2)
        )
        run = open_together(first, [second], LAB.store, LAB.data)
        while run.epoch < run.epochs:
            metrics = run.run_epoch()
        run.finish(metrics)
        found[name] = [type(run).__name__, run.epoch]
    return found


@scenario
def a_device_without_an_index() -> Any:
    made = train({"ce": {}}, device=torch.device("cuda"))
    return [made._batcher.resident, str(next(made.network.parameters()).device)]


@scenario
def images_that_do_not_fit() -> Any:
    """The card answers that other processes have taken all of it but a thousand bytes."""
    card = ctypes.CDLL(os.path.join(os.environ["NULLGPU"], "libnullgpu.so"))
    total, taken = (ctypes.c_longlong.in_dll(card, f"ng_{n}") for n in ("total", "device_bytes"))
    whole = total.value
    total.value = taken.value + 600_000_000 + 1000
    try:
        made = train({"ce": {}})
        data = TaskData(LAB.prepared, LAB.data.device)
        logits = predict(made.network, data.validation_batcher)
        return [made._batcher.resident, data.validation_batcher.resident, list(logits.shape)]
    finally:
        total.value = whole


class Edge(StageTrainable):
    """The trainable, which Tune would hand the storage."""

    def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
        super().setup(config, str(LAB.store.root), 0.0, 1)


@scenario
def a_trial_of_tune() -> Any:
    """The last one: a trial seals its process."""
    wanted = StageRequest(**{**LAB.asked("train", {"mbls": {}}).plain(), "seed": 1})
    trial = Edge({"request": wanted.plain(), "cpus": 1, "gpus": SHARE, "score": "val_nll"})
    found = [trial.train()]
    while not found[-1]["done"]:
        found.append(trial.train())
    trial.stop()
    last = found[-1]
    return [last["status"], last["reason"], last["epoch"], last["peak_memory"] > 0]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: function() for name, function in SCENARIOS.items()}))
