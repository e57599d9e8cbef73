import numpy as np
import pytest
import torch

from trainables.metrics import (
    FLOORED,
    bin_spread_of_groups,
    calibration_report,
    evaluation_report,
    noise_floor,
    noise_floors,
    noise_floors_of_groups,
    reliability_curve,
)


def predictions(rows, classes, seed=0):
    logits = 2 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))
    return logits.double().log_softmax(1)


def two_classes(confidence):
    return torch.from_numpy(np.log(np.stack([confidence, 1 - confidence], axis=1)))


def simulated(log_probs, draws):
    """Metrics of many sets of labels, each drawn row by row and given to the report."""
    rng = np.random.default_rng(5)
    probs = log_probs.exp().numpy()
    found = []
    for _ in range(draws):
        labels = np.array([rng.choice(len(row), p=row / row.sum()) for row in probs])
        found.append(calibration_report(logits=log_probs, labels=labels, bins=7))
    return {name: np.array([row[name] for row in found]) for name in ("ece", "aece", "cwece")}


@pytest.mark.full
def test_the_floor_equals_that_of_a_plain_simulation():
    log_probs = predictions(150, 4)
    plain = simulated(log_probs, 200)
    floors = noise_floors(log_probs, bins=7, draws=4000)
    for metric, values in plain.items():
        error = values.std() / np.sqrt(len(values))
        assert abs(floors[metric].mean - values.mean()) < 4 * error
        assert abs(floors[metric].quantile - np.quantile(values, 0.95)) < 10 * error
        assert floors[metric].quantile > floors[metric].mean + 10 * error


def drawn_in_groups(log_probs, groups, together, generator):
    """Labels that follow the probabilities; rows of a group go wrong together as far as said."""
    common = torch.randn(int(groups.max()) + 1, generator=generator)[groups]
    own = torch.randn(len(groups), generator=generator)
    chance = torch.special.ndtr((together**0.5 * common + (1 - together) ** 0.5 * own).double())
    probs, order = log_probs.exp().sort(1, descending=True)
    ends = probs.cumsum(1)[:, :-1].contiguous()
    return order.gather(1, torch.searchsorted(ends, chance[:, None])).squeeze(1)


@pytest.mark.full
@pytest.mark.parametrize("together", [0.0, 0.5])
def test_the_floor_of_groups_is_the_error_of_calibrated_groups(together):
    generator = torch.Generator().manual_seed(2)
    log_probs, groups = predictions(2000, 4), torch.arange(100).repeat_interleave(20)
    shown, found = [], []
    for _ in range(100):
        labels = drawn_in_groups(log_probs, groups, together, generator)
        report = calibration_report(logits=log_probs, labels=labels, metrics=FLOORED)
        floors = noise_floors_of_groups(log_probs, labels, groups, draws=30)
        shown.append([report[name] for name in FLOORED])
        found.append([floors[name].mean for name in FLOORED])
    assert np.mean(found, axis=0) == pytest.approx(np.mean(shown, axis=0), rel=0.08)
    rows = noise_floors(log_probs, draws=60)["ece"].mean
    assert (np.mean(shown, axis=0)[0] > 1.1 * rows) == bool(together)


def test_the_spread_of_a_bin_is_that_of_calibrated_ones():
    generator = torch.Generator().manual_seed(2)
    log_probs, groups = predictions(2000, 4), torch.arange(100).repeat_interleave(20)
    gaps, spreads = [], []
    for _ in range(100):
        labels = drawn_in_groups(log_probs, groups, 0.5, generator)
        curve = reliability_curve(logits=log_probs, labels=labels)
        gaps.append(curve.accuracy - curve.confidence)
        spreads.append(bin_spread_of_groups(log_probs, labels, groups))
    assert np.array_equal(np.isnan(spreads[0]), curve.count == 0)
    often = curve.count > 100
    shown, found = np.std(gaps, axis=0), np.sqrt(np.mean(np.square(spreads), axis=0))
    assert found[often] == pytest.approx(shown[often], rel=0.2)


