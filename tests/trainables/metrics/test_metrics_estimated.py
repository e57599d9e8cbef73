import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

from trainables.metrics import calibration_report, estimated_error


def rows(seed, count, gap=0.0):
    """Probabilities of two classes whose first is right as often as it says, less a gap."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(6, 1.2, count).clip(0.51, 0.9999)
    right = rng.random(count) < confidence - gap
    return np.stack([confidence, 1 - confidence], axis=1), 1 - right.astype(int)


def best_curve(probs, labels):
    """Return the estimate by an optimiser that knows nothing of Newton steps."""
    c, right = probs.max(1), (probs.argmax(1) == labels).astype(float)
    features = np.stack([np.log(c), -np.log1p(-c), np.ones_like(c)], axis=1)
    start = np.array([1.0, 1.0, 0.0])

    def loss(weights):
        chance = features @ weights
        likelihood = np.logaddexp(0, chance) - right * chance
        return likelihood.sum() + 0.5 * ((weights - start) ** 2).sum()

    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-8}).x
    return np.abs(expit(features @ found) - c).mean()


@pytest.mark.parametrize(("count", "gap"), [(40, 0.0), (300, 0.2), (3000, 0.05)])
def test_the_curve_is_the_best_one(count, gap):
    probs, labels = rows(count, count, gap)
    assert estimated_error(probs=probs, labels=labels) == pytest.approx(
        best_curve(probs, labels), abs=1e-6
    )


def test_confidences_close_to_one_are_taken_as_they_are():
    probs, labels = rows(0, 300, 0.1)
    probs[::3, 1] = 10.0 ** -np.linspace(4, 11, 100)
    probs[::3, 0] = 1 - probs[::3, 1]
    assert estimated_error(probs=probs, labels=labels) == pytest.approx(
        best_curve(probs, labels), abs=1e-6
    )


@pytest.mark.parametrize("gap", [0.0, 0.03])
def test_the_estimated_error_is_closer_to_the_truth_than_ece_on_few_rows(gap):
    cases = [rows(seed, 400, gap) for seed in range(30)]
    ours = [estimated_error(probs=p, labels=y) - gap for p, y in cases]
    bins = [calibration_report(probs=p, labels=y)["ece"] - gap for p, y in cases]
    assert np.abs(ours).mean() < 0.85 * np.abs(bins).mean()
    assert abs(np.mean(ours)) < 0.016


def test_estimated_error_depends_neither_on_row_order_nor_on_logits_or_probabilities():
    probs, labels = rows(0, 200, 0.1)
    value = estimated_error(probs=probs, labels=labels)
    assert estimated_error(probs=probs[::-1], labels=labels[::-1]) == pytest.approx(value)
    logits = torch.from_numpy(probs).log() + 3
    assert estimated_error(logits=logits, labels=torch.from_numpy(labels)) == pytest.approx(value)


@pytest.mark.parametrize("sure", [1.0, 1 - 1e-9, 0.5])
@pytest.mark.parametrize("right", [True, False])
def test_estimated_error_accepts_rows_that_are_all_equal(sure, right):
    probs = np.tile([sure, 1 - sure], (500, 1))
    labels = np.full(500, int(not right))
    assert estimated_error(probs=probs, labels=labels) == pytest.approx(abs(sure - right), abs=0.02)
