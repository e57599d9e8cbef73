"""A script: drives the engine on a GPU, or one that is none, and prints, as JSON, what came of it.

Usage: gpu_scenarios.py FOLDER. It takes the GPU that there is, else the stand-in of
``standin_card.py``, or, under the ``run.sh`` of the pretended GPU, that one. The latter's kernels
compute nothing: what is read back are leftovers of what was copied there, so that only devices,
types, shapes and ends can be told, and what it would have to count it is told. No scenario replaces
a function of ours.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from pretended_card import pretended_card
from small_stages import EVERY_LAYER, MACAL, Workshop, request, write_masks
from standin_card import standin_card

from trainables.calibrators import calibrator_from_recipe
from trainables.common.devices import trial_device
from trainables.common.stages import ArtifactRef
from trainables.data import (
    IMAGE_AUGMENTATIONS,
    DatasetInfo,
    ImageShape,
    MaskedImages,
    MaskedShape,
    PreparedData,
    RowArrays,
    SplitSpec,
    Texts,
    TextShape,
    prepare,
)
from trainables.losses import LOSSES
from trainables.methods import build_method, method_names
from trainables.models import model_names
from trainables.refinements import REFINEMENTS, FittedRefinement
from trainables.stages import StageRequest, TaskData, evaluate_on_test, open_stage, refine
from trainables.stages.engine import Trainer, predict
from trainables.stages.export import export_chain, load_chain
from trainables.stages.pixels import calibrated, outputs_of, score_pixels
from trainables.stages.probe import training_step
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore

PRETENDED = "NULLGPU" in os.environ
STANDIN = not PRETENDED and not torch.cuda.is_available()
if PRETENDED:
    import nullgpu  # Makes torch see a GPU; comes with the pretended one, which has no cuDNN.

    torch.backends.cudnn.enabled = False
    sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import gpu_launches

    gpu_launches.answer()
# The stand-in knows nothing of autocast, which is to cast what meets weights that are cast.
PRECISION = "float32" if STANDIN else "bfloat16"
GIBIBYTE = 2**30
FOLDER = Path(sys.argv[1])
SHARE = 0.5
OF_MASKS = {"epochs": 1, "batch_size": 4, "augmentation": "scale-crop-flip"}


SCENARIOS: dict[str, Callable[[], Any]] = {}
Parts = dict[str, dict[str, Any]]


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENARIOS[function.__name__] = function
    return function


def counted() -> Any:
    return nullgpu.counted() if PRETENDED else nullcontext({})


@contextmanager
def almost_full() -> Iterator[None]:
    """Have the card answer that other processes have taken all of it but a thousand bytes."""
    if not PRETENDED:
        with pretended_card(free=1000, total=80 * GIBIBYTE) if STANDIN else full_card():
            yield
        return
    card = ctypes.CDLL(os.path.join(os.environ["NULLGPU"], "libnullgpu.so"))
    total, taken = (ctypes.c_longlong.in_dll(card, f"ng_{n}") for n in ("total", "device_bytes"))
    whole = total.value
    total.value = taken.value + 600_000_000 + 1000
    try:
        yield
    finally:
        total.value = whole


@contextmanager
def full_card() -> Iterator[None]:
    with patch.object(torch.cuda, "mem_get_info", lambda device: (1000, 80 * GIBIBYTE)):
        yield


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
        return StageRequest(**{**fields, "precision": PRECISION})


CARD = ExitStack()  # For as long as the process lives.
if STANDIN:
    CARD.enter_context(standin_card(free=80 * GIBIBYTE, total=80 * GIBIBYTE))
LAB = Laboratory()


def train(
    parts: Parts,
    model: str = "convnet",
    device: torch.device | None = None,
    data: tuple[RowArrays, DatasetInfo] | None = None,
    precision: str = PRECISION,
    graph: bool = False,
    **protocol: Any,
) -> Trainer:
    """Train one epoch, on images unless told otherwise."""
    settings = {"epochs": 2, "batch_size": 20, "lr": 0.1, "augmentation": "crop-flip"}
    rows, info = data or (LAB.data.search.train, LAB.prepared.info)
    made = Trainer(
        model,
        build_method(parts),
        rows,
        info,
        protocol_from({**settings, **protocol}),
        0,
        device or LAB.data.device,
        precision,
        graph,
    )
    made.train_epoch()
    return made


@scenario
def a_share() -> Any:
    return [str(LAB.data.device), torch.cuda.get_per_process_memory_fraction(0)]


@scenario
def a_chain() -> Any:
    with counted() as counts:
        trained = LAB.compute(LAB.asked("train", {"ce": {}}))
        refined = LAB.compute(LAB.asked("refine", MACAL, trained))
        calibrated = LAB.compute(LAB.asked("calibrate", {"ts": {}}, refined))
    found = {}
    for artifact in (trained, refined, calibrated):
        metrics, tested = evaluate_on_test(LAB.store, artifact.ref, LAB.prepared, LAB.data.device)
        export_chain(LAB.store, artifact.ref, LAB.prepared.info, FOLDER / artifact.stage)
        outputs = load_chain(FOLDER / artifact.stage, torch.device("cuda"))
        shape = outputs(LAB.prepared.test().values).shape
        found[artifact.stage] = {
            "metrics": sorted(metrics),
            "outputs": list(shape),
            "computed": [artifact.record["computed"], tested.record["computed"]],
        }
    return {"stages": found, **counts}


@scenario
def every_method_deterministically() -> Any:
    """All methods and augmentations; torch refuses kernels that may sum in any order."""
    device = trial_device(SHARE, deterministic=True)
    trained = {name: train({name: {}}).epoch for name in method_names()}
    trained |= {name: train({"ce": {}}, augmentation=name).epoch for name in IMAGE_AUGMENTATIONS}
    for name, data in (("gpool-cnn", texts(20)), ("deeplabv3-small", masks(4))):
        if not (STANDIN and "deeplab" in name):
            train({"ce": {}}, name, data=data, augmentation=data[1].inputs.augmentation)
    try:
        torch.zeros(3, device=device).histc()
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    trial_device(SHARE)
    return [trained, refused, torch.are_deterministic_algorithms_enabled()]


@scenario
def every_model() -> Any:
    images = LAB.data.search.train
    few = RowArrays(images.values[:2], images.labels[:2])  # One step each.
    given = {ImageShape: (few, LAB.prepared.info), TextShape: texts(2), MaskedShape: masks(2)}
    quick = {"batch_size": 2, "augmentation": "none"}
    return {
        name: train({"ce": {}}, name, data=data, **quick).epoch
        for kind, data in given.items()
        for name in model_names(kind)
        if "@" not in name and (name in EVERY_LAYER or not (STANDIN or PRETENDED))
    }


def texts(rows: int) -> tuple[RowArrays, DatasetInfo]:
    values = np.arange(8 * rows, dtype=np.int32).reshape(rows, 8) % 6
    inputs = Texts(vocabulary=5, length=8, words=tuple("abcde"))
    return RowArrays(values, np.arange(rows) % 3), replace(LAB.prepared.info, inputs=inputs)


def masks(rows: int) -> tuple[RowArrays, DatasetInfo]:
    """Return images with masks of three classes."""
    values = np.random.default_rng(0).integers(0, 3, (rows, 24, 32, 4), dtype=np.uint8)
    inputs = MaskedImages((24, 32), (0.5,) * 3, (0.25,) * 3)
    labels = np.zeros(rows, np.int64)
    return RowArrays(values, labels), replace(LAB.prepared.info, inputs=inputs)


@scenario
def pixels() -> Any:
    """Every loss, and mixup, of images with masks, and what is said of all pixels, calibrated."""
    if STANDIN:
        return None  # It refuses some indices that a GPU takes.
    rows, info = data = masks(8)
    made = {
        name: train(
            {name: {}}, "deeplabv3-small", data=data, batch_size=4, augmentation="scale-crop-flip"
        )
        for name in (*LOSSES.names(), "mixup")
    }
    trained = {name: each.epoch for name, each in made.items()}
    fitted = calibrator_from_recipe("vs", {}).fit(torch.eye(3), torch.arange(3))
    calibrator = calibrator_from_recipe("vs", {})
    calibrator.load_state_dict(fitted.state_dict())
    outputs = calibrated(outputs_of(made["ce"].network), calibrator)
    drawn = info.inputs.pixels(rows)
    batcher = info.inputs.batcher(rows.values, LAB.data.device)
    logits, report = score_pixels(outputs, batcher, drawn, 3)
    sound = PRETENDED or report.report()["acc"] >= 0
    return [trained, [list(logits.shape), len(drawn.labels), sound]]


@scenario
def a_chain_of_masks() -> Any:
    """Training, a calibrator and the look at test data of pixels, on the card and on the CPU."""
    if PRETENDED:
        return None
    name = write_masks(FOLDER / "masks", train=8, val=3, test=3)
    prepared = prepare(name, FOLDER, SplitSpec(validation="own"), FOLDER / "data of masks")
    found = []
    for device in (LAB.data.device, torch.device("cpu")):
        store, data = ArtifactStore(FOLDER / f"of {device.type}"), TaskData(prepared, device)
        made, figures = None, []
        for stage, parts in (("train", {"mbls": {}}), ("calibrate", {"ts": {}})):
            asked = request(prepared, stage, parts, made, protocol=OF_MASKS).plain()
            run = open_stage(StageRequest(**{**asked, "model": "deeplabv3-small"}), store, data)
            while run.epoch < run.epochs:
                metrics = run.run_epoch()
            made = run.finish(metrics)
            tested, _ = evaluate_on_test(store, ArtifactRef(stage, made.key), prepared, device)
            figures.append({**metrics, **tested})
        found.append(figures)
    return found


@scenario
def every_refinement() -> Any:
    trained = LAB.compute(LAB.asked("train", {"ls": {}}))
    found = {}
    for name in (
        name
        for name in REFINEMENTS.names()
        if not issubclass(REFINEMENTS.get(name), FittedRefinement)
    ):
        parts = [{name: {"epochs": 2, "lr": lr}} for lr in (0.1, 0.2)]
        asked = replace(LAB.asked("refine", parts[0], trained), together=parts)
        run = open_stage(asked, LAB.store, LAB.data)
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
    if STANDIN:
        return None  # It is seen by one thread only: that which reads knows no card.
    with almost_full():
        made = train({"ce": {}})
        data = TaskData(LAB.prepared, LAB.data.device)
        logits = predict(made.network, data.validation_batcher)
        return [made._batcher.resident, data.validation_batcher.resident, list(logits.shape)]


@scenario
def views_that_do_not_fit() -> Any:
    """Of eight views of features each epoch's is brought to the card."""
    trained = LAB.compute(LAB.asked("train", {"fl": {}}))
    found = []
    for context in (nullcontext(), almost_full()):
        with context:
            run = LAB.open(LAB.asked("refine", MACAL, trained))
            figures = [run.run_epoch()["train_loss"] for _ in range(2)]
        found.append([str(run.features["views"].device), str(run.trainer.view().device), figures])
    return found


