"""Restores networks of stored outcomes, and computes their features, predictions and metrics."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from trainables.calibrators import Calibrator, calibrator_from_recipe
from trainables.common.devices import computed_on, concrete, default_device
from trainables.common.stages import GIVEN, ArtifactRef
from trainables.data import (
    Batcher,
    DatasetInfo,
    MaskedBatcher,
    MaskedImages,
    Pixels,
    PreparedData,
    RowArrays,
    require_unsealed,
)
from trainables.data.suites import SuiteData, find_suite, suite_code
from trainables.methods import build_method
from trainables.metrics import evaluation_report, metrics_digest, noise_floors_of_groups
from trainables.models import Network, without_weights
from trainables.refinements import build_refinement
from trainables.stages.base import Parts, find_artifact
from trainables.stages.engine import EVALUATION_BATCH, every_row, in_batches, place, seeded_network
from trainables.stages.pixels import (
    PixelOutputs,
    calibrated,
    outputs_of,
    predict_pixels,
    score_pixels,
    shown_maps,
)
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key


def extract_features(
    network: Network, batcher: Batcher, kind: str = "none", seed: int = 0
) -> Tensor:
    """Return features (N, D) of one view of all rows, augmented by ``kind`` from a ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return in_batches(
        network,
        lambda batch: network.features(batcher.view(batch, kind, generator)),
        every_row(batcher),
    )


# Returns a network's features (N, D), given its training's key and a function that computes them.
Keep: TypeAlias = Callable[[str, Callable[[], Tensor]], Tensor]


class LastPass:
    """Caches the features that were computed last, for all chains that use them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Tensor] = {}

    def keep(self, rows: str, trained: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return the features of the rows and network with these keys; cache the latest ones."""
        if (rows, trained) not in self._found:
            self._found.clear()  # Clear first, so that only one set of features is in memory.
            self._found[rows, trained] = compute()
        return self._found[rows, trained]


def restore_network(trained: Artifact, info: DatasetInfo, device: torch.device) -> Network:
    """Return the network of a ``train`` artifact as it was trained."""
    request = trained.record["request"]
    method = build_method(request["parts"])
    # Pretrained weights are not needed: the trained ones replace them.
    model = without_weights(request["model"])
    network = seeded_network(model, info, request["seed"])
    network = method.scheme.attach(network, info.num_classes)
    network.load_state_dict(trained.tensors("weights"))
    return place(network, device, request["precision"])


def predictor(
    store: ArtifactStore,
    ref: ArtifactRef,
    info: DatasetInfo,
    device: torch.device,
    keep: Keep | None = None,
) -> Callable[[np.ndarray], Tensor]:
    """Return a function that maps stored rows (N, ...) to log-probabilities (N, K).

    For images with masks (the masks may be missing), it returns log-probabilities of all pixels,
    (N, K, H, W). Results are float32 on the CPU. ``ref`` is the last artifact of the chain of
    stages. ``keep`` may cache the features of the rows; it is not used for images with masks.
    """
    inputs, device = info.inputs, concrete(device)
    if isinstance(inputs, MaskedImages):
        of_pixels = pixel_outputs(store, ref, info, device)
        return lambda values: predict_pixels(
            of_pixels, inputs.batcher(values, device), info.num_classes
        )
    outputs = _outputs(store, ref, info, device, keep)
    return lambda values: outputs(values).log_softmax(1).float().cpu()


def pixel_outputs(
    store: ArtifactStore, ref: ArtifactRef, info: DatasetInfo, device: torch.device
) -> PixelOutputs:
    """Return a function from images (N, 3, H, W) to outputs (N, K, H, W), on the device.

    Outputs are logits, or log-probabilities after a calibrator.
    """
    artifact = find_artifact(store, ref)
    before = artifact.upstream
    if before is None:
        return outputs_of(restore_network(artifact, info, device))
    calibrator = calibrator_of(artifact.record["request"]["parts"])
    calibrator.load_state_dict(artifact.tensors("calibrator"))
    return calibrated(pixel_outputs(store, before, info, device), calibrator)


def calibrator_of(parts: Parts) -> Calibrator:
    """Return the unfitted calibrator of a request."""
    ((part, parameters),) = parts.items()
    return calibrator_from_recipe(part, parameters)


