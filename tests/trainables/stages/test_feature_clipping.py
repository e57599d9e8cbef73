"""Feature clipping: its threshold, its logits and its metrics against a computation by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from small_stages import Workshop, request
from torch import Tensor, nn

from trainables.common.errors import InputError
from trainables.data import SplitSpec, prepare
from trainables.refinements import build_refinement
from trainables.refinements.feature_clipping import FeatureClipping
from trainables.stages import StageRequest, TaskData, open_stage, predictor
from trainables.stages.networks import extract_features, restore_network
from trainables.stages.protocols import protocol_from
from trainables.store.artifacts import Artifact, ArtifactStore


def problem(scale: float, rows: int = 400) -> tuple[nn.Linear, Tensor, Tensor]:
    """Rare large features that a classifier trusts too much, at any scale of the features."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(3, (rows,), generator=generator)
    features = torch.randn(rows, 3, generator=generator) * 0.5 + nn.functional.one_hot(labels)
    wrong = torch.arange(rows) % 10 == 0
    features[wrong, (labels[wrong] + 1) % 3] = 8.0
    classifier = nn.Linear(3, 3)
    with torch.no_grad():
        classifier.weight.copy_(2 * torch.eye(3) / scale)
        classifier.bias.copy_(torch.tensor([0.1, 0.0, -0.1]))
    return classifier, features * scale, labels


def nll(classifier: nn.Linear, features: Tensor, labels: Tensor, threshold: float) -> float:
    weight, bias = (each.detach().numpy() for each in (classifier.weight, classifier.bias))
    clipped = np.minimum(np.maximum(features.numpy(), -threshold), threshold)
    rows = log_softmax(clipped @ weight.T + bias, axis=1)
    return float(-rows[np.arange(len(rows)), labels.numpy()].mean())


@torch.no_grad()
@pytest.mark.parametrize("scale", [0.02, 1.0, 300.0])
def test_the_threshold_minimises_the_nll(scale: float) -> None:
    classifier, features, labels = problem(scale)
    refinement = build_refinement("feature-clipping")
    head = refinement.build_head(3, 3)
    figures = refinement.fit_head(head, classifier, features, labels)
    threshold = float(head.threshold)
    found = nll(classifier, features, labels, threshold)
    # The released grid, at this scale.
    released = min(nll(classifier, features, labels, scale * q / 100) for q in range(2000))
    assert found == pytest.approx(released, abs=2e-3)
    assert found < nll(classifier, features, labels, math.inf) - 0.1
    assert figures == {
        "clipped_share": pytest.approx(float((features.abs() > threshold).float().mean()))
    }
    loss = nn.functional.cross_entropy(head(features), labels)
    assert float(loss) == pytest.approx(found, abs=1e-6)
    assert refinement.remarks(head) == []


@torch.no_grad()
def test_nothing_is_clipped_if_no_threshold_is_better() -> None:
    classifier, features, labels = problem(1.0)
    features = 0.1 * features.clamp(-1, 1)  # Under-confident: every clip makes it worse.
    refinement = build_refinement("feature-clipping")
    head = refinement.build_head(3, 3)
    assert refinement.fit_head(head, classifier, features, labels) == {"clipped_share": 0.0}
    assert torch.equal(head(100 * features), classifier(100 * features))
    (remark,) = refinement.remarks(head)
    assert remark.endswith("so it clips nothing")


def wanted(data: TaskData, model: str, stage: str, part: str, before: Artifact | None = None):
    return StageRequest(
        stage=stage,
        parts={part: {}},
        data=str(data.prepared.directory),
        model=model,
        protocol=protocol_from({"base": "features", "epochs": 2}).to_dict(),
        seed=0,
        upstream=before and before.key,
        upstream_stage=before and before.stage,
    )


