"""Fits in passes over few and many rows, and over rows that say little."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators import build_calibrator, build_objective, calibrator_from_recipe
from trainables.calibrators._minimize import TemperaturePasses
from trainables.calibrators._temperature import TemperatureFit

Rows = tuple[Tensor, Tensor]


@pytest.mark.parametrize("recipe", ["ts-ls", "ts-mse", "cts-cls", "pts"])
def test_blocks_built_for_each_pass_give_the_same_as_kept_blocks(recipe, rows, monkeypatch):
    whole = calibrator_from_recipe(recipe, {}).fit(*rows)
    monkeypatch.setattr("trainables.calibrators._minimize.KEPT_VALUES", 0)
    anew = calibrator_from_recipe(recipe, {}).fit(*rows)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(anew.state_dict()[name], tensor)


def test_slopes_of_groups_are_those_of_the_weighted_loss(rows: Rows) -> None:
    passes = TemperaturePasses(*rows, build_objective("ce"))
    groups, weights = rows[0].argmax(1), torch.linspace(0, 1, len(rows[1]), dtype=torch.float64)
    fit = TemperatureFit(passes, groups, 5, prior_log=0.3, shrinkage=200.0)
    theta = torch.linspace(-0.5, 1.0, 5, dtype=torch.float64).requires_grad_()
    scaled = rows[0] / theta[groups].exp().unsqueeze(1)
    losses = F.cross_entropy(scaled, rows[1], reduction="none")
    pull = 200.0 / len(rows[1]) / 2 * (theta - 0.3).square().sum()
    expected = (weights * losses).sum() + pull
    value, (slope,) = fit.evaluate([theta.detach()], weights)
    assert value == pytest.approx(float(expected.detach()))
    torch.testing.assert_close(slope, torch.autograd.grad(expected, theta)[0])


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_vector_scaling_of_many_classes_ends_where_newtons_method_does(decay, rows, monkeypatch):
    newton = build_calibrator("vs", weight_decay=decay, variant="paper").fit(*rows)
    assert newton.report is not None
    assert newton.report.iterations < 10
    monkeypatch.setattr("trainables.calibrators._vector.NEWTON_CLASSES", 2)
    quasi_newton = build_calibrator("vs", weight_decay=decay, variant="paper").fit(*rows)
    for name, tensor in newton.state_dict().items():
        torch.testing.assert_close(quasi_newton.state_dict()[name], tensor, atol=1e-4, rtol=0)
