"""One-versus-rest calibrators and the kernel against their definitions and other libraries."""

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from trainables.calibrators import build_calibrator
from trainables.calibrators._logistic import logistic_fits
from trainables.calibrators.kernel import BANDWIDTHS
from trainables.calibrators.venn_abers import added_values
from trainables.contracts import draw_rows

Rows = tuple[Tensor, Tensor]


@pytest.fixture
def two_classes() -> Rows:
    return draw_rows(rows=200, classes=2)


def features(name: str, probs: np.ndarray) -> np.ndarray:
    log_p, log_rest = np.log(probs), np.log1p(-probs)
    odds = log_p - log_rest
    columns = {"platt": [odds], "quadratic": [odds, odds**2], "beta": [log_p, -log_rest]}[name]
    return np.stack(columns, 1)


@pytest.mark.parametrize("name", ["platt", "quadratic", "beta"])
def test_two_classes_are_a_logistic_regression_on_platts_targets(two_classes, name) -> None:
    logits, labels = two_classes
    found = build_calibrator(name, variant="paper").fit(logits, labels)(logits).exp()[:, 1].numpy()
    x, hit = features(name, logits.softmax(1)[:, 1].numpy()), labels.numpy() == 1
    targets = np.where(hit, (hit.sum() + 1) / (hit.sum() + 2), 1 / ((~hit).sum() + 2))
    peer = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    # Each row counts as a hit and as a miss, by its target.
    both = np.repeat([1, 0], len(x))
    peer.fit(np.concatenate([x, x]), both, np.concatenate([targets, 1 - targets]))
    np.testing.assert_allclose(found, peer.predict_proba(x)[:, 1], atol=1e-5)


def test_a_beta_curve_that_would_fall_is_fitted_without_the_feature_that_bends_it() -> None:
    draw = torch.Generator().manual_seed(0)
    probs = 0.02 + 0.96 * torch.rand(4000, 1, generator=draw, dtype=torch.float64)
    odds = 2.0 * probs.log() + 0.7 * (1 - probs).log() + 2.0
    labels = torch.bernoulli(torch.sigmoid(odds), generator=draw).squeeze(1).long()
    logits = torch.cat([1 - probs, probs], 1).log()
    fitted = build_calibrator("beta", variant="paper").fit(logits, labels)
    slopes = fitted.coefficients[:, :2]
    columns = np.column_stack([features("beta", probs[:, 0].numpy()), np.ones(4000)])
    (free,) = logistic_fits(torch.from_numpy(columns.T)[None], labels.double()[None], [0.0] * 3)
    assert float(free[:2].min()) < -0.01
    assert slopes.sign().tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_beta_curve_of_scores_that_mislead_is_flat() -> None:
    """It has Platt's mean target everywhere: without either feature nothing else is likelier."""
    draw = torch.Generator().manual_seed(0)
    probs = 0.02 + 0.96 * torch.rand(4000, dtype=torch.float64, generator=draw)
    labels = torch.bernoulli(0.6 - 0.5 * probs, generator=draw).long()
    logits = torch.stack([1 - probs, probs], 1).log()
    fitted = build_calibrator("beta", variant="paper").fit(logits, labels)
    assert fitted.coefficients[:, :2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    for label, intercept in enumerate(fitted.coefficients[:, 2]):
        count, rest = int((labels == label).sum()), int((labels != label).sum())
        mean = (count * (count + 1) / (count + 2) + rest / (rest + 2)) / 4000
        assert float(torch.sigmoid(intercept)) == pytest.approx(mean, abs=1e-5)


def test_logistic_fits_settle_on_rows_that_a_curve_separates() -> None:
    x = np.column_stack([np.linspace(-300, 300, 40), np.ones(40)])
    targets = np.where(x[:, 0] > 0, 21 / 22, 1 / 22)
    easy = np.where(x[:, 0] > 0, 0.6, 0.5)
    rows = torch.from_numpy(x.T.copy()).expand(2, -1, -1)
    found = logistic_fits(rows, torch.from_numpy(np.stack([targets, easy])), [1, 0]).numpy()
    for of_class, wanted in zip(found, (targets, easy), strict=True):
        gradient = x.T @ (1 / (1 + np.exp(-x @ of_class)) - wanted)
        np.testing.assert_allclose(gradient, 0, atol=1e-3)


def test_centred_isotonic_pools_rows_of_equal_scores() -> None:
    probs = torch.tensor([0.2, 0.2, 0.2, 0.6, 0.6, 0.9, 0.9], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 0, 1, 1, 1])
    logits = torch.stack([1 - probs, probs], 1).log()
    for order in (slice(None), [6, 5, 4, 3, 2, 1, 0]):
        fitted = build_calibrator("cir", variant="paper").fit(logits[order], labels[order])
        of_one = slice(*fitted.offsets[1:].tolist())
        np.testing.assert_allclose(fitted.points[of_one], [0.2, 0.6, 0.9])
        np.testing.assert_allclose(fitted.values[of_one], [1 / 3, 1 / 2, 1.0])