def check_chain(store: ArtifactStore, data: TaskData, requests) -> None:
    """Compute network, clipping and temperature, and compare with the network by hand."""
    chain: list[Artifact] = []
    for make in requests:
        run = open_stage(make(chain[-1] if chain else None), store, data)
        metrics = {}
        while run.epoch < run.epochs:
            metrics = run.run_epoch()
        chain.append(run.finish(metrics))
    info, rows = data.prepared.info, data.prepared.test().values
    network = restore_network(chain[0], info, data.device)
    features = extract_features(network, info.inputs.batcher(rows, data.device))
    threshold = float(chain[1].tensors("head")["threshold"])
    with torch.no_grad():
        expected = network.classifier(features.float().clamp(-threshold, threshold))
    found = predictor(store, chain[1].ref, info, data.device)(rows)
    torch.testing.assert_close(found, expected.log_softmax(1), atol=1e-5, rtol=1e-4)
    before, after = (each.record["metrics"] for each in chain[:2])
    assert after["val_nll"] < before["val_nll"] + 0.02
    assert 0 <= after["clipped_share"] <= 1
    calibrated = predictor(store, chain[2].ref, info, data.device)(rows)
    temperature = chain[2].record["summary"]["temperature"]
    scaled = (found / temperature).log_softmax(1)
    torch.testing.assert_close(calibrated, scaled, atol=1e-4, rtol=1e-3)


PARTS = (("train", "ce"), ("refine", "feature-clipping"), ("calibrate", "ts"))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_heads_on_features_are_clipped(model: str, tmp_path: Path) -> None:
    _, features, labels = problem(1.0)
    np.savez(tmp_path / "f.npz", features=features.numpy(), labels=labels.numpy())
    split = SplitSpec(validation=0.3, test=0.2)
    data = TaskData(
        prepare(f"features:{tmp_path / 'f.npz'}", tmp_path, split, tmp_path / "data"),
        torch.device("cpu"),
    )
    makes = [lambda before, p=part: wanted(data, model, *p, before) for part in PARTS]
    check_chain(ArtifactStore(tmp_path / "store"), data, makes)


def test_networks_of_images_are_clipped_and_judged_on_held_out_rows(workshop: Workshop) -> None:
    def make(part: tuple[str, str]):
        stage, name = part
        return lambda before: request(
            workshop.prepared, stage, {name: {}}, before, protocol={"epochs": 2}
        )

    check_chain(workshop.store, workshop.data, [make(part) for part in PARTS])


def test_rows_are_judged_by_a_threshold_of_other_rows(workshop: Workshop, monkeypatch) -> None:
    trained = workshop.compute(request(workshop.prepared, protocol={"epochs": 2}))
    run = workshop.open(request(workshop.prepared, "refine", {"feature-clipping": {}}, trained))
    seen: list[Tensor] = []
    fit = FeatureClipping.fit_head

    def noted(self, head, classifier, features, labels):
        seen.append(features)
        figures = fit(self, head, classifier, features, labels)
        head.threshold.fill_(0.01 * len(seen))  # So that each fold has another threshold.
        return figures

    monkeypatch.setattr(FeatureClipping, "fit_head", noted)
    run.run_epoch()
    network = restore_network(trained, workshop.prepared.info, workshop.data.device)
    logits = run.outcome()[0]["validation"]["logits"]
    every, *folds = seen
    assert len(folds) == 5
    judged = torch.zeros(len(every), dtype=torch.long)
    for number, fitted in enumerate(folds, 2):
        held = ~(every[:, None] == fitted[None]).all(2).any(1)
        judged += held
        with torch.no_grad():
            expected = network.classifier(every[held].clamp(-0.01 * number, 0.01 * number))
        torch.testing.assert_close(logits[held], expected, atol=1e-5, rtol=1e-4)
    assert bool((judged == 1).all())


def test_networks_with_another_classifier_are_refused(workshop: Workshop) -> None:
    trained = workshop.compute(
        replace(request(workshop.prepared, protocol={"epochs": 1}), parts={"ce": {}, "mcdrop": {}})
    )
    run = workshop.open(request(workshop.prepared, "refine", {"feature-clipping": {}}, trained))
    with pytest.raises(InputError, match="feature-clipping needs a network with one linear class"):
        run.run_epoch()
