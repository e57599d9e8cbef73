"""Structured vector and matrix scaling against their formula, written out anew."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators import OBJECTIVES, build_calibrator, build_objective
from trainables.calibrators._minimize import row_terms
from trainables.calibrators._structured import mapped_slopes
from trainables.contracts import draw_rows

Rows = tuple[Tensor, Tensor]


def features(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities of temperature scaling with one uniform row mixed in."""
    probs = build_calibrator("ts").fit(logits, labels)(logits).exp()
    share = 1 / (len(labels) + 1)
    return ((1 - share) * probs + share / logits.shape[1]).log()


def penalty(name: str, change: Tensor, rows: int) -> Tensor:
    """The published penalty of a matrix (K, K) beside biases (K, 1)."""
    classes = len(change)
    matrix, bias = change[:, :-1], change[:, -1]
    diagonal = matrix.diagonal().square().sum()
    if name == "svs":
        return classes / rows * (diagonal + bias.square().sum())
    outside = (classes - 1) * (matrix.square().sum() - diagonal)
    return classes / rows * (diagonal + bias.square().sum() + outside)


@pytest.mark.parametrize("name", ["svs", "sms"])
@pytest.mark.parametrize("classes", [2, 60])
def test_the_fit_is_the_minimum_of_the_published_objective(name, classes) -> None:
    logits, labels = draw_rows(rows=300, classes=classes)
    fitted = build_calibrator(name).fit(logits, labels)
    f = features(logits, labels)
    eye = torch.eye(classes, classes, dtype=torch.float64)
    change = torch.zeros(classes, classes + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([change], max_iter=500, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        matrix, bias = change[:, :-1], change[:, -1]
        matrix = matrix * eye if name == "svs" else matrix
        whole = torch.cat([matrix, bias.unsqueeze(1)], 1)
        return F.cross_entropy(f + f @ matrix.T + bias, labels) + penalty(name, whole, len(f))

    def closure() -> Tensor:
        search.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    search.step(closure)
    assert fitted.report is not None
    assert fitted.report.objective == pytest.approx(float(objective().detach()), abs=1e-6)
    matrix, bias = change[:, :-1].detach(), change[:, -1].detach()
    matrix = matrix * eye if name == "svs" else matrix
    expected = F.log_softmax(f + f @ matrix.T + bias, dim=1)
    torch.testing.assert_close(fitted(logits), expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("name", OBJECTIVES.names())
def test_slopes_are_those_of_the_objective(rows: Rows, name: str) -> None:
    logits, labels = rows[0].clone().requires_grad_(), rows[1]
    objective = build_objective(name)
    losses = objective.per_row(row_terms(F.log_softmax(logits, dim=1), labels, objective))
    (expected,) = torch.autograd.grad(losses.sum(), logits)
    found, slopes = mapped_slopes(rows[0].clone(), labels, objective)
    torch.testing.assert_close(found, losses.detach())
    torch.testing.assert_close(slopes, expected)


@pytest.mark.parametrize("name", ["svs", "sms"])
def test_a_strong_penalty_leaves_temperature_scaling(rows: Rows, name: str) -> None:
    logits, labels = rows
    heavy = dict.fromkeys(build_calibrator(name).parameters(), 1e9)
    found = build_calibrator(name, **heavy).fit(logits, labels)(logits)
    torch.testing.assert_close(found, features(logits, labels), rtol=0, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", ["svs", "sms"])
def test_cls_makes_class_losses_equal_if_the_map_can(name) -> None:
    logits, labels = draw_rows(rows=600, classes=4)
    labels = torch.where(labels == 3, torch.arange(len(labels)) % 4, labels)
    losses = F.nll_loss(
        build_calibrator(name, "cls").fit(logits, labels)(logits), labels, reduction="none"
    )
    by_class = torch.stack([losses[labels == k].mean() for k in range(4)])
    assert float(by_class.max() - by_class.min()) < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("name", ["svs", "sms"])
def test_cls_gives_a_class_that_is_fitted_badly_more_weight(name: str) -> None:
    logits, labels = draw_rows(rows=4000, classes=4)
    labels = torch.where(labels == 3, torch.arange(len(labels)) % 4, labels)
    by_class = [
        F.nll_loss(
            build_calibrator(name, objective).fit(logits, labels)(logits)[labels == 3],
            labels[labels == 3],
        )
        for objective in ("ce", "cls")
    ]
    assert float(by_class[1]) < float(by_class[0]) - 0.01
