import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from trainables.data.suites import auroc, fpr_at_tpr


def scores(seed: int, values: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores that overlap; with ``values``, so few different ones that ties abound."""
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(200, generator=generator, dtype=torch.float64) + 1
    outside = torch.randn(150, generator=generator, dtype=torch.float64)
    if values is not None:
        inside, outside = ((s * values).round() / values for s in (inside, outside))
    return inside, outside


@pytest.mark.parametrize("values", [None, 1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_scikit_learn_agrees(seed, values):
    inside, outside = scores(seed, values)
    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    both = torch.cat((inside, outside)).numpy()
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(truth, both), abs=1e-12)
    fpr, tpr, _ = roc_curve(truth, both, drop_intermediate=False)
    for wanted in (0.95, 0.5, 1.0):
        expected = fpr[np.argmax(tpr >= wanted - 1e-12)]
        assert fpr_at_tpr(inside, outside, wanted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("inside", "outside", "tpr", "text"),
    [
        (
            torch.zeros(0),
            torch.zeros(3),
            0.95,
            r"^inside: expected shape \(N,\), N >= 1, got \(0,\)$",
        ),
        (torch.zeros(3), torch.zeros(3, 1), 0.95, r"^outside: expected .*, got \(3, 1\)$"),
        (torch.zeros(3), torch.tensor([float("nan")]), 0.95, "^outside has NaN$"),
        (torch.tensor([0.0, float("nan")]), torch.zeros(3), 0.95, "^inside has NaN$"),
        (torch.zeros(3), torch.zeros(3), 0.0, r"tpr=0\.0 is outside \(0, 1\]"),
    ],
)
def test_arguments_are_checked(inside, outside, tpr, text):
    with pytest.raises(ValueError, match=text):
        fpr_at_tpr(inside, outside, tpr)
