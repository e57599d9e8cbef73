import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from standin_card import CARD, standin_card

from trainables.metrics import (
    METRICS,
    REPORTED,
    StreamedReport,
    calibration_report,
    estimated_error,
    evaluation_report,
    reliability_curve,
    risk_coverage_curve,
)
from trainables.metrics import _scores as scores_module


def softmax(logits):
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def width_bins(values, bins):
    """Bin of each value: the only b with b/bins < v <= (b+1)/bins, and 0 for v = 0."""
    out = []
    for value in values:
        inside = [b for b in range(bins) if b / bins < value <= (b + 1) / bins]
        assert len(inside) == 1 or value == 0
        out.append(inside[0] if inside else 0)
    return np.array(out)


def mass_bins(values, bins):
    """Bin of each value between quantile edges read off the sorted values."""
    n = len(values)
    positions = [j * n / bins for j in range(bins + 1)]
    edges = np.interp(positions, np.arange(n), np.sort(values))
    out = []
    for value in values:
        b = 0
        while b < bins - 1 and value > edges[b + 1]:
            b += 1
        out.append(b)
    return np.array(out)


def gaps(values, hits, index, bins):
    """Weight and absolute gap of every bin that is not empty."""
    found = []
    for b in range(bins):
        inside = index == b
        if inside.any():
            found.append((inside.mean(), abs(hits[inside].mean() - values[inside].mean())))
    return found


def error(values, hits, index, bins):
    return sum(weight * gap for weight, gap in gaps(values, hits, index, bins))


def slow_report(probs, labels, bins):
    n, k = probs.shape
    confidence, predicted = probs.max(axis=1), probs.argmax(axis=1)
    right = (predicted == labels).astype(float)
    top = width_bins(confidence, bins)
    one_hot = np.eye(k)[labels]
    with np.errstate(divide="ignore"):
        nll = -np.log(probs[np.arange(n), labels]).mean()
    return {
        "acc": right.mean(),
        "nll": nll,
        "brier": ((probs - one_hot) ** 2).sum() / n,
        "ece": error(confidence, right, top, bins),
        "aece": error(confidence, right, mass_bins(confidence, bins), bins),
        "cwece": sum(
            error(probs[:, c], one_hot[:, c], width_bins(probs[:, c], bins), bins) for c in range(k)
        )
        / k,
        "cwaece": sum(
            error(probs[:, c], one_hot[:, c], mass_bins(probs[:, c], bins), bins) for c in range(k)
        )
        / k,
        "mce": max(gap for _, gap in gaps(confidence, right, top, bins)),
    }


