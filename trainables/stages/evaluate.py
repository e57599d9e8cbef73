"""The one look at test data, and at suites."""

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from trainables.common.devices import computed_on, concrete, default_device
from trainables.common.stages import ArtifactRef
from trainables.data import (
    DatasetInfo,
    MaskedBatcher,
    Pixels,
    PreparedData,
    RowArrays,
    require_unsealed,
)
from trainables.data.suites import SuiteData, find_suite, suite_code
from trainables.metrics import evaluation_report, metrics_digest, noise_floors_of_groups
from trainables.stages.networks import LastPass, network_precision, pixel_outputs, predictor
from trainables.stages.pixels import PixelOutputs, score_pixels, shown_maps
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key


def evaluate_on_test(
    store: ArtifactStore,
    ref: ArtifactRef,
    prepared: PreparedData,
    device: torch.device | None = None,
    last: LastPass | None = None,
) -> tuple[dict[str, float], Artifact]:
    """Read the test data once, for a chosen configuration.

    Args:
        store: Where artifacts lie.
        ref: The chosen artifact.
        prepared: The task's data; this process must not be sealed.
        device: Where networks run; ``default_device()`` if left out.
        last: Of this device, shared by what may build on the same training: its network then
            passes over the test rows once.

    Returns:
        The metrics, fractions, as ``trainables.metrics.evaluation_report`` names them, and the
        artifact with the log-probabilities and labels of every test row, of given logits also
        their numbers in the file. Of images with masks, the metrics are those of
        ``StreamedReport`` of every pixel, with ``CLASS/iou`` for each class, and the artifact has a
        sample of the pixels, which noise floors are of, and their ``images``; see ``shown_maps``
        for its file ``maps``.

    Raises:
        TestDataSealedError: If this process runs search trials.
        InputError: If an artifact is missing or damaged.
    """
    test = prepared.test()
    pixels = prepared.info.inputs.pixels(test)
    metrics = metrics_digest("report", "test", *([] if pixels is None else ["pixels"]))
    evaluation = ArtifactRef(
        "evaluate",
        stage_key("evaluate", upstream=ref.key, data=prepared.key, metrics=metrics),
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
            if not prepared.info.inputs.trains:  # Then seeds may have been tested on other rows.
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
    """Return the metrics of all pixels, and the arrays to store."""
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
    """Return a class's name as metrics have it: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "class"


def evaluate_suite(
    store: ArtifactStore,
    ref: ArtifactRef,
    prepared: PreparedData,
    directory: Path | str,
    device: torch.device | None = None,
) -> tuple[dict[str, float], Artifact]:
    """Measure a chosen configuration on a suite that ``prepare_suite`` stored in a directory.

    The outcome is an artifact of its own, so that another suite later computes nothing again. For
    the other arguments see ``evaluate_on_test``.

    Returns:
        Metrics, fractions, named ``SUITE/METRIC``, and the artifact, whose file ``suite`` holds the
        tensors that the suite's ``judge`` describes.

    Raises:
        TestDataSealedError: If this process runs search trials.
        InputError: If an artifact or the suite is missing or damaged.
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
    """Return the key of the artifact of a configuration on a suite, see ``evaluate_suite``."""
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
    """Return the means over suites of one pool, two or more, of what all of them measure.

    Args:
        metrics: ``SUITE/METRIC`` to value.
        pools: A suite's label to its pool's name; empty for none.

    Returns:
        ``POOL/METRIC`` to the mean, such as ``ood/auroc``.
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