def network_precision(store: ArtifactStore, ref: ArtifactRef) -> str:
    """Return the precision of a chain's network."""
    artifact = find_artifact(store, ref)
    if artifact.upstream is not None:
        return network_precision(store, artifact.upstream)
    return str(artifact.record["request"]["precision"])


def _outputs(
    store: ArtifactStore,
    ref: ArtifactRef,
    info: DatasetInfo,
    device: torch.device,
    keep: Keep | None,
) -> Callable[[np.ndarray], Tensor]:
    """Return a function that maps stored rows (N, ...) to logits or log-probabilities (N, K)."""
    artifact = find_artifact(store, ref)
    request = artifact.record["request"]
    before = artifact.upstream
    if ref.stage == "calibrate" and before is not None:
        inner = _outputs(store, before, info, device, keep)
        calibrator = calibrator_of(request["parts"])
        calibrator.load_state_dict(artifact.tensors("calibrator"))
        return torch.inference_mode()(lambda values: calibrator(inner(values).cpu()))
    if ref.stage == GIVEN:
        return lambda values: torch.from_numpy(np.array(values, dtype=info.inputs.dtype))
    trained = artifact if before is None else find_artifact(store, before)
    network = restore_network(trained, info, device)

    def features(values: np.ndarray) -> Tensor:
        def compute() -> Tensor:
            return extract_features(network, info.inputs.batcher(values, device))

        return compute() if keep is None else keep(trained.key, compute)

    if ref.stage == "train" or not artifact.record.get("accepted", True):
        return lambda values: in_batches(
            network,
            lambda batch: network.classify(batch.to(device)),
            features(values).split(EVALUATION_BATCH),
        )
    ((name, parameters),) = request["parts"].items()
    head = build_refinement(name, **parameters).build_head(network.feature_dim, info.num_classes)
    head.load_state_dict(artifact.tensors("head"))
    head.eval().to(device)
    return torch.inference_mode()(lambda values: head(features(values).to(device)))


def evaluate_on_test(
    store: ArtifactStore,
    ref: ArtifactRef,
    prepared: PreparedData,
    device: torch.device | None = None,
    last: LastPass | None = None,
) -> tuple[dict[str, float], Artifact]:
    """Measure a chosen configuration on test data.

    Args:
        store: The artifact store.
        ref: The chosen artifact.
        prepared: The task's data.
        device: The device of networks; by default ``default_device()``.
        last: A cache of features. Chains with the same training that share the cache compute the
            features of the test rows once.

    Returns:
        The metrics of ``trainables.metrics.evaluation_report``, and the artifact with the
        log-probabilities and labels of every test row (for given logits also their row numbers in
        the file). For images with masks, the metrics are those of ``StreamedReport`` over all
        pixels, noise floors, and ``CLASS/iou`` of each class that occurs. The artifact then has the
        sample of pixels from which the noise floors are computed, the number of each pixel's image
        (``images``), and ``maps``, see ``shown_maps``.

    Raises:
        TestDataSealedError: If this process runs search trials.
    """
    test = prepared.test()
    pixels = prepared.info.inputs.pixels(test)
    metrics = metrics_digest("report", "test", *([] if pixels is None else ["pixels"]))
    evaluation = ArtifactRef(
        "evaluate", stage_key("evaluate", upstream=ref.key, data=prepared.key, metrics=metrics)
    )
    found = store.find(evaluation)
    if found is None:
        device = concrete(device or default_device())
        if pixels is None:
            keep = partial((last or LastPass()).keep, prepared.key)
            log_probs = predictor(store, ref, prepared.info, device, keep)(test.values)
            labels = torch.from_numpy(test.labels.copy())
            measured = evaluation_report(log_probs.to(device), labels)
            tensors = {"test": {"log_probs": log_probs, "labels": labels}}
            if not prepared.info.inputs.trains:  # The seed may select the test rows.
                tensors["test"]["rows"] = torch.from_numpy(prepared.test_numbers().copy())
        else:
            outputs = pixel_outputs(store, ref, prepared.info, device)
            measured, tensors = _judge_pixels(outputs, test, pixels, prepared.info, device)
        computed = computed_on(device, network_precision(store, ref))
        record = {"metrics": measured, "upstream": ref.key, "computed": computed}
        found = store.write(evaluation, tensors, record)
    return dict(found.record["metrics"]), found