def binned(scores, bins, mass):
    """Bin of each score of a column."""
    if mass:
        n = len(scores)
        edges = np.interp(np.arange(bins + 1) * n / bins, np.arange(n), np.sort(scores))
    else:
        edges = np.arange(bins + 1) / bins
    return np.searchsorted(edges[1:-1], scores)


def residuals(scores, hits, index, bins, groups):
    """What each group adds to each bin's gap beyond what the others have in as many rows."""
    found = np.zeros((len(set(groups)), bins))
    for b in range(bins):
        for g in set(groups):
            own, rest = (index == b) & (groups == g), (index == b) & (groups != g)
            gap = (scores - hits)[rest].mean() if rest.any() else 0.0
            found[g, b] = (scores - hits)[own].sum() - own.sum() * gap
    return found


@pytest.mark.parametrize("bins", [3, 15])
def test_the_floor_and_spread_of_groups_are_those_of_the_definition(bins):
    rows, classes, count = 60, 3, 4
    log_probs = predictions(rows, classes)
    labels, groups = torch.arange(rows) % classes, torch.arange(rows) * 7 % 11 % count
    probs, truth, which = log_probs.exp().numpy(), labels.numpy(), groups.numpy()
    top = probs.max(1), (probs.argmax(1) == truth).astype(float)
    signs = torch.randint(2, (9, count), generator=torch.Generator().manual_seed(3)).numpy() * 2 - 1

    def errors(scores, hits, mass=False):
        found = residuals(scores, hits, binned(scores, bins, mass), bins, which)
        return np.abs(signs @ found).sum(1) / rows

    expected = {
        "ece": errors(*top),
        "aece": errors(*top, mass=True),
        "cwece": np.mean([errors(probs[:, k], truth == k) for k in range(classes)], axis=0),
    }
    floors = noise_floors_of_groups(log_probs, labels, 10 * groups, bins=bins, draws=9, seed=3)
    assert list(floors) == list(expected)
    for name, values in expected.items():
        assert floors[name].mean == pytest.approx(values.mean()), name
        assert floors[name].quantile == pytest.approx(np.quantile(values, 0.95)), name
    some = ["cwece", "ece"]
    found = noise_floors_of_groups(log_probs, labels, groups, some, bins=bins, draws=9, seed=3)
    assert list(found.items()) == [(name, floors[name]) for name in some]
    usual = noise_floors_of_groups(log_probs, labels, groups)
    assert usual == noise_floors_of_groups(log_probs, labels, groups, FLOORED, 15, 400, 0)
    index = binned(top[0], bins, False)
    with np.errstate(invalid="ignore"):
        spread = np.sqrt((residuals(*top, index, bins, which) ** 2).sum(0))
        spread /= np.bincount(index, minlength=bins)
    found = bin_spread_of_groups(log_probs, labels, groups, bins)
    np.testing.assert_allclose(found, spread, atol=1e-12)


@pytest.mark.parametrize("of_groups", [noise_floors_of_groups, bin_spread_of_groups])
def test_groups_are_one_a_row(of_groups):
    with pytest.raises(ValueError, match=r"expected groups of shape \(5,\), got \(4,\)"):
        of_groups(predictions(5, 3), torch.zeros(5, dtype=int), torch.zeros(4))


def test_ten_thousand_calibrated_rows_show_four_tenths_of_a_percent():
    confidence = np.random.default_rng(0).beta(8, 0.5, 10_000).clip(0.5, 1 - 1e-12)
    mean, quantile = noise_floor(two_classes(confidence), draws=1000)
    assert mean == pytest.approx(0.0044, abs=0.0003)
    assert quantile == pytest.approx(mean + 1.7 * 0.0013, abs=0.0005)


