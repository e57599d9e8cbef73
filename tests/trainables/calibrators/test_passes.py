"""Fits in passes over few and many rows, and over rows that say little."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainables.calibrators import build_calibrator, calibrator_from_recipe

Rows = tuple[Tensor, Tensor]


@pytest.mark.parametrize("recipe", ["ts-ls", "ts-mse", "ts-cls", "cts", "cts-cls", "pts", "vs"])
def test_passes_are_cut_without_a_trace(
    recipe: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few rows, kept or made anew for each pass, give what one block gives."""
    whole = calibrator_from_recipe(recipe, {}).fit(*rows)
    monkeypatch.setattr("trainables.calibrators._passes.KEPT_VALUES", 0)
    anew = calibrator_from_recipe(recipe, {}).fit(*rows)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(anew.state_dict()[name], tensor)
    monkeypatch.setattr("trainables.common.logit_rows.BLOCK_VALUES", {"cpu": 300})
    cut = calibrator_from_recipe(recipe, {}).fit(*rows)
    tolerance = 1e-2 if recipe == "pts" else 1e-9  # Its solver stops near the minimum.
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], tensor, atol=tolerance, rtol=0)


@pytest.mark.parametrize("decay", [1e-4, 1e-2])
def test_vector_scaling_of_many_classes_ends_where_newtons_method_does(
    decay: float, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    newton = build_calibrator("vs", weight_decay=decay, variant="paper").fit(*rows)
    assert newton.report is not None
    assert newton.report.iterations < 10
    monkeypatch.setattr("trainables.calibrators._vector.NEWTON_CLASSES", 2)
    quasi_newton = build_calibrator("vs", weight_decay=decay, variant="paper").fit(*rows)
    for name, tensor in newton.state_dict().items():
        torch.testing.assert_close(quasi_newton.state_dict()[name], tensor, atol=1e-4, rtol=0)


@pytest.mark.parametrize("recipe", ["ts-fl", "ts-cls", "cts", "cts-cls", "vs", "ets", "spline"])
def test_rows_that_hardly_determine_anything_still_give_probabilities(
    recipe: str, rows: Rows
) -> None:
    """Rows that are all right, rows without information, and classes without rows."""
    logits, labels = rows[0][:60], rows[1][:60]
    for table in (
        (logits, logits.argmax(1)),
        (torch.zeros_like(logits), labels),
        (logits, torch.zeros_like(labels)),
    ):
        fitted = calibrator_from_recipe(recipe, {}).fit(*table)
        assert fitted.report is not None
        assert fitted.report.converged
        assert all(bool(tensor.isfinite().all()) for tensor in fitted.state_dict().values())
        total = fitted(logits).exp().sum(1)
        torch.testing.assert_close(total, torch.ones_like(total))
