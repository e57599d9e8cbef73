import numpy as np
import pytest
import torch

from trainables.metrics import (
    calibration_report,
    predicted_rows,
    reliability_curve,
    risk_coverage_curve,
)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return {"probs": rng.dirichlet(np.ones(3), 300), "labels": rng.integers(0, 3, 300)}


def test_each_bin_holds_its_rows():
    probs = np.array([[0.55, 0.45], [0.58, 0.42], [0.05, 0.95], [1.0, 0.0]])
    curve = reliability_curve(probs=probs, labels=np.array([0, 1, 1, 1]), bins=10)
    np.testing.assert_array_equal(curve.count, [0, 0, 0, 0, 0, 2, 0, 0, 0, 2])
    assert curve.count.dtype == np.int64
    np.testing.assert_allclose(curve.edges, np.arange(11) / 10)
    assert curve.confidence[5] == pytest.approx(0.565)
    assert curve.accuracy[5] == 0.5
    assert curve.confidence[9] == pytest.approx(0.975)
    assert curve.accuracy[9] == 0.5
    assert np.isnan(curve.confidence[0])
    assert np.isnan(curve.accuracy[0])


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_errors_are_those_of_the_report(data, bins):
    report = calibration_report(**data, bins=bins)
    width = reliability_curve(**data, bins=bins)
    assert width.error == pytest.approx(report["ece"], abs=1e-12)
    gaps = np.abs(width.accuracy - width.confidence)
    assert np.nanmax(gaps) == pytest.approx(report["mce"], abs=1e-12)
    mass = reliability_curve(**data, bins=bins, scheme="mass")
    assert mass.error == pytest.approx(report["aece"], abs=1e-12)
    assert mass.count.sum() == width.count.sum() == 300


def test_edges_have_the_precision_of_the_probabilities():
    probs = np.array([[k / 15, 1 - k / 15] for k in range(8, 16)], dtype=np.float32)
    curve = reliability_curve(probs=probs, labels=np.zeros(8, int))
    np.testing.assert_array_equal(curve.count, [0] * 7 + [1] * 8)


def test_bad_arguments_are_refused(data):
    with pytest.raises(ValueError, match="scheme='size' is not one of width, mass"):
        reliability_curve(**data, scheme="size")
    with pytest.raises(ValueError, match="bins=0"):
        reliability_curve(**data, bins=0)
    with pytest.raises(ValueError, match="got neither"):
        reliability_curve()


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (5000, 15), (300, 700)])
def test_rows_of_lists_have_the_figures_of_the_curve(rows, classes):
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, classes, generator=generator) * 3
    logits[::3] = 0.0  # Equal classes: the first is predicted, and 1/15 is the end of a bin.
    logits[1::3, 1] = -torch.inf
    labels = torch.randint(classes, (rows,), generator=generator)
    found = predicted_rows(logits.numpy(), labels.numpy())
    curve, probs = reliability_curve(logits=logits, labels=labels), logits.double().softmax(1)
    np.testing.assert_array_equal(found.predicted, logits.max(1).indices)
    np.testing.assert_array_equal(found.confidence, probs.amax(1).float())
    np.testing.assert_array_equal(found.true, probs.gather(1, labels[:, None])[:, 0].float())
    count, confidence, right = found.sums
    np.testing.assert_array_equal(count, curve.count)
    np.testing.assert_array_equal(np.bincount(found.bins, minlength=15), curve.count)
    filled = count > 0
    expected = (curve.confidence * count)[filled], (curve.accuracy * count)[filled]
    np.testing.assert_allclose((confidence[filled], right[filled]), expected, 1e-12)


@pytest.mark.parametrize(
    ("logits", "labels", "text"),
    [
        ([[0.0, np.nan]], [0], "NaN"),
        ([[0.0, np.inf]], [0], "infinity"),
        ([[-np.inf, -np.inf]], [0], "-inf"),
        ([[0.0, 1.0]], [2], r"expected labels in \[0, 2\)"),
        ([[0.0, 1.0]], [-1], r"expected labels in \[0, 2\)"),
        ([[0.0, 1.0]], [0, 1], "expected one whole number per row as labels"),
        ([[0.0, 1.0]], [0.0], "expected one whole number per row as labels"),
    ],
)
def test_rows_of_lists_refuse_bad_values(logits, labels, text):
    with pytest.raises(ValueError, match=text):
        predicted_rows(np.array(logits), np.array(labels))


def test_the_risk_is_the_error_among_the_most_confident_rows():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (60,), generator=generator)
    curve = risk_coverage_curve(logits=logits, labels=labels)
    rows = sorted(
        (max(row.tolist()), int(row.argmax() != label))
        for row, label in zip(logits.softmax(1), labels, strict=True)
    )[::-1]
    wrong = [error for _, error in rows]
    expected = [sum(wrong[:kept]) / kept for kept in range(1, 61)]
    assert curve.risk == pytest.approx(expected)
    assert curve.coverage == pytest.approx(np.arange(1, 61) / 60)
    assert curve.area == pytest.approx(sum(expected) / 60)
    report = calibration_report(logits=logits, labels=labels)
    assert curve.risk[-1] == pytest.approx(1 - report["acc"])


def test_rows_of_equal_confidence_share_their_errors():
    probs = torch.tensor([[0.9, 0.1]] * 4 + [[0.4, 0.6]])
    labels = torch.tensor([1, 0, 0, 0, 1])
    for order in ([0, 1, 2, 3, 4], [3, 2, 1, 0, 4]):
        curve = risk_coverage_curve(probs=probs[order], labels=labels[order])
        assert curve.risk == pytest.approx([0.25] * 4 + [0.2])