@st.composite
def predictions(draw):
    """Logits and labels: any sizes, few distinct values so that ties and edges are common."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = rng.normal(0, draw(st.sampled_from([0.1, 1.0, 4.0, 30.0])), (n, k))
    if draw(st.booleans()):
        logits = np.round(logits)
    return logits, rng.integers(0, k, n)


@settings(max_examples=80, deadline=None)
@given(predictions(), st.integers(1, 20))
def test_agrees_with_the_definitions(data, bins):
    logits, labels = data
    probs = softmax(logits)
    expected = slow_report(probs, labels, bins)
    for order in (np.arange(len(labels)), np.argsort(logits[:, 0])):
        given = {"labels": labels[order], "bins": np.int64(bins)}
        report = calibration_report(probs=probs[order], **given)
        assert report == pytest.approx(expected, abs=1e-12)
        nll = calibration_report(logits=logits[order], **given)["nll"]
        assert nll == pytest.approx(expected["nll"], abs=1e-9)
    assert tuple(report) == REPORTED
    for name, value in report.items():
        low, high = METRICS[name].bounds
        assert type(value) is float
        assert low <= value <= high + 1e-12, name


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("bins", [1, 15])
def test_perfect_predictions_have_no_error(n, k, bins):
    labels = np.arange(n) % k
    report = calibration_report(probs=np.eye(k)[labels], labels=labels, bins=bins)
    assert report == {**dict.fromkeys(REPORTED, 0.0), "acc": 1.0}


def test_confidently_wrong_predictions_have_all_the_error():
    labels = np.array([0, 1, 0, 1])
    report = calibration_report(probs=np.eye(2)[1 - labels], labels=labels)
    wanted = {"acc": 0, "nll": np.inf, "brier": 2, **dict.fromkeys(REPORTED[3:], 1)}
    assert report == wanted


def test_a_probability_of_zero_for_the_true_class_is_in_the_first_bin():
    probs = np.array([[1.0, 0.0], [1.0, 0.0]])
    report = calibration_report(probs=probs, labels=np.array([1, 1]))
    assert report["cwece"] == 1
    assert report["cwaece"] == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_edges_have_the_precision_of_the_probabilities(dtype):
    # 0.1 in single precision is above 1/10; both rows still belong to the bins that end there
    rest = np.full(15, 0.06)
    probs = np.array([[0.1, *rest], [0.09, 0.0796, *rest[:13], 0.0504]], dtype=dtype)
    labels = np.array([0, 1])
    confidence = probs.max(axis=1).astype(float)
    together = abs(confidence.mean() - 0.5)
    assert calibration_report(probs=probs, labels=labels, bins=10)["ece"] == pytest.approx(together)


def test_huge_logits_stay_finite():
    logits = np.array([[1e4, 0.0, -1e4], [0.0, 1e4, -1e4]], dtype=np.float32)
    report = calibration_report(logits=logits, labels=np.array([0, 0]))
    assert report["nll"] == pytest.approx(5e3)
    assert report["ece"] == pytest.approx(0.5)
    logits = np.array([[0.0, 0.0, -np.inf], [0.0, np.log(4), -np.inf]])
    report = calibration_report(logits=logits, labels=np.array([0, 1]))
    assert report["nll"] == pytest.approx(-(np.log(0.5) + np.log(0.8)) / 2)


def test_tensors_arrays_and_read_only_views_give_the_same():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(50, 4)), rng.integers(0, 4, 50)
    expected = calibration_report(logits=logits, labels=labels)
    frozen = logits.copy()
    frozen.flags.writeable = False
    wide = np.repeat(logits, 2, axis=1)[:, ::2]
    assert calibration_report(logits=frozen, labels=labels.astype(np.uint8)) == expected
    assert calibration_report(logits=wide[::-1][::-1], labels=labels) == expected
    assert calibration_report(logits=logits.astype(">f8"), labels=labels) == expected
    assert calibration_report(logits=logits.astype(np.longdouble), labels=labels) == expected
    whole = logits.round()
    assert calibration_report(logits=whole.astype(int), labels=labels) == calibration_report(
        logits=whole, labels=labels
    )
    tensor = torch.tensor(logits, requires_grad=True)
    assert calibration_report(logits=tensor, labels=torch.tensor(labels)) == expected


def test_a_report_does_not_change_its_input():
    for dtype in (np.float32, np.float64):
        logits = np.random.default_rng(2).normal(size=(30, 3)).astype(dtype)
        before = logits.copy()
        calibration_report(logits=logits, labels=np.zeros(30, int))
        np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_values_are_read_without_rounding(dtype):
    torch.manual_seed(0)
    logits, labels = torch.randn(100, 20).to(dtype), torch.randint(20, (100,))
    exact = calibration_report(logits=logits.double(), labels=labels)
    assert calibration_report(logits=logits, labels=labels) == pytest.approx(exact, abs=1e-12)
    probs = logits.double().softmax(1).to(dtype)
    assert calibration_report(probs=probs, labels=labels)["brier"] == pytest.approx(
        exact["brier"], rel=0.02
    )


def test_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(64, 7)), rng.integers(0, 7, 64)
    expected = calibration_report(logits=logits, labels=labels)
    for elements in (1, 100, 200):
        monkeypatch.setattr(scores_module, "BLOCK_ELEMENTS", elements)
        monkeypatch.setattr("trainables.common.logit_rows.BLOCK_VALUES", {"cpu": elements})
        assert calibration_report(logits=logits, labels=labels) == pytest.approx(
            expected, abs=1e-12
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_report_is_the_same_on_a_gpu():
    torch.manual_seed(0)
    logits, labels = torch.randn(2000, 50) * 3, torch.randint(50, (2000,))
    expected = calibration_report(logits=logits, labels=labels)
    found = calibration_report(logits=logits.cuda(), labels=labels)
    assert found == pytest.approx(expected, abs=1e-10)


def streamed(logits, labels):
    report = StreamedReport(4)
    for some in (slice(0, 25), slice(25, 60)):
        report.add(logits[some], labels[some])
    return {**report.report(), "error": report.aece_error, "iou": report.class_iou().tolist()}


@pytest.mark.full
@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize(
    "measure",
    [
        lambda logits, labels: calibration_report(logits=logits, labels=labels, direction=True),
        lambda logits, labels: calibration_report(probs=logits.softmax(1), labels=labels),
        evaluation_report,
        lambda logits, labels: {"error": estimated_error(logits=logits, labels=labels)},
        lambda logits, labels: vars(reliability_curve(logits=logits, labels=labels)),
        lambda x, labels: vars(reliability_curve(logits=x, labels=labels, scheme="mass")),
        lambda logits, labels: vars(risk_coverage_curve(logits=logits, labels=labels)),
        streamed,
    ],
)
def test_metrics_are_the_same_on_a_simulated_gpu_and_a_cpu(measure, host):
    logits = 2 * torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(60) % 4
    expected = measure(logits, labels)
    with standin_card():
        found = measure(logits.to(CARD), labels if host else labels.to(CARD))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


GOOD = np.array([[0.5, 0.5], [0.2, 0.8]])
LABELS = np.array([0, 1])


SHAPE = "expected (N, K) with N >= 1 and K >= 2"
NOT_FINITE = "NaN, infinity or a row of only -inf"
SUM = "pass logits as `logits`"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"logits": None}, "give exactly one of logits and probs, got neither"),
        ({"probs": GOOD}, "give exactly one of logits and probs, got both"),
        ({"labels": None}, "labels are missing"),
        ({"logits": GOOD[0]}, f"logits have shape (2,); {SHAPE}"),
        ({"logits": None, "probs": GOOD[:, :1]}, f"probs have shape (2, 1); {SHAPE}"),
        ({"logits": GOOD[:0], "labels": LABELS[:0]}, f"logits have shape (0, 2); {SHAPE}"),
        ({"labels": LABELS[:1]}, "labels: expected one per row, (2,), got (1,)"),
        ({"labels": np.array([0, 2])}, "labels: expected 0 to 1, got 2 in row 1"),
        ({"labels": np.array(["a", "b"])}, "labels: expected real numbers, got <U1"),
        ({"logits": 1j * GOOD}, "logits: expected real numbers, got complex128"),
        ({"logits": 1j * torch.eye(2)}, "logits: expected real numbers, got torch.complex64"),
        ({"logits": GOOD * np.nan}, f"logits contain {NOT_FINITE}"),
        ({"logits": np.array([[0, 1], [0, np.inf]])}, f"logits contain {NOT_FINITE}"),
        ({"logits": GOOD - [np.inf, np.inf]}, f"logits contain {NOT_FINITE}"),
        ({"bins": 0}, "bins=0 is outside [1, inf)"),
        ({"bins": 1.5}, "bins=1.5 is not a whole number in [1, inf)"),
        ({"bins": True}, "bins=True is not a number in [1, inf)"),
    ],
)
def test_bad_input_gives_one_line(changes, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        calibration_report(**{"logits": GOOD, "labels": LABELS, **changes})


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([np.nan, 1], f"probs contain {NOT_FINITE}"),
        ([-0.1, 1.1], "expected probs in [0, 1], got -0.1"),
        ([0.5, 0.6], f"expected rows of probs to sum to 1, got 1.1; {SUM}"),
        ([0.5, 0.2], f"expected rows of probs to sum to 1, got 0.7; {SUM}"),
        ([0.5, 0.502], f"expected rows of probs to sum to 1, got 1.002; {SUM}"),
    ],
)
def test_values_that_are_not_probabilities_are_refused(row, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        calibration_report(probs=np.array([[0.5, 0.5], row]), labels=LABELS)


def test_sums_may_be_off_by_a_thousandth():
    probs = np.array([[0.5, 0.5], [0.5, 0.4991]])
    assert calibration_report(probs=probs, labels=LABELS)["acc"] == 0.5


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float16, 1 + 2**-9), (torch.bfloat16, 1 + 2**-6)]
)
def test_in_half_precision_sums_may_be_off_by_two_of_its_steps(dtype, most):
    probs, more = torch.tensor([[0.5, most - 0.5]]), torch.tensor([[0.5, most - 0.5 + 2**-8]])
    label = torch.tensor([0])
    assert calibration_report(probs=probs.to(dtype), labels=label)["acc"] == 0.0
    for wrong in (probs, more.to(dtype)):
        with pytest.raises(ValueError, match="rows of probs to sum to 1"):
            calibration_report(probs=wrong, labels=label)


@pytest.mark.parametrize("form", ["logits", "probs"])
def test_metrics_asked_for_alone_are_those_of_the_whole_report(form) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = 3 * torch.randn(400, 7, generator=draw)
    labels = torch.randint(7, (400,), generator=draw)
    given = {form: rows if form == "logits" else rows.double().softmax(1), "labels": labels}
    whole = calibration_report(**given)
    for name, value in whole.items():
        assert calibration_report(**given, metrics=[name]) == {name: pytest.approx(value)}
    some = calibration_report(**given, metrics=["ece", "brier", "nll"])
    assert list(some) == ["nll", "brier", "ece"]


def test_a_metric_that_is_not_there_is_refused() -> None:
    rows, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    known = ", ".join(REPORTED)
    for direction, more in ((False, ""), (True, ", ece_over, ece_under")):
        with pytest.raises(ValueError, match=f"^metric='ecee' is not one of {known}{more}$"):
            calibration_report(logits=rows, labels=labels, direction=direction, metrics=["ecee"])
    with pytest.raises(ValueError, match=f"^metric='ece_over' is not one of {known}$"):
        calibration_report(logits=rows, labels=labels, metrics=["ece_over"])
    assert calibration_report(
        logits=rows, labels=labels, direction=True, metrics=["ece_under", "acc"]
    ) == {"acc": 0.5, "ece_under": 0.0}


@pytest.mark.parametrize(("scale", "larger"), [(3.0, "ece_over"), (0.3, "ece_under")])
def test_the_direction_splits_the_ece(scale, larger):
    draw = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(4000, 5, generator=draw, dtype=torch.float64)
    labels = torch.multinomial(honest.softmax(1), 1, generator=draw).squeeze(1)
    report = calibration_report(logits=scale * honest, labels=labels, direction=True)
    assert list(report)[-2:] == ["ece_over", "ece_under"]
    assert report["ece_over"] + report["ece_under"] == pytest.approx(report["ece"], abs=1e-12)
    assert report[larger] > 0.95 * report["ece"] > 0.05
    probs = (scale * honest).softmax(1).numpy()
    confidence, correct = probs.max(1), probs.argmax(1) == labels.numpy()
    index = width_bins(confidence, 15)
    over = sum(max((confidence - correct)[index == b].sum(), 0) for b in range(15)) / 4000
    assert report["ece_over"] == pytest.approx(over, abs=1e-12)