def test_blocks_of_rows_change_nothing(monkeypatch):
    log_probs = predictions(200, 5)
    whole = noise_floors(log_probs, draws=3000)
    monkeypatch.setattr("trainables.metrics._floor.BLOCK_ELEMENTS", 3000 * 7)
    in_blocks = noise_floors(log_probs, draws=3000)
    for metric, floor in whole.items():
        assert in_blocks[metric] == pytest.approx(floor, rel=1e-9)


def test_blocks_of_classes_change_nothing(monkeypatch):
    log_probs, labels, groups = predictions(60, 5), torch.arange(60) % 5, torch.arange(60) // 6
    whole = noise_floors_of_groups(log_probs, labels, groups, draws=9)
    monkeypatch.setattr("trainables.metrics._scores.BLOCK_ELEMENTS", 2 * 60)
    in_blocks = noise_floors_of_groups(log_probs, labels, groups, draws=9)
    for metric, floor in whole.items():
        assert in_blocks[metric] == pytest.approx(floor, rel=1e-9)


def test_a_sure_model_has_no_floor():
    logits = torch.tensor([[800.0, 0.0, 0.0], [0.0, 800.0, 0.0]])
    assert all(floor == (0.0, 0.0) for floor in noise_floors(logits, draws=10).values())


def test_a_noise_floor_is_the_same_alone_and_among_other_metrics():
    log_probs = predictions(50, 3).float()
    together = noise_floors(log_probs, draws=20, seed=4)
    for metric, floor in together.items():
        assert noise_floor(log_probs, metric, draws=20, seed=4) == floor
    assert noise_floor(log_probs, draws=20, seed=5) != together["ece"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"metric": "nll"}, "metric='nll' is not one of ece, aece, cwece"),
        ({"draws": 0}, r"draws=0 is outside \[1, inf\)"),
        ({"bins": 0}, r"bins=0 is outside \[1, inf\)"),
    ],
)
def test_arguments_are_checked(wrong, message):
    with pytest.raises(ValueError, match=message):
        noise_floor(predictions(5, 3), **wrong)
    named = {"metrics": [wrong["metric"]]} if "metric" in wrong else wrong
    rows = predictions(5, 3), torch.zeros(5, dtype=int), torch.arange(5)
    with pytest.raises(ValueError, match=message):
        noise_floors_of_groups(*rows, **named)
    if "bins" in wrong:
        with pytest.raises(ValueError, match=message):
            bin_spread_of_groups(*rows, **wrong)


def test_floors_are_of_predictions_that_have_a_gradient_too():
    log_probs, groups = predictions(40, 3), torch.arange(40) // 4
    labels = torch.arange(40) % 3
    with_gradient = log_probs.clone().requires_grad_()
    assert noise_floors(with_gradient, draws=5) == noise_floors(log_probs, draws=5)
    given = labels, groups
    found = noise_floors_of_groups(with_gradient, *given, draws=5)
    assert found == noise_floors_of_groups(log_probs, *given, draws=5)
    spreads = bin_spread_of_groups(with_gradient, *given), bin_spread_of_groups(log_probs, *given)
    np.testing.assert_array_equal(*spreads)


def test_the_evaluation_adds_to_the_report_and_changes_nothing_in_it():
    log_probs = predictions(80, 3)
    labels = torch.arange(80) % 3
    found = evaluation_report(log_probs, labels)
    report = calibration_report(logits=log_probs, labels=labels)
    assert {name: found.pop(name) for name in report} == report
    assert found.pop("ece_floor") == noise_floor(log_probs).mean
    assert set(found) == {"debiased_ece", "smooth_ece", "aece_floor", "cwece_floor"}


@pytest.mark.parametrize("bins", [5, 15])
def test_floors_are_of_the_bins_that_errors_are_of(bins):
    logits = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    found = evaluation_report(logits, logits.argmax(1), bins=bins)
    for metric, floor in noise_floors(logits.log_softmax(1), FLOORED, bins=bins).items():
        assert found[f"{metric}_floor"] == pytest.approx(floor.mean, rel=1e-6), metric
