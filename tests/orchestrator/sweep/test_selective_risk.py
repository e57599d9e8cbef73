"""The example's AURC and E-AURC against a loop that spells them out, and by hand."""

from __future__ import annotations

import runpy
from importlib.resources import files
from itertools import permutations

import pytest
import torch

from trainables.common.registry import collecting

with collecting():
    FOUND = runpy.run_path(str(files("orchestrator") / "examples" / "selective_risk.py"))
aurc, e_aurc = FOUND["aurc"], FOUND["e_aurc"]


def rows(confidences: list[float], right: list[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([first, 1 - first], 1), torch.tensor([0 if hit else 1 for hit in right])


def spelled_out(errors: tuple[float, ...]) -> float:
    """Return the mean error rate of the first k, for each k."""
    return sum(sum(errors[:k]) / k for k in range(1, len(errors) + 1)) / len(errors)


def test_by_hand():
    data = rows([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    # Risks 0, 1/2, 1/3, 2/4; at best 0, 0, 1/3, 2/4.
    assert float(aurc(*data)) == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert float(e_aurc(*data)) == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("right", "area", "excess"), [([True] * 4, 0.0, 0.0), ([False] * 4, 1.0, 0.0)]
)
def test_of_networks_that_are_always_right_or_wrong(right, area, excess):
    data = rows([0.9, 0.8, 0.7, 0.6], right)
    assert (float(aurc(*data)), float(e_aurc(*data))) == (area, excess)


def test_the_best_order_has_no_excess():
    data = rows([0.9, 0.8, 0.7, 0.6, 0.55], [True, True, True, False, False])
    assert float(e_aurc(*data)) == pytest.approx(0, abs=1e-15)


def test_rows_that_tie_count_as_the_mean_over_their_orders():
    data = rows([0.9, 0.7, 0.7, 0.7], [True, False, True, True])
    expected = [spelled_out((0, *order)) for order in permutations((1.0, 0.0, 0.0))]
    assert float(aurc(*data)) == pytest.approx(sum(expected) / len(expected))
    turned = (data[0].flip(0), data[1].flip(0))
    assert torch.equal(aurc(*turned), aurc(*data))