def _judge_pixels(
    outputs: PixelOutputs, test: RowArrays, pixels: Pixels, info: DatasetInfo, device: torch.device
) -> tuple[dict[str, float], dict[str, dict[str, Tensor]]]:
    """Return the metrics of all pixels and the arrays to store."""
    batcher = info.inputs.batcher(test.values, device)
    assert isinstance(batcher, MaskedBatcher)
    logits, report = score_pixels(outputs, batcher, pixels, info.num_classes)
    by_class = dict(zip(map(slug, info.classes), report.class_iou().tolist(), strict=True))
    known = {f"{name}/iou": value for name, value in by_class.items() if math.isfinite(value)}
    rows = {"log_probs": logits.log_softmax(1), "labels": pixels.labels, "images": pixels.rows}
    floors = noise_floors_of_groups(logits, pixels.labels, pixels.rows)
    chance = {f"{name}_floor": floor.mean for name, floor in floors.items()}
    maps = shown_maps(outputs, batcher, info.num_classes)
    return {**report.report(), **chance, **known}, {"test": rows, "maps": maps}


def slug(name: str) -> str:
    """Return a class's name for metrics: lower-case letters, digits and dashes, or ``class``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "class"


def evaluate_suite(
    store: ArtifactStore,
    ref: ArtifactRef,
    prepared: PreparedData,
    directory: Path | str,
    device: torch.device | None = None,
) -> tuple[dict[str, float], Artifact]:
    """Measure a chosen configuration on a suite from a folder of ``prepare_suite``.

    The outcome has its own artifact, so that adding a suite later computes nothing again. For the
    other arguments see ``evaluate_on_test``.

    Returns:
        Metrics named ``SUITE/METRIC``, and the artifact, whose file ``suite`` has the tensors
        returned by the suite's ``judge``.

    Raises:
        TestDataSealedError: If this process runs search trials.
    """
    data = SuiteData.open(directory)
    require_unsealed(f"suite {data.name!r}")
    suite = find_suite(data.name, data.root)
    label = suite.label
    evaluation = ArtifactRef("evaluate", suite_key(ref.key, prepared, data))
    found = store.find(evaluation)
    if found is None:
        device = concrete(device or default_device())
        _, tested = evaluate_on_test(store, ref, prepared, device)
        outputs = predictor(store, ref, prepared.info, device)
        metrics, tensors = suite.judge(data, outputs, tested.tensors("test")["log_probs"])
        named = {f"{label}/{name}": value for name, value in metrics.items()}
        computed = computed_on(device, network_precision(store, ref))
        record = {"metrics": named, "upstream": ref.key, "suite": label, "computed": computed}
        found = store.write(evaluation, {"suite": tensors}, record)
    return dict(found.record["metrics"]), found


def suite_key(key: str, prepared: PreparedData, data: SuiteData) -> str:
    """Return the key of the outcome of ``evaluate_suite``."""
    code = suite_code(data.name)
    return stage_key(
        "evaluate",
        upstream=key,
        data=prepared.key,
        suite=find_suite(data.name, data.root).label,
        images=data.fingerprint,
        metrics=metrics_digest("report", "suite"),
        **({} if code is None else {"code": code}),
    )


def pooled(metrics: Mapping[str, float], pools: Mapping[str, str]) -> dict[str, float]:
    """Return, for each pool with two or more suites, the means of metrics over these suites.

    Args:
        metrics: Values by ``SUITE/METRIC``.
        pools: Names of pools by the suite's label; empty if a suite has none.

    Returns:
        Means by ``POOL/METRIC``, such as ``ood/auroc``, of the metrics that all suites of a pool
        have.
    """
    means: dict[str, float] = {}
    for pool in sorted(set(filter(None, pools.values()))):
        labels = [label for label, name in pools.items() if name == pool]
        names = sorted({n.partition("/")[2] for n in metrics if n.partition("/")[0] in labels})
        for name in names if len(labels) > 1 else ():
            values = [metrics[place] for label in labels if (place := f"{label}/{name}") in metrics]
            if len(values) == len(labels):
                means[f"{pool}/{name}"] = sum(values) / len(values)
    return means