@scenario
def figures_of_an_epoch() -> Any:
    """Training, evaluation and metrics of one epoch, on the card and on the CPU."""
    if PRETENDED:
        return None
    asked = LAB.asked("train", {"acls": {}})
    data = [LAB.data, TaskData(LAB.prepared, torch.device("cpu"))]
    return [open_stage(asked, LAB.store, where).run_epoch() for where in data]


@scenario
def recorded_steps() -> Any:
    """Losses of steps as written and of steps recorded as a CUDA graph, and what is said of it."""
    if STANDIN:
        return None
    parts: Parts = {"mixup": {}, "mcdrop": {}}
    made = [train(parts, graph=graph) for graph in (False, True)]
    return [[each.train_epoch()["train_loss"] for each in made], made[1].remarks()]


@scenario
def waits_of_predictions() -> Any:
    if not PRETENDED:
        return None
    network, batcher = train({"ce": {}}).network, LAB.data.validation_batcher
    with counted() as counts:
        logits = predict(network, batcher)
    waits = {name: counts[name] for name in ("syncs", "d2h", "h2d_pageable")}
    return [str(logits.device), counts["launches"] > 0, waits]


@scenario
def launches() -> Any:
    """Launches and waits of a step, as the benchmark counts them."""
    if not PRETENDED:
        return None
    count, step, scored = (gpu_launches.loss_step, gpu_launches.step, gpu_launches.pixels_evaluated)
    counts = {name: count(name, 1000) for name in LOSSES.names()}
    return {
        "losses": {name: found["launches"] for name, found in counts.items()},
        "waits of losses": sum(c["syncs"] + c["h2d_pageable"] for c in counts.values()),
        "resnet50": step("resnet50", {"ce": {}}),
        "mixup": step("convnet", {"mixup": {}}),
        "pixels": gpu_launches.each(scored(gpu_launches.SHORT), scored(gpu_launches.LONG)),
    }


