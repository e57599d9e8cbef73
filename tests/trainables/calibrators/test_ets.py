import numpy as np
import pytest
import torch

from trainables.calibrators import build_calibrator, build_objective
from trainables.calibrators.ets import Mixture


@pytest.mark.parametrize("name", ["ce", "ls", "fl", "mse", "cls"])
def test_derivatives_in_the_weights_are_finite_differences(rows, name):
    logits, labels = rows
    objective = build_objective(name)
    mixture = Mixture(logits, labels, torch.tensor([2.0]).double(), objective)
    weights, step = np.array([0.5, 0.3, 0.2]), 1e-6
    _, pulls = mixture.row_losses(weights)
    for member in range(3):
        up, down = (
            mixture.row_losses(weights + sign * step * np.eye(3)[member])[0] for sign in (1, -1)
        )
        torch.testing.assert_close(pulls[:, member], (up - down) / (2 * step), rtol=1e-5, atol=1e-5)


def test_uniform_labels_are_answered_with_the_uniform_member():
    draw = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(4000, 4, generator=draw, dtype=torch.float64)
    labels = torch.randint(4, (4000,), generator=draw)
    fitted = build_calibrator("ets", variant="released").fit(logits, labels)
    assert float(fitted(logits).exp().amax(1).mean()) < 0.3
