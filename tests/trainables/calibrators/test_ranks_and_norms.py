"""``mcct`` and ``pnorm`` against their definitions, solved by other means."""

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.special import log_softmax
from torch.nn import functional as F

from trainables.calibrators import build_calibrator
from trainables.calibrators.mcct import RankedLoss, transform
from trainables.contracts import draw_rows

ROWS = draw_rows(rows=250, classes=4)


def nll(log_probs: np.ndarray, labels: np.ndarray) -> float:
    return float(-log_probs[np.arange(len(labels)), labels].mean())


def sorted_map(weights: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities by a slope and a bias for each rank of a row, ascending."""
    out = np.empty_like(logits)
    slopes, biases = weights.reshape(2, -1)
    for row, values in enumerate(logits):
        order = values.argsort()
        out[row, order] = slopes * (values[order] - values.min()) + biases
    return log_softmax(out, axis=1)


def test_slopes_and_biases_of_ranks_are_those_of_a_constrained_solver() -> None:
    logits, labels = (part.numpy() for part in ROWS)
    classes = logits.shape[1]
    found = scipy.optimize.minimize(
        lambda weights: nll(sorted_map(weights, logits), labels),
        np.concatenate([np.linspace(0.3, 1, classes), np.linspace(0, 0.1, classes)]),
        method="SLSQP",
        bounds=[(0, None)] * classes + [(None, None)] * classes,
        constraints={"type": "ineq", "fun": lambda w: np.diff(w.reshape(2, -1), axis=1).ravel()},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    calibrated = build_calibrator("mcct", variant="paper").fit(*ROWS)(ROWS[0]).numpy()
    assert nll(calibrated, labels) == pytest.approx(found.fun, abs=1e-6)
    np.testing.assert_allclose(calibrated, sorted_map(found.x, logits), atol=3e-3)


def test_the_loss_and_its_gradient_are_those_of_the_map() -> None:
    logits, labels = (rows[:40].clone() for rows in ROWS)
    logits[:5, 2], labels[:5] = -np.inf, 1
    steps = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)).double()
    steps.requires_grad_()
    expected = F.nll_loss(transform(steps, logits), labels)
    loss, (gradient,) = RankedLoss(logits, labels).evaluate([steps.detach()])
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, steps)[0])


def test_the_summary_has_the_share_of_the_map() -> None:
    fitted = build_calibrator("mcct").fit(*ROWS)
    assert fitted.summary()["share"] == pytest.approx(float(fitted.share))
    assert 0 <= fitted.summary()["share"] < 1
    assert build_calibrator("mcct", variant="paper").fit(*ROWS).summary()["share"] == 1


def test_the_order_within_every_row_is_kept() -> None:
    logits, labels = ROWS
    others = 5 * torch.randn(300, 4, generator=torch.Generator().manual_seed(1)).double() - 7
    for name in ("mcct", "pnorm"):
        mapped = build_calibrator(name).fit(logits, labels)(others)
        assert torch.equal(mapped.argsort(1), others.argsort(1))


def scaled(order: int, temperature: float, logits: np.ndarray, mean: float) -> np.ndarray:
    centred = logits - logits.mean(1, keepdims=True)
    norms = np.linalg.norm(centred, ord=order, axis=1, keepdims=True) / mean if order else 1.0
    return log_softmax(logits / norms / temperature, axis=1)


def test_order_and_temperature_minimise_the_likelihood_of_normalised_rows():
    # Rows of very different lengths, all equally sure: the lengths say nothing.
    logits, labels = draw_rows(rows=400, classes=4, temperature=1.0)
    lengths = torch.linspace(0.2, 5, 400).double().unsqueeze(1)
    given = (logits * lengths).numpy()
    solved = {}
    for order in range(10):
        centred = given - given.mean(1, keepdims=True)
        mean = np.linalg.norm(centred, ord=order, axis=1).mean() if order else 1.0
        found = scipy.optimize.minimize_scalar(
            lambda t, o=order, m=mean: nll(scaled(o, np.exp(t), given, m), labels.numpy()),
            bounds=(-4, 4),
            method="bounded",
            options={"xatol": 1e-9},
        )
        solved[order] = float(found.fun), float(np.exp(found.x)), mean
    best = min(solved, key=solved.__getitem__)
    assert best > 0
    value, temperature, mean = solved[best]
    fitted = build_calibrator("pnorm").fit(torch.from_numpy(given), labels)
    summary = fitted.summary()
    assert summary["order"] == best
    assert summary["temperature"] == pytest.approx(temperature, rel=1e-5)
    expected = scaled(best, temperature, given, mean)
    np.testing.assert_allclose(fitted(given).numpy(), expected, atol=1e-5)
    plain = build_calibrator("ts").fit(torch.from_numpy(given), labels)(given).numpy()
    assert nll(fitted(given).numpy(), labels.numpy()) == pytest.approx(value, abs=1e-6)
    assert value < nll(plain, labels.numpy())


@pytest.mark.parametrize("name", ["mcct", "pnorm"])
def test_held_out_rows_are_no_worse_than_uncalibrated(name: str) -> None:
    logits, labels = draw_rows(rows=2000, classes=10)
    mapped = build_calibrator(name).fit(logits[:1000], labels[:1000])(logits[1000:])
    held = labels[1000:].numpy()
    assert nll(mapped.numpy(), held) < nll(log_softmax(logits[1000:].numpy(), axis=1), held)
    own = build_calibrator(name).fit(logits, labels)
    with_mask = logits[:50].clone()
    with_mask[:, 0] = -np.inf
    assert float(own(with_mask)[:, 0].max()) < -1e3
