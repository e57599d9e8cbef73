import json
from itertools import product

import numpy as np
import pytest

from trainables.metrics import calibration_report

pytestmark = pytest.mark.shared

TORRVISION = "torrvision/focal_calibration Metrics/metrics.py"
MDCA = "mdca-loss/MDCA-Calibration calibration_library/metrics.py (float64 numpy)"
METACAL = "maxc01/metacal metacal/evaluation.py (float64 numpy)"
BALCAL = "JianiNi/BalCAL src/utils/metrics.py"
HAN = "han678/CalibWeightedRisk loss/ece.py, utils/metrics.py"
CRL = "daintlab/confidence-aware-learning metrics.py"
SCTL = "SeungjinJung/SCTL models/utils.py"
OWN = "own arithmetic, float64 (no ambiguity)"

# (implementation, its metric, our metric, tolerance, our value over theirs,
#  cases where the definitions part on purpose; each is pinned by a test below)
FLOAT32, FLOAT64 = 1e-6, 1e-12
SAME = [
    (OWN, "accuracy", "acc", FLOAT64, 1, ()),
    (OWN, "nll_mean", "nll", FLOAT64, 1, ()),
    (OWN, "brier_sum_over_classes_mean_over_samples", "brier", FLOAT64, 1, ()),
    (MDCA, "BrierScore", "brier", FLOAT64, 1, ()),
    (CRL, "brier", "brier", FLOAT32, 1, ()),
    (CRL, "nll", "nll", FLOAT32, 1, ()),
    (TORRVISION, "ECELoss@{}", "ece", FLOAT32, 1, ()),
    (TORRVISION, "ECELoss@{}_float64_logits", "ece", FLOAT32, 1, ()),
    (TORRVISION, "expected_calibration_error@{}", "ece", FLOAT32, 1, ()),
    (TORRVISION, "maximum_calibration_error@{}", "mce", FLOAT32, 1, ()),
    (TORRVISION, "ClasswiseECELoss@{}", "cwece", FLOAT32, 1, ("last_classes_absent",)),
    (MDCA, "ECELoss@{}", "ece", FLOAT64, 1, ()),
    (MDCA, "MCELoss@{}", "mce", FLOAT64, 1, ()),
    (MDCA, "SCELoss@{}", "cwece", FLOAT64, 1, ("exact_one",)),
    (METACAL, "ECE(eqdist_prob,mean)@{}", "ece", FLOAT64, 1, ()),
    (HAN, "ECELoss(p=1)@{}", "ece", FLOAT32, 1, ()),
    (HAN, "Ece(adaptive=False,classwise=False)@{}", "ece", FLOAT32, 1, ("edges15",)),
    (CRL, "ece@{}", "ece", FLOAT32, 1, ()),
    (SCTL, "ece_percent@{}", "ece", FLOAT32, 0.01, ()),
    (SCTL, "acc_percent@{}", "acc", FLOAT32, 0.01, ()),
    (BALCAL, "Calibration.ece@{}", "ece", FLOAT32, 1, ("edges15",)),
    (BALCAL, "ClasswiseECELoss@{}", "cwece", FLOAT32, 1, ("last_classes_absent", "exact_one")),
]


@pytest.fixture(scope="module")
def cases(shared):
    """Return every metric case: its inputs, its results, and our reports by bin count."""
    index = json.loads((shared / "goldens" / "index.json").read_text())
    arrays = np.load(shared / "goldens" / "metrics.npz")
    found = {}
    for case in index["files"]["metrics.npz"]:
        if case["kind"] == "metrics":
            name = "logits" if case["logits"] else "probs"
            inputs = {name: arrays[case[name]], "labels": arrays[case["labels"]]}
            ours = {bins: calibration_report(**inputs, bins=bins) for bins in (10, 15)}
            found[case["id"]] = (case, inputs, ours)
    return found


@pytest.mark.parametrize(
    ("source", "metric", "name", "tolerance", "scale", "apart"),
    SAME,
    ids=[f"{row[0].split()[0]}:{row[1]}" for row in SAME],
)
def test_metric_equals_the_released_implementation(
    cases, source, metric, name, tolerance, scale, apart
):
    compared = 0
    for case_id, (case, _, ours) in cases.items():
        for bins in (10, 15):
            theirs = case["results"].get(source, {}).get(metric.format(bins))
            if theirs is None or case_id in apart:
                continue
            compared += 1
            expected = theirs * scale
            assert ours[bins][name] == pytest.approx(expected, rel=tolerance, abs=tolerance), (
                case_id,
                bins,
            )
    assert compared >= 10


def test_brier_of_code_that_averages_over_classes_is_k_times_smaller(cases):
    for case, _, ours in cases.values():
        for source, key in ((BALCAL, "brier"), (HAN, "get_brier_score")):
            assert ours[15]["brier"] == pytest.approx(
                case["K"] * case["results"][source][key], rel=1e-6
            )


def test_our_aece_differs_from_the_released_one_by_the_lost_rows_only(cases):
    for case_id, (case, inputs, ours) in cases.items():
        confidence = _probs(inputs).max(axis=1)
        lost = np.isclose(confidence, confidence.min(), rtol=1e-12).sum() / case["N"]
        for bins, source in product((10, 15), (BALCAL, TORRVISION)):
            released = case["results"].get(source, {}).get(f"AdaptiveECELoss@{bins}")
            if released is None:
                assert source != BALCAL
                continue
            assert abs(ours[bins]["aece"] - released) <= lost + 1e-6, case_id


def test_all_equal_confidences_are_not_lost(cases):
    case, _, ours = cases["all_equal_logits"]
    assert case["results"][TORRVISION]["AdaptiveECELoss@15"] == 0
    assert ours[15]["acc"] != 0.2
    assert ours[15]["aece"] == pytest.approx(abs(ours[15]["acc"] - 0.2), abs=1e-12)


def test_classwise_ece_averages_over_all_classes(cases):
    case, inputs, ours = cases["last_classes_absent"]
    theirs = case["results"][TORRVISION]["ClasswiseECELoss@15"]
    counted = inputs["labels"].max() + 1
    assert counted < case["K"]
    absent = _probs(inputs)[:, counted:].mean(axis=0).sum()
    expected = (counted * theirs + absent) / case["K"]
    assert ours[15]["cwece"] == pytest.approx(expected, abs=1e-7)


def test_a_true_class_with_probability_zero_counts(cases):
    case, inputs, ours = cases["exact_one"]
    lost = 0.0
    for k in range(3):
        zero = inputs["probs"][:, k] == 0
        lost += (inputs["labels"][zero] == k).sum() / case["N"] / case["K"]
    assert lost > 0
    assert ours[15]["cwece"] == pytest.approx(case["results"][MDCA]["SCELoss@15"] + lost, abs=1e-12)
    assert ours[15]["nll"] == np.inf


@pytest.mark.parametrize("case_id", ["edges10", "edges15"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below_it(cases, case_id, dtype):
    _, inputs, ours = cases[case_id]
    bins = int(case_id.removeprefix("edges"))
    given = {"probs": inputs["probs"].astype(dtype), "labels": inputs["labels"]}
    assert calibration_report(**given, bins=bins)["ece"] == pytest.approx(
        ours[bins]["ece"], abs=1e-6
    )


def _probs(inputs):
    if "probs" in inputs:
        return inputs["probs"]
    logits = inputs["logits"].astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
