import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from trainables.metrics import (
    METRICS,
    calibration_report,
    column_report,
    evaluation_report,
    of_sets,
    row_terms,
    rows_or_value,
)
from trainables.metrics._refinement import halves

NAMES = METRICS.columns(METRICS)
TERMS = [name for name in NAMES if name not in ("l2_low", "l2_high", "l2_p")]


def predictions(
    seed: int, rows: int = 400, classes: int = 5, taming: float = 0.6
) -> tuple[Tensor, Tensor]:
    """Logits of an over-confident network, and labels drawn from tamer ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.mul(taming).softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


def confidences(values: list[float], right: list[bool]) -> tuple[Tensor, Tensor]:
    first = torch.tensor(values, dtype=torch.float64)
    labels = torch.tensor([0 if hit else 1 for hit in right])
    return torch.stack([first, 1 - first], 1).log(), labels


def accepted(logits: Tensor, labels: Tensor) -> list[tuple[int, float]]:
    """Return rows accepted and errors among them at each threshold, the strictest first."""
    confidence, predicted = logits.softmax(1).max(1)
    wrong = predicted != labels
    steps = sorted(set(confidence.tolist()), reverse=True)
    return [
        (int((confidence >= step).sum()), float(wrong[confidence >= step].sum())) for step in steps
    ]


def errors_by_count(logits: Tensor, labels: Tensor) -> list[float]:
    ends = [(0, 0.0), *accepted(logits, labels)]
    return [float(np.interp(k, *zip(*ends, strict=True))) for k in range(len(labels) + 1)]


def failures_above(logits: Tensor, labels: Tensor) -> float:
    """Return AUGRC as the share of pairs in which an error is kept with the other row as limit."""
    confidence, predicted = logits.softmax(1).max(1)
    wrong = (predicted != labels).double()
    above = (confidence[:, None] > confidence[None, :]).double()
    above += 0.5 * (confidence[:, None] == confidence[None, :])
    return float((wrong[:, None] * above).mean())


@pytest.mark.parametrize("tied", [False, True])
def test_selective_figures_are_those_of_a_loop_over_thresholds(tied: bool) -> None:
    logits, labels = predictions(1)
    logits = logits[:100].repeat(4, 1) if tied else logits
    found, errors = column_report(logits, labels, NAMES), errors_by_count(logits, labels)
    rows = len(labels)
    risks = [errors[k] / k for k in range(1, rows + 1)]
    assert found["aurc"] == pytest.approx(sum(risks) / rows)
    assert found["augrc"] == pytest.approx(failures_above(logits, labels))
    for percent in (80, 90, 95):
        assert found[f"risk_{percent}"] == pytest.approx(risks[rows * percent // 100 - 1])
    for percent in (1, 5):
        allowed = [n for n, e in accepted(logits, labels) if e <= percent / 100 * n]
        assert found[f"coverage_{percent}"] == pytest.approx(max(allowed, default=0) / rows)


def test_selective_figures_by_hand() -> None:
    rows = confidences([0.95, 0.9, 0.85, 0.8, 0.6, 0.6], [True, True, True, False, True, False])
    found = column_report(*rows, NAMES)
    # Errors of the first k rows: 0, 0, 0, 1, 1.5, 2; the last two rows tie.
    assert found["aurc"] == pytest.approx((1 / 4 + 1.5 / 5 + 2 / 6) / 6)
    best = (1 / 5 + 2 / 6) / 6  # Both errors last.
    assert found["e_aurc"] == pytest.approx(found["aurc"] - best)
    assert found["augrc"] == pytest.approx((0.5 + 1.25 + 1.75) / 36)
    assert found["risk_80"] == pytest.approx(1.5 / 5)
    assert found["coverage_5"] == pytest.approx(3 / 6)


def test_augrc_is_a_function_of_auroc_and_accuracy() -> None:
    logits, labels = predictions(2)
    confidence, predicted = logits.softmax(1).max(1)
    right = predicted == labels
    auroc = float((confidence[right][:, None] > confidence[~right][None, :]).double().mean())
    acc = float(right.double().mean())
    expected = (1 - auroc) * acc * (1 - acc) + (1 - acc) ** 2 / 2
    assert column_report(logits, labels, ["augrc"])["augrc"] == pytest.approx(expected)


def test_errors_that_come_last_have_no_excess() -> None:
    rows = confidences([0.9, 0.8, 0.7, 0.6, 0.55], [True, True, True, False, False])
    assert column_report(*rows, ["e_aurc"])["e_aurc"] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("right", [True, False])
def test_networks_that_are_always_right_or_wrong(right: bool) -> None:
    found = column_report(*confidences([0.9, 0.8, 0.7], [right] * 3), NAMES)
    risk = 0.0 if right else 1.0
    assert (found["aurc"], found["risk_80"]) == (pytest.approx(risk), pytest.approx(risk))
    assert found["e_aurc"] == pytest.approx(0)
    assert found["augrc"] == pytest.approx(risk / 2)
    assert found["coverage_1"] == found["coverage_5"] == 1 - risk


def test_the_sides_of_ece_are_those_of_the_report() -> None:
    logits, labels = predictions(4)
    found = column_report(logits, labels, ["signed_ece", "ece_over", "ece_under"])
    report = calibration_report(logits, labels=labels, direction=True)
    assert found["ece_over"] == pytest.approx(report["ece_over"])
    assert found["ece_under"] == pytest.approx(report["ece_under"])
    assert found["signed_ece"] == pytest.approx(report["ece_over"] - report["ece_under"])
    confidence = float(logits.softmax(1).amax(1).mean())
    assert found["signed_ece"] == pytest.approx(confidence - report["acc"])


def test_refinement_is_the_loss_after_the_temperature_of_the_other_half() -> None:
    logits, labels = predictions(5)
    nll, brier = torch.empty(400).double(), torch.empty(400).double()
    for fit, rest in halves(400, labels.device):
        loss = lambda scale, fit=fit: float(  # noqa: E731
            torch.nn.functional.cross_entropy(scale * logits[fit], labels[fit])
        )
        scale = minimize_scalar(loss, bounds=(0.01, 10), method="bounded", options={"xatol": 1e-9})
        probs = (logits[rest] * scale.x).softmax(1)
        nll[rest] = -probs[torch.arange(len(rest)), labels[rest]].log()
        brier[rest] = (probs - torch.eye(5, dtype=torch.float64)[labels[rest]]).square().sum(1)
    found, report = column_report(logits, labels, NAMES), evaluation_report(logits, labels)
    assert found["nll_refinement"] == pytest.approx(float(nll.mean()), abs=1e-8)
    assert found["brier_refinement"] == pytest.approx(float(brier.mean()), abs=1e-7)
    for score in ("nll", "brier"):
        parts = found[f"{score}_refinement"] + found[f"{score}_calibration"]
        assert parts == pytest.approx(report[score])
        assert found[f"{score}_calibration"] > 0.01  # The labels come from tamer logits.


def drawn_sets(
    kind: str, percent: int, fit: tuple[Tensor, Tensor], judged: tuple[Tensor, Tensor], draws: int
) -> tuple[float, float]:
    """Return coverage and size of the sets of textbooks, which draw the last class; the mean."""
    generator = np.random.default_rng(0)

    def scores(logits: Tensor) -> np.ndarray:
        probs = logits.softmax(1).numpy()
        if kind == "lac":
            return 1 - probs
        order = np.argsort(-probs, axis=1, kind="stable")
        ranked = np.take_along_axis(probs, order, 1)
        own = ranked.cumsum(1) - ranked + generator.random((len(probs), 1)) * ranked
        if kind == "raps":
            own += 0.01 * np.maximum(np.arange(1, probs.shape[1] + 1) - 5, 0)
        return np.take_along_axis(own, np.argsort(order, axis=1), 1)

    found = []
    for _ in range(draws):
        own = np.sort(scores(fit[0])[np.arange(len(fit[1])), fit[1].numpy()])
        place = math.ceil((len(own) + 1) * percent / 100) - 1
        sets = scores(judged[0]) <= (own[place] if place < len(own) else math.inf)
        hits = sets[np.arange(len(judged[1])), judged[1].numpy()]
        found.append((hits.mean(), sets.sum(1).mean()))
    coverage, size = np.mean(found, axis=0)
    return float(coverage), float(size)


@pytest.mark.parametrize("classes", [4, 100, 300])
@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
@pytest.mark.parametrize("percent", [90, 95])
def test_conformal_sets_are_those_of_textbooks(kind: str, percent: int, classes: int) -> None:
    fit, judged = predictions(6, 300, classes), predictions(7, 200, classes)
    names = [f"{kind}_{percent}_coverage", f"{kind}_{percent}_size"]
    found = column_report(*judged, names, fit)
    coverage, size = drawn_sets(kind, percent, fit, judged, 1 if kind == "lac" else 30)
    exact = kind == "lac"
    assert found[names[0]] == pytest.approx(coverage, abs=1e-9 if exact else 0.006)
    assert found[names[1]] == pytest.approx(size, rel=1e-9 if exact else 0.02)


# Coverage and mean size at 90 % and 95 % by MAPIE 1.6.0 (``SplitConformalClassifier``), of APS with
# ``include_last_label="randomized"`` over 100 random states.
MAPIE = {
    (4, "lac"): (0.92, 2.38, 0.945, 2.86),
    (4, "aps"): (0.9222, 2.54415, 0.94715, 2.93725),
    (100, "lac"): (0.93, 55.135, 0.975, 69.06),
    (100, "aps"): (0.92925, 54.2449, 0.97, 69.3962),
}


@pytest.mark.parametrize(("classes", "kind"), MAPIE)
def test_conformal_sets_are_those_of_mapie(classes: int, kind: str) -> None:
    names = [f"{kind}_{level}_{figure}" for level in (90, 95) for figure in ("coverage", "size")]
    found = column_report(*predictions(7, 200, classes), names, predictions(6, 300, classes))
    error = 1e-9 if kind == "lac" else 0.005
    assert list(found.values()) == pytest.approx(list(MAPIE[classes, kind]), rel=error)


def test_without_validation_rows_each_half_has_the_thresholds_of_the_other() -> None:
    logits, labels = predictions(8)
    names = [name for name in NAMES if of_sets(name) and not name.endswith("worst")]
    found, parts = column_report(logits, labels, names), []
    for fit, rest in halves(400, labels.device):
        assert not set(fit.tolist()) & set(rest.tolist())
        fitted = (logits[fit], labels[fit])
        parts.append(column_report(logits[rest], labels[rest], names, fitted))
    for name in names:
        assert found[name] == pytest.approx((parts[0][name] + parts[1][name]) / 2)


def test_too_few_validation_rows_put_every_class_into_a_set() -> None:
    found = column_report(*predictions(9), NAMES, predictions(10, 8))
    for kind in ("lac", "aps", "raps"):
        assert found[f"{kind}_90_size"] == found[f"{kind}_95_size"] == 5
        assert found[f"{kind}_90_coverage"] == found[f"{kind}_90_worst"] == 1


def test_equal_classes_are_covered_no_more_often_than_they_are_right() -> None:
    logits = torch.zeros(400, 5, dtype=torch.float64)
    labels = torch.arange(400) % 5
    found = column_report(logits, labels, ["aps_90_coverage", "aps_90_size", "lac_90_size"])
    assert found["aps_90_coverage"] == pytest.approx(0.9, abs=0.01)
    assert found["aps_90_size"] == pytest.approx(4.5, abs=0.05)
    assert found["lac_90_size"] == 5


def test_the_worst_class_is_the_one_covered_least() -> None:
    logits, labels = predictions(11, 600, 3)
    labels[labels == 2] = 1  # A class without rows is none.
    covered = rows_or_value("lac_90_coverage", logits, labels)
    expected = min(float(covered[labels == k].mean()) for k in (0, 1))
    assert column_report(logits, labels, ["lac_90_worst"])["lac_90_worst"] == pytest.approx(
        expected
    )


def test_the_squared_error_is_that_of_pairs_of_different_rows() -> None:
    logits, labels = predictions(12, 150)
    confidence, predicted = logits.softmax(1).max(1)
    gaps = (confidence - (predicted == labels).double()).numpy()
    bins = np.maximum(np.argsort(np.argsort(confidence.numpy())) - 1, 0) // 10  # As of ``aece``.
    total = 0.0
    for b in range(15):
        own = gaps[bins == b]
        pairs = [own[i] * own[j] for i in range(len(own)) for j in range(len(own)) if i != j]
        total += len(own) / 150 * sum(pairs) / len(pairs)
    assert column_report(logits, labels, ["l2_error"])["l2_error"] == pytest.approx(total)


def calibration_tests(taming: float, count: int = 150) -> list[dict[str, float]]:
    names = ["l2_error", "l2_low", "l2_high", "l2_p"]
    return [
        column_report(*predictions(seed, 500, 3, taming), names) for seed in range(100, 100 + count)
    ]


@pytest.mark.full
def test_calibrated_rows_are_rejected_as_often_as_the_p_value_says() -> None:
    found = calibration_tests(1.0)
    for level in (0.05, 0.2):
        share = np.mean([one["l2_p"] <= level for one in found])
        assert share == pytest.approx(level, abs=3.3 * math.sqrt(level * (1 - level) / 150))
    assert np.mean([one["l2_error"] for one in found]) == pytest.approx(0, abs=3e-4)
    assert np.mean([one["l2_low"] == 0 for one in found]) > 0.93


@pytest.mark.full
def test_the_interval_holds_the_error_of_miscalibrated_rows() -> None:
    truth = column_report(*predictions(0, 200_000, 3, 0.7), ["l2_error"])["l2_error"]
    found = calibration_tests(0.7)
    assert np.mean([one["l2_low"] <= truth <= one["l2_high"] for one in found]) > 0.9
    assert np.mean([one["l2_p"] <= 0.05 for one in found]) > 0.7


@pytest.mark.parametrize("metric", TERMS)
def test_the_mean_of_the_terms_is_the_metric(metric: str) -> None:
    logits, labels = predictions(13)
    terms = row_terms(metric, logits, labels)
    assert terms.shape == labels.shape
    value = column_report(logits, labels, [metric])[metric]
    assert float(terms.mean()) == pytest.approx(value, abs=1e-12)
    assert torch.equal(rows_or_value(metric, logits, labels), terms)


SMOOTH = ["aurc", "augrc", "risk_80", "ece_over", "l2_error"]
SMOOTH += ["nll_calibration", "brier_calibration"]


def standard_errors(metric: str, taming: float) -> tuple[float, float]:
    """Return the mean standard error by the terms of 100 data sets, and the true one."""
    values, errors = [], []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(500, 3, generator=generator, dtype=torch.float64)
        labels = torch.multinomial(logits.mul(taming).softmax(1), 1, generator=generator).squeeze(1)
        terms = row_terms(metric, logits, labels)
        values.append(float(terms.mean()))
        errors.append(float(terms.std()) / math.sqrt(500))
    return sum(errors) / len(errors), float(torch.tensor(values).std())


@pytest.mark.full
@pytest.mark.parametrize("metric", [*SMOOTH, "coverage_5"])
def test_the_spread_of_the_terms_is_the_standard_error(metric: str) -> None:
    own, spread = standard_errors(metric, 0.8)
    assert own == pytest.approx(spread, rel=0.25 if metric in SMOOTH else 0.5)


@pytest.mark.full
@pytest.mark.parametrize("metric", ["nll_calibration", "brier_calibration", "l2_error"])
def test_terms_of_calibrated_rows_do_not_promise_too_much(metric: str) -> None:
    own, spread = standard_errors(metric, 1.0)
    assert 0.9 * spread < own < 1.5 * spread


def test_terms_of_brier_refinement_include_the_uncertainty_of_the_temperature() -> None:
    logits, labels = predictions(15)
    labels = torch.where(logits.amax(1) > 4, logits.argmin(1), labels)  # No temperature mends it.
    terms, without = row_terms("brier_refinement", logits, labels), []
    base = column_report(logits, labels, ["brier_refinement"])["brier_refinement"]
    for row in range(0, 400, 5):  # Weights of one row, so that the halves stay the same.
        near = logits.clone()
        near[row] = 0  # A row of equal logits does not move a temperature.
        moved = column_report(near, labels, ["brier_refinement"])["brier_refinement"]
        without.append(400 * (base - moved) + 0.8)
    own = terms[::5].numpy()
    assert np.corrcoef(own, without)[0, 1] > 0.999
    assert np.polyfit(without, own, 1)[0] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_stored_precision_changes_little(dtype: torch.dtype) -> None:
    logits, labels = predictions(14, classes=80)
    exact = column_report(logits.to(dtype).double(), labels, NAMES)
    assert column_report(logits.to(dtype), labels, NAMES) == pytest.approx(exact, rel=1e-4)


def test_float64_rows_are_left_as_they_are() -> None:
    logits, labels = predictions(15)
    kept = logits.clone()
    column_report(logits, labels, NAMES)
    assert torch.equal(logits, kept)
