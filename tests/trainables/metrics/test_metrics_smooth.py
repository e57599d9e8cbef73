import numpy as np
import pytest

from trainables.metrics import calibration_report, evaluation_report
from trainables.metrics._smooth import GRID, grid_cell, smoothed


def case(kind):
    """Confidences of two classes, right less often than they say by a known amount."""
    rows, shape, gap = [(500, 2.0, 0.0), (3000, 0.5, 0.05), (3000, 1.0, 0.1), (10_000, 0.5, 0.0)][
        kind
    ]
    rng = np.random.default_rng(kind)
    confidence = rng.beta(8, shape, rows).clip(0.51, 0.9999)
    right = rng.random(rows) < confidence - gap
    return confidence, right


def given(confidence, right):
    probs = np.stack([confidence, 1 - confidence], axis=1)
    return {"probs": probs, "labels": 1 - right.astype(int)}


def debiased_ece(probs, labels, bins=15):
    with np.errstate(divide="ignore"):
        return evaluation_report(np.log(probs), labels, bins)["debiased_ece"]


def smooth_ece(probs, labels):
    with np.errstate(divide="ignore"):
        return evaluation_report(np.log(probs), labels)["smooth_ece"]


def smoothed_at(bandwidth, confidence, right):
    gaps = np.bincount(grid_cell(confidence), confidence - right, GRID) / len(right)
    return smoothed(gaps)(bandwidth)


# From uncertainty-calibration 0.1.4 (normal_debiased_ce, 100,000 draws) and relplot 1.0.3 (smECE,
# whose bandwidth is a multiple of 1/1024), on the cases above.
PEERS = [(0.015035, 0.023902), (0.04876, 0.046937), (0.098491, 0.097849), (0.000442, 0.005759)]


@pytest.mark.parametrize("kind", range(4))
def test_debiased_and_smooth_ece_agree_with_the_libraries_of_the_authors(kind):
    rows = given(*case(kind))
    assert debiased_ece(**rows) == pytest.approx(PEERS[kind][0], abs=1e-4)
    assert smooth_ece(**rows) == pytest.approx(PEERS[kind][1], abs=1 / 1024)


@pytest.mark.parametrize("bandwidth", [0.01, 0.05, 0.4])
def test_smooth_is_the_integral_of_reflected_gaussians(bandwidth):
    confidence, right = (part[:100] for part in case(0))
    places = (np.arange(4000) + 0.5) / 4000
    density = np.zeros_like(places)
    for score, hit in zip(confidence, right, strict=True):
        for image in range(-4, 5):
            for centre in (2 * image + score, 2 * image - score):
                bell = np.exp(-(((places - centre) / bandwidth) ** 2) / 2)
                density += (score - hit) * bell / (bandwidth * np.sqrt(2 * np.pi))
    expected = np.abs(density).mean() / len(confidence)
    found = smoothed_at(bandwidth, confidence, right)
    assert found == pytest.approx(expected, rel=2e-3)


def test_smooth_ece_equals_the_error_at_the_bandwidth_of_the_same_size():
    found = smooth_ece(**given(*case(1)))
    assert smoothed_at(found, *case(1)) == pytest.approx(found, rel=1e-6)


def test_a_constant_gap_is_its_size():
    confidence = np.full(1000, 0.8)
    right = np.arange(1000) < 700
    assert smooth_ece(**given(confidence, right)) == pytest.approx(0.1, abs=1e-9)
    assert debiased_ece(**given(confidence, right)) == pytest.approx(0.1, abs=1e-9)


def test_no_gap_is_none():
    rows = given(np.full(10, 1.0), np.full(10, True))
    assert (smooth_ece(**rows), debiased_ece(**rows)) == (0.0, 0.0)


@pytest.mark.full
def test_debiasing_takes_four_tenths_off_a_calibrated_model_and_little_off_another():
    plain, less = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        confidence = rng.beta(8, 2, 4000).clip(0.51, 0.9999)
        rows = given(confidence, rng.random(4000) < confidence)
        plain.append(calibration_report(**rows)["ece"])
        less.append(debiased_ece(**rows))
    assert 0.3 < 1 - np.mean(less) / np.mean(plain) < 0.6
    rows = given(*case(2))
    assert debiased_ece(**rows) == pytest.approx(calibration_report(**rows)["ece"], rel=0.01)