@scenario
def a_step_as_doctor_asks_for() -> Any:
    if PRETENDED:
        return None  # Its figures need not be finite.
    return [training_step(torch.device(kind), "float32") for kind in ("cuda", "cpu")]


@scenario
def where_batches_are_counted() -> Any:
    """On the host, or, where that would be compiled for the host, on the card."""
    found = []
    for compiled in (False, True):
        protocol = protocol_from({"epochs": 1, "batch_size": 20, "lr": 0.1, "compile": compiled})
        arguments = build_method({"ce": {}}), LAB.data.search.train, LAB.prepared.info, protocol
        made = Trainer("convnet", *arguments, 0, LAB.data.device)
        buffers = made.network.named_buffers()
        places = {str(b.device) for name, b in buffers if name.endswith("num_batches_tracked")}
        found.append(sorted(places))
    return found


@scenario
def a_trial_of_tune() -> Any:
    """The last one: a trial seals its process."""
    if find_spec("ray") is None:
        return None  # Its own test fails then, and no other.
    from trainables.jobs import Job, StageWork
    from trainables.ray_edge import JobTrainable

    class Edge(JobTrainable):
        """The trainable, which Tune would hand the settings."""

        def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
            settings = {"sealed": True, "report_seconds": 0.0, "checkpoint_seconds": 0.0}
            super().setup(config, storage=LAB.store.root, **settings)

    wanted = StageRequest(**{**LAB.asked("train", {"mbls": {}}).plain(), "seed": 1})
    work = StageWork(request=wanted)
    trial = Edge({"job": Job(key="k", group="g", number=0, work=work, gpus=SHARE)})
    found = [trial.train()]
    while not found[-1]["done"]:
        found.append(trial.train())
    trial.stop()
    last = found[-1]["report"]
    reason = last.fault.reason if last.fault else ""
    return [last.status, reason, last.epoch, last.cost.peak_memory > 0]


if __name__ == "__main__":
    # No accuracy of the pretended GPU was ever computed.
    with patch.object(refine, "_check_accuracy") if PRETENDED else nullcontext():
        found = {name: function() for name, function in SCENARIOS.items()}
    sys.stdout.write(json.dumps(found))
