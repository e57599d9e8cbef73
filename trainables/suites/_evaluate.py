"""Measures a chosen configuration on a suite, once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainables.artifacts import Artifact, ArtifactStore, stage_key
from trainables.data import PreparedData
from trainables.data._guard import require_unsealed
from trainables.engine import default_device
from trainables.stages import evaluate_on_test, predictor
from trainables.suites._data import SuiteData

TENSORS = "suite"


def evaluate_suite(
    store: ArtifactStore,
    stage: str,
    key: str,
    prepared: PreparedData,
    directory: Path | str,
    device: torch.device | None = None,
) -> tuple[dict[str, float], Artifact]:
    """Measure a chosen configuration on a stored suite.

    The outcome is an artifact of its own, so that another suite later computes nothing again.

    Args:
        store: Where artifacts lie.
        stage: Stage of the chosen artifact.
        key: Its key.
        prepared: The task's data; this process must not be sealed.
        directory: Where ``prepare_suite`` stored the suite.
        device: Where networks run; ``default_device()`` if left out.

    Returns:
        Metrics, fractions, named ``SUITE/METRIC``, and the artifact, whose file ``suite`` holds the
        tensors that the suite's ``judge`` describes.

    Raises:
        TestDataSealedError: If this process runs search trials.
        InputError: If an artifact or the suite is missing or damaged.
    """
    data = SuiteData.open(directory)
    require_unsealed(f"suite {data.suite.name!r}")
    label = data.suite.label
    evaluation_key = stage_key(
        "evaluate", upstream=key, data=prepared.key, suite=label, images=data.fingerprint
    )
    found = store.find("evaluate", evaluation_key)
    if found is None:
        device = device or default_device()
        _, tested = evaluate_on_test(store, stage, key, prepared, device)
        outputs = predictor(store, stage, key, prepared.info, device)

        def log_probs(images: np.ndarray) -> Tensor:
            return outputs(images).log_softmax(1).float()

        metrics, tensors = data.suite.judge(data, log_probs, tested.tensors("test")["log_probs"])
        named = {f"{label}/{name}": value for name, value in metrics.items()}
        record = {"metrics": named, "upstream": key, "suite": label}
        found = store.write("evaluate", evaluation_key, {TENSORS: tensors}, record)
    return dict(found.record["metrics"]), found


def pooled(metrics: Mapping[str, float], pools: Mapping[str, str]) -> dict[str, float]:
    """Return the means over suites of one pool, where there are two or more.

    Args:
        metrics: ``SUITE/METRIC`` to value.
        pools: A suite's label to its pool's name; empty for none.

    Returns:
        ``POOL/METRIC`` to the mean, such as ``ood/auroc``.
    """
    means: dict[str, float] = {}
    for pool in sorted(set(filter(None, pools.values()))):
        labels = [label for label, name in pools.items() if name == pool]
        if len(labels) < 2:
            continue
        for name in sorted({n.partition("/")[2] for n in metrics if n.partition("/")[0] in labels}):
            means[f"{pool}/{name}"] = sum(metrics[f"{label}/{name}"] for label in labels) / len(
                labels
            )
    return means