@pytest.mark.parametrize(
    ("name", "coefficients"),
    [
        ("platt", [[0.1, 0.5], [0.05, -0.4]]),
        ("quadratic", [[0.1, 0.002, 0.5], [0.05, 0.001, -0.4]]),
        ("beta", [[0.03, 0.1, 0.5], [0.05, 0.02, -0.4]]),
    ],
)
def test_curves_tell_probabilities_close_to_0_and_1_apart_as_far_as_they_are_exact(
    name: str, coefficients: list[list[float]]
) -> None:
    fitted = build_calibrator(name)
    state = {"coefficients": coefficients, "share": [1.0], "temperature": [1.0]}
    tensors = {key: torch.tensor(value, dtype=torch.float64) for key, value in state.items()}
    fitted.load_state_dict({**tensors, "num_classes": torch.tensor(2)})
    logits = torch.tensor([[0.0, 90.0], [20.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    for row, found in zip(logits.softmax(1).numpy(), fitted(logits).exp().numpy(), strict=True):
        values = []
        for p, (*weights, intercept) in zip(row, coefficients, strict=True):
            log_p, log_rest = np.log(max(p, 1e-30)), np.log(max(1 - p, 1e-7))
            odds = log_p - log_rest
            x = {"platt": [odds], "quadratic": [odds, odds**2], "beta": [log_p, -log_rest]}[name]
            values.append(1 / (1 + np.exp(-np.dot(weights, x) - intercept)) + 1e-9 * p)
        np.testing.assert_allclose(found, np.array(values) / sum(values), rtol=1e-9)


def brute_force(scores: np.ndarray, hits: np.ndarray, wanted: float) -> tuple[float, float]:
    """Isotonic regression with the row added, as a hit and as a miss."""

    def value(hit: float) -> float:
        x, y = np.append(scores, wanted), np.append(hits, hit)
        return float(IsotonicRegression().fit(x, y).predict([wanted])[0])

    return value(1.0), value(0.0)


@pytest.mark.parametrize("seed", range(4))
def test_venn_abers_is_isotonic_regression_with_the_row_added(seed: int) -> None:
    draw = np.random.default_rng(seed)
    probs = draw.integers(1, 20, 60) / 20 if seed % 2 else draw.uniform(0.01, 0.99, 60)
    labels = (draw.uniform(size=60) < probs * 0.8).astype(int)
    logits = torch.from_numpy(np.log(np.stack([1 - probs, probs], 1)))
    probs = logits.softmax(1)[:, 1].numpy()
    fitted = build_calibrator("venn-abers", variant="paper").fit(logits, torch.from_numpy(labels))
    wanted = torch.from_numpy(draw.normal(0, 2, (40, 2)))
    found = fitted(wanted).exp()[:, 1].numpy()
    for score, calibrated in zip(wanted.softmax(1)[:, 1].numpy(), found, strict=True):
        hit, miss = brute_force(probs, labels, score)
        expected = hit / (1 - miss + hit)
        assert calibrated == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("hits", [[], [True], [False], [False] * 5, [True] * 5])
def test_rows_of_one_kind_are_added_to(hits: list[bool]) -> None:
    as_hit, as_miss = added_values(np.array(hits, dtype=bool))
    count, total = len(hits), sum(hits)
    assert len(as_hit) == len(as_miss) == count + 1
    if total == count:
        assert as_hit.tolist() == [1.0] * (count + 1)
        assert as_miss[-1] == pytest.approx(count / (count + 1))
    else:
        assert as_hit.tolist() == pytest.approx([1 / (count + 1 - k) for k in range(count + 1)])
        assert as_miss.tolist() == [0.0] * (count + 1)


def test_kernels_have_a_value_where_a_probability_is_almost_0() -> None:
    """It is the one at a billionth."""
    fitted = build_calibrator("kernel")
    probs = torch.tensor([[0.98, 0.02], [0.6, 0.4], [0.01, 0.99]], dtype=torch.float64)
    state = {"probs": probs, "labels": torch.tensor([0, 1, 1]), "num_classes": torch.tensor(2)}
    for key, value in (("bandwidth", 0.3), ("share", 1.0), ("temperature", 1.0)):
        state[key] = torch.tensor([value], dtype=torch.float64)
    fitted.load_state_dict(state)
    logits = torch.tensor([[60.0, 0.0], [0.0, 30.0], [15.0, 0.0]], dtype=torch.float64)
    points = logits.softmax(1).numpy().clip(1e-9, 1.0)
    alphas = probs.numpy() / 0.3 + 1
    norms = np.array([special.gammaln(a).sum() - special.gammaln(a.sum()) for a in alphas])
    densities = np.exp(np.log(points) @ (alphas - 1).T - norms)
    shares = densities @ np.eye(2)[[0, 1, 1]] / densities.sum(1, keepdims=True)
    expected = shares + 1e-9 * points
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(fitted(logits).exp().numpy(), expected, rtol=1e-5)


def test_the_bandwidth_is_judged_by_rows_from_all_over(rows: Rows, monkeypatch) -> None:
    monkeypatch.setattr("trainables.calibrators.kernel.JUDGED_ROWS", 20)
    logits, labels = rows[0][:83], rows[1][:83]
    probs, judged = logits.softmax(1).numpy(), range(0, 83, 5)
    losses = []
    for bandwidth in BANDWIDTHS:
        loss = 0.0
        for i in judged:
            point = probs[i] / probs[i].sum()
            logs = np.array([stats.dirichlet.logpdf(point, p / bandwidth + 1) for p in probs])
            logs[i] = -np.inf
            weights = np.exp(logs - logs.max())
            weights /= weights.sum()
            share = weights[labels.numpy() == int(labels[i])].sum()
            loss -= np.log((share + 1e-9 * probs[i, labels[i]]) / (1 + 1e-9))
        losses.append(loss / len(judged))
    fitted = build_calibrator("kernel", variant="paper").fit(logits, labels)
    assert BANDWIDTHS == (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    assert float(fitted.bandwidth) == BANDWIDTHS[int(np.argmin(losses))]
    assert fitted.report is not None
    assert fitted.report.objective == pytest.approx(min(losses), rel=1e-6)


def test_classes_without_rows_are_noted(rows: Rows) -> None:
    present = (rows[1] != 3) & (rows[1] != 1)
    report = build_calibrator("platt").fit(rows[0][present], rows[1][present]).report
    assert report is not None
    assert report.note == "2 classes have no fitting row"


def test_a_note_of_the_own_map_is_kept_next_to_that_of_the_mixture(rows: Rows) -> None:
    report = build_calibrator("platt").fit(rows[0][:1], rows[1][:1]).report
    assert report is not None
    richer, empty = report.note.split("; ")
    assert richer == "same as temperature scaling: a richer map does not improve held-out rows"
    assert empty == f"{rows[0].shape[1] - 1} classes have no fitting row"
